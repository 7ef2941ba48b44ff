"""read_committed in our consumer, against Apache Kafka with transactions that librdkafka writes: committed, aborted and open ones, interleaved in several partitions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from tests.client.consumer.test_consumer import GROUPS, new_group
from tidelog.client import Consumer, Producer, TopicPartition, scan
from tidelog.client.blocking import Consumer as BlockingConsumer
from tools.peers.kafka import KafkaPeer
from tools.peers.process import Peer

PARTITIONS = 3
_numbers = itertools.count()


@pytest.fixture(scope="module")
def kafka(kafka_version: str) -> Iterator[Peer]:
    with KafkaPeer(overrides={"group.initial.rebalance.delay.ms": "0"}) as peer:
        yield peer


class Ledger:
    """Transactions on one topic, and what each partition shows to whom."""

    def __init__(self, kafka: Peer, stack: ExitStack) -> None:
        self.bootstrap = kafka.bootstrap
        self.topic = f"ledger-{next(_numbers)}"
        self.tps = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        self.committed: dict[TopicPartition, list[bytes]] = {tp: [] for tp in self.tps}
        self.written: dict[TopicPartition, list[bytes]] = {tp: [] for tp in self.tps}
        self.ends: dict[TopicPartition, int] = dict.fromkeys(self.tps, 0)
        self._stack = stack
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([confluent_kafka.admin.NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(
            30
        )

    def begin(self) -> Transaction:
        return Transaction(self)

    def plain(self, value: bytes, partition: int) -> None:
        """Outside of any transaction."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        producer.produce(self.topic, value, partition=partition)
        producer.flush()
        self.written[self.tps[partition]].append(value)
        self.committed[self.tps[partition]].append(value)
        self.ends[self.tps[partition]] += 1


class Transaction:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": ledger.bootstrap,
                "transactional.id": f"{ledger.topic}-{next(_numbers)}",
                "linger.ms": 0,
            }
        )
        self._producer.init_transactions(30)
        self._producer.begin_transaction()
        self._sent: list[tuple[TopicPartition, bytes]] = []
        self._is_open = True
        ledger._stack.callback(self._close)

    def send(self, *values: bytes, partition: int) -> Transaction:
        tp = self._ledger.tps[partition]
        for value in values:
            self._producer.produce(tp.topic, value, partition=partition)
            self._ledger.written[tp].append(value)
            self._ledger.ends[tp] += 1
            self._sent.append((tp, value))
        self._producer.flush()  # on the broker, before anybody else writes
        return self

    def commit(self) -> None:
        self._producer.commit_transaction(30)
        for tp, value in self._sent:
            self._ledger.committed[tp].append(value)
        self._end()

    def abort(self) -> None:
        self._producer.abort_transaction(30)
        self._end()

    def _end(self) -> None:
        self._is_open = False
        for tp in {tp for tp, _ in self._sent}:
            self._ledger.ends[tp] += 1  # the marker

    def _close(self) -> None:
        if self._is_open:
            self._producer.abort_transaction(30)


@pytest.fixture
def ledger(kafka: Peer) -> Iterator[Ledger]:
    with ExitStack() as stack:
        yield Ledger(kafka, stack)


def interleave(ledger: Ledger) -> None:
    """Nothing stays open. Partition 0 ends with an abort, 1 with a commit, 2 has records of all kinds in turn."""
    first, second, third = ledger.begin(), ledger.begin(), ledger.begin()
    first.send(b"a0", b"a1", partition=0).send(b"a2", partition=2)
    second.send(b"b0", partition=0).send(b"b1", partition=1).send(b"b2", partition=2)
    ledger.plain(b"plain", 2)
    first.send(b"a3", partition=2)
    third.send(b"c0", partition=2).send(b"c1", b"c2", partition=1)
    first.commit()
    second.send(b"b3", partition=2)
    ledger.plain(b"more", 0)
    third.commit()
    second.abort()


async def read(consumer: Consumer, count: int) -> dict[TopicPartition, list[bytes | None]]:
    """So many records, and none after them."""
    found: dict[TopicPartition, list[bytes | None]] = {}
    async with asyncio.timeout(30):
        while sum(map(len, found.values())) < count:
            for record in await consumer.poll():
                found.setdefault(TopicPartition(record.topic, record.partition), []).append(record.value)
    assert await consumer.poll(timeout_ms=300) == []
    return found


def without_empty(shown: dict[TopicPartition, list[bytes]]) -> dict[TopicPartition, list[bytes]]:
    return {tp: values for tp, values in shown.items() if values}


def count_of(shown: dict[TopicPartition, list[bytes]]) -> int:
    return sum(map(len, shown.values()))


async def consumer_of(ledger: Ledger, isolation_level: str, **options: Any) -> Consumer:
    consumer = Consumer(
        ledger.bootstrap, auto_offset_reset="earliest", isolation_level=isolation_level, **options
    )
    await consumer.start()
    return consumer


async def test_aborted_records_are_hidden_and_positions_pass_markers(ledger: Ledger) -> None:
    await asyncio.to_thread(interleave, ledger)
    for level, shown in (("read_committed", ledger.committed), ("read_uncommitted", ledger.written)):
        async with await consumer_of(ledger, level) as consumer:
            consumer.assign(ledger.tps)
            found = await read(consumer, count_of(shown))
            # Commits count in the order of the log, not in that in which they happened.
            assert {tp: sorted(values) for tp, values in found.items()} == {  # type: ignore[type-var]
                tp: sorted(values) for tp, values in without_empty(shown).items()
            }
            for tp in ledger.tps:
                assert found[tp] == [value for value in ledger.written[tp] if value in found[tp]]
            assert {tp: await consumer.position(tp) for tp in ledger.tps} == ledger.ends
            assert {consumer.lag(tp) for tp in ledger.tps} == {0}


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
async def test_columns_hide_them_too(ledger: Ledger, batch_bytes: int) -> None:
    """Also where each answer holds one batch only, and a transaction begins in one and ends in another."""
    await asyncio.to_thread(interleave, ledger)
    for level, shown in (("read_committed", ledger.committed), ("read_uncommitted", ledger.written)):
        count, options = count_of(shown), {"max_partition_fetch_bytes": batch_bytes}
        async with await consumer_of(ledger, level, **options) as consumer, asyncio.timeout(30):
            consumer.assign(ledger.tps)
            polled: list[bytes] = []
            while len(polled) < count:
                polled += (await consumer.poll_arrow())["value"].to_pylist()
            assert (await consumer.poll_arrow(timeout_ms=300)).num_rows == 0
        scanned = [
            value
            async for batch in scan(
                ledger.bootstrap, ledger.topic, columns=("value",), isolation_level=level, **options
            )
            for value in batch["value"].to_pylist()
        ]
        assert sorted(polled) == sorted(scanned) == sorted(v for values in shown.values() for v in values)


async def test_an_open_transaction_ends_what_can_be_read(ledger: Ledger) -> None:
    before = ledger.begin()
    await asyncio.to_thread(lambda: before.send(b"a", partition=0).send(b"b", partition=1).commit())
    is_open = ledger.begin()
    await asyncio.to_thread(is_open.send, b"open", partition=0)
    await asyncio.to_thread(ledger.plain, b"behind", 0)
    first = ledger.tps[0]
    async with (
        await consumer_of(ledger, "read_committed") as careful,
        await consumer_of(ledger, "read_uncommitted") as bold,
    ):
        for consumer in (careful, bold):
            consumer.assign(ledger.tps)
        assert await read(careful, 2) == {first: [b"a"], ledger.tps[1]: [b"b"]}
        assert (await read(bold, 4))[first] == [b"a", b"open", b"behind"]
        # a, its marker, open, behind
        assert (await careful.end_offsets([first]))[first] == await careful.position(first) == 2
        assert (await bold.end_offsets([first]))[first] == await bold.position(first) == 4
        assert careful.lag(first) == bold.lag(first) == 0
        async with asyncio.timeout(30):  # a scan ends, although a transaction does not
            rows = [
                v
                async for batch in scan(ledger.bootstrap, ledger.topic, isolation_level="read_committed")
                for v in batch["value"].to_pylist()
            ]
        assert sorted(rows) == [b"a", b"b"]
        careful.seek_to_time(
            {first: 4_000_000_000_000}
        )  # no record is as late: whatever becomes readable next
        assert await careful.position(first) == 2
        await asyncio.to_thread(is_open.commit)
        assert await read(careful, 2) == {first: [b"open", b"behind"]}
        assert await careful.position(first) == 5 and careful.lag(first) == 0


async def test_a_topic_that_ends_with_aborted_records_is_read_to_its_end(ledger: Ledger) -> None:
    def write() -> None:
        ledger.begin().send(b"a", partition=0).commit()
        for _ in range(5):
            ledger.begin().send(*[b"x" * 1_000] * 20, partition=0).abort()

    await asyncio.to_thread(write)
    first = ledger.tps[0]
    async with (
        await consumer_of(ledger, "read_committed", max_partition_fetch_bytes=2_000) as consumer,
        asyncio.timeout(30),
    ):
        consumer.assign([first])
        assert await read(consumer, 1) == {first: [b"a"]}
        while await consumer.position(first) < ledger.ends[first]:
            assert await consumer.poll(timeout_ms=100) == []
        assert consumer.lag(first) == 0
        rows = [
            batch.num_rows
            async for batch in scan(
                ledger.bootstrap,
                ledger.topic,
                partitions=[0],
                isolation_level="read_committed",
                max_partition_fetch_bytes=2_000,
            )
        ]
        assert sum(rows) == 1
        # Beginning within aborted records shows none of them either.
        consumer.seek(first, 3)
        assert await consumer.poll(timeout_ms=500) == []


@pytest.mark.parametrize("protocol", GROUPS)
async def test_a_group_commits_behind_markers_and_goes_on_there(ledger: Ledger, protocol: str) -> None:
    await asyncio.to_thread(interleave, ledger)
    options = {"group_id": new_group(), "group_protocol": protocol, "enable_auto_commit": False}
    async with await consumer_of(ledger, "read_committed", **options) as consumer:
        consumer.subscribe([ledger.topic])
        await read(consumer, count_of(ledger.committed))
        await consumer.commit()
        committed = await consumer.committed(ledger.tps)
        assert {tp: each and each.offset for tp, each in committed.items()} == ledger.ends
    async with Producer(ledger.bootstrap) as producer:
        await producer.send_and_wait(ledger.topic, b"new", partition=0)
    async with await consumer_of(ledger, "read_committed", **options) as consumer:
        consumer.subscribe([ledger.topic])
        assert await read(consumer, 1) == {ledger.tps[0]: [b"new"]}


def test_the_blocking_consumer_hides_them_too(ledger: Ledger) -> None:
    interleave(ledger)
    with BlockingConsumer(
        ledger.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign(ledger.tps)
        found: list[bytes | None] = []
        while len(found) < count_of(ledger.committed):
            found += [record.value for record in consumer.poll(timeout_ms=10_000)]
        assert consumer.poll(timeout_ms=300) == []
        assert sorted(found) == sorted(v for values in ledger.committed.values() for v in values)  # type: ignore[type-var]
        assert {consumer.lag(tp) for tp in ledger.tps} == {0}
