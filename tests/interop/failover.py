"""Load on a cluster whose brokers die, and what came of it: a writer, readers, and a referee that reads what is stored.

Our producer and our consumer are what is tested; topics are made, and what is stored is read, by librdkafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

import confluent_kafka
import confluent_kafka.admin

from tidelog.client import Consumer, ConsumerRecord, Delivery, Producer, TopicPartition
from tidelog.client.errors import ClientError
from tools.peers.kafka_cluster import KafkaCluster

PATIENCE_SECONDS = 45.0
TICK_SECONDS = 0.02
Place = tuple[int, int]  # partition and offset


def make_topic(
    cluster: KafkaCluster, *, replicas: Sequence[Sequence[int]], configs: Mapping[str, str]
) -> str:
    """With these nodes for each partition, the first to lead it."""
    topic = f"t-{uuid.uuid4().hex[:12]}"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = confluent_kafka.admin.NewTopic(
        topic, len(replicas), replica_assignment=[list(each) for each in replicas], config=dict(configs)
    )
    for future in admin.create_topics([new]).values():
        future.result(30)
    cluster.wait_until_in_sync(topic)
    return topic


def stored(cluster: KafkaCluster, topic: str) -> dict[Place, bytes]:
    """Everything that can be read, by librdkafka."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "referee",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        partitions = [confluent_kafka.TopicPartition(topic, p, 0) for p in cluster.partitions(topic)]
        ends = {p.partition: consumer.get_watermark_offsets(p, timeout=30)[1] for p in partitions}
        consumer.assign(partitions)
        found: dict[Place, bytes] = {}
        until = time.monotonic() + PATIENCE_SECONDS
        while len(found) < sum(ends.values()):
            assert time.monotonic() < until, f"read {len(found)} of {ends}"
            for message in consumer.consume(1_000, timeout=1.0):
                if message.error() is None:
                    found[message.partition(), message.offset()] = message.value()
        return found
    finally:
        consumer.close()


class Writer:
    """Numbered records to all partitions in turn, so many in a second, until it is closed.

    `acknowledged` says what the producer promised; a failure that is no `ClientError` ends the test.
    """

    def __init__(self, producer: Producer, topic: str, partitions: int, *, per_second: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._per_tick = max(1, round(per_second * TICK_SECONDS))
        self._deliveries: asyncio.Queue[tuple[int, bytes, Delivery] | None] = asyncio.Queue()
        self.sent: list[bytes] = []
        self.settled = 0
        self.acknowledged: dict[Place, bytes] = {}
        self.failed: dict[bytes, ClientError] = {}
        self.slowest_seconds = 0.0

    async def write(self) -> None:
        while True:
            for _ in range(self._per_tick):
                number = len(self.sent)
                partition, value = number % self._partitions, b"%d" % number
                delivery = await self._producer.send(self._topic, value, partition=partition)
                self.sent.append(value)
                self._deliveries.put_nowait((partition, value, delivery))
            await asyncio.sleep(TICK_SECONDS)

    async def settle(self) -> None:
        heard_at = time.monotonic()
        while (each := await self._deliveries.get()) is not None:
            partition, value, delivery = each
            try:
                where = await delivery
                assert where.partition == partition
                assert (partition, where.offset) not in self.acknowledged, "two records in one place"
                self.acknowledged[partition, where.offset] = value
            except ClientError as error:
                self.failed[value] = error
            self.settled += 1
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - heard_at)
            heard_at = time.monotonic()

    def end(self) -> None:
        self._deliveries.put_nowait(None)

    async def settled_so_far(self) -> None:
        """What was sent up to now has met its fate."""
        target = len(self.sent)
        await until(lambda: self.settled >= target, f"{target} records are delivered or failed")


@contextlib.asynccontextmanager
async def writing(
    cluster: KafkaCluster, topic: str, *, per_second: int = 1_000, **settings: Any
) -> AsyncIterator[Writer]:
    """At the end everything is delivered, or has failed."""
    async with Producer(cluster.bootstrap, **{"batch_size": 1_000, **settings}) as producer:
        writer = Writer(producer, topic, len(cluster.partitions(topic)), per_second=per_second)
        async with asyncio.TaskGroup() as group:
            settling = group.create_task(writer.settle())
            sending = group.create_task(writer.write())
            try:
                yield writer
            finally:
                sending.cancel()
                await asyncio.wait({sending})
                writer.end()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.shield(settling)


def check_stored(writer: Writer, found: Mapping[Place, bytes]) -> None:
    """What was acknowledged is there once, where the producer said, in the order in which it was sent; nobody else's is."""
    for place, value in writer.acknowledged.items():
        assert found.get(place) == value, f"{value!r} was acknowledged at {place}"
    values = list(found.values())
    assert len(values) == len(set(values)), "a record is stored twice"
    in_order: dict[int, list[int]] = {}
    for (partition, _), value in sorted(found.items()):
        in_order.setdefault(partition, []).append(int(value))
    for partition, numbers in in_order.items():
        assert numbers == sorted(numbers), f"partition {partition} is not in the order of sends"
    missing = set(writer.sent) - set(values) - writer.failed.keys()
    assert not missing


class Reader:
    """A consumer that notes what it gets. While it has a partition, offsets follow each other without a gap and never go back."""

    def __init__(self) -> None:
        self.seen: dict[Place, bytes] = {}
        self.repeated = 0
        self.losses = 0
        self._next: dict[int, int | None] = {}

    async def follow(self, consumer: Consumer) -> None:
        """Until it is cancelled; whatever the consumer raises is raised."""
        while True:
            for record in await consumer.poll(timeout_ms=500):
                self._note(record)

    def _note(self, record: ConsumerRecord) -> None:
        expected = self._next[record.partition]
        assert expected is None or record.offset == expected, (
            f"partition {record.partition}: {record.offset} after {(expected or 0) - 1}"
        )
        self._next[record.partition] = record.offset + 1
        place = record.partition, record.offset
        self.repeated += place in self.seen
        assert record.value is not None and self.seen.get(place, record.value) == record.value
        self.seen[place] = record.value

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._next |= {tp.partition: None for tp in partitions}

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            del self._next[tp.partition]

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.losses += 1
        self.on_partitions_revoked(partitions)


@contextlib.asynccontextmanager
async def reading(
    cluster: KafkaCluster, topic: str, *, group_id: str | None = None, **settings: Any
) -> AsyncIterator[Reader]:
    """A member of the group, or a reader of all partitions by itself. An error that reaches it ends the test."""
    reader = Reader()
    async with Consumer(
        cluster.bootstrap, group_id=group_id, auto_offset_reset="earliest", **settings
    ) as consumer:
        if group_id is not None:
            consumer.subscribe([topic], listener=reader)
        else:
            tps = [TopicPartition(topic, number) for number in cluster.partitions(topic)]
            reader.on_partitions_assigned(tps)
            consumer.assign(tps)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(reader.follow(consumer))
            try:
                yield reader
            finally:
                following.cancel()


async def all_seen(writer: Writer, readers: Sequence[Reader]) -> None:
    """Everything that is acknowledged up to now was read by somebody, as it was written."""
    target = dict(writer.acknowledged)

    def missing() -> dict[Place, bytes]:
        return {
            place: value
            for place, value in target.items()
            if not any(reader.seen.get(place) == value for reader in readers)
        }

    await until(lambda: not missing(), lambda: f"{len(missing())} of {len(target)} records are not read")


async def until(holds: Any, what: Any, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, (
            f"not within {seconds:.0f} s: {what() if callable(what) else what}"
        )
        await asyncio.sleep(0.05)
