"""Our client while brokers of a real Kafka cluster are killed, stopped and paused: nothing lost, nothing twice, nothing stuck."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.interop.failover import all_seen, check_stored, make_topic, reading, stored, until, writing
from tests.interop.truncation import java_after_the_cut
from tidelog.client import Admin, Consumer, ConsumerRecord, Producer, TopicPartition
from tidelog.client.errors import LogTruncatedError
from tools.peers.kafka_cluster import KafkaCluster

Take = Callable[[Consumer, int], Awaitable[list[ConsumerRecord]]]

PARTITIONS = 6
# Each node leads two partitions.
EVERYWHERE = [((p + 0) % 3, (p + 1) % 3, (p + 2) % 3) for p in range(PARTITIONS)]
SAFE = {"min.insync.replicas": "2"}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 1_000},
    "consumer": {},
}


@pytest.fixture(scope="module")
def running_cluster(kafka_version: str) -> Iterator[KafkaCluster]:
    with KafkaCluster(
        overrides={
            "min.insync.replicas": "2",
            "group.consumer.heartbeat.interval.ms": "1000",
            "group.consumer.min.heartbeat.interval.ms": "1000",
        }
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: KafkaCluster) -> KafkaCluster:
    running_cluster.heal()
    return running_cluster


async def test_acknowledged_records_are_stored_once_while_leaders_are_killed(cluster: KafkaCluster) -> None:
    topic = await asyncio.to_thread(make_topic, cluster, replicas=EVERYWHERE, configs=SAFE)
    async with writing(cluster, topic) as writer:
        for number in range(3):
            await writer.settled_so_far()
            victim = await asyncio.to_thread(cluster.leader_of, topic, number)
            await asyncio.to_thread(cluster.kill, victim)
            await asyncio.sleep(0.5)
            await writer.settled_so_far()
            await asyncio.to_thread(cluster.start, victim)
            await asyncio.to_thread(cluster.wait_until_in_sync, topic)
    assert not writer.failed, (
        "three brokers of which one is dead take records well within delivery.timeout.ms"
    )
    assert len(writer.acknowledged) > 5_000
    check_stored(writer, await asyncio.to_thread(stored, cluster, topic))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_group_reads_everything_while_leaders_and_its_coordinator_are_killed(
    cluster: KafkaCluster, protocol: str
) -> None:
    topic = await asyncio.to_thread(make_topic, cluster, replicas=EVERYWHERE, configs=SAFE)
    settings: dict[str, Any] = {
        "group_id": f"g-{uuid.uuid4().hex[:10]}",
        "group_protocol": protocol,
        "auto_commit_interval_ms": 500,
        **PROTOCOLS[protocol],
    }
    async with (
        reading(cluster, topic, **settings) as first,
        reading(cluster, topic, **settings) as second,
        writing(cluster, topic, per_second=500) as writer,
    ):
        await until(lambda: first.seen and second.seen, "both members read")
        for victim in ("coordinator", "leader"):
            await all_seen(writer, [first, second])
            coordinator = await asyncio.to_thread(cluster.coordinator)
            node = coordinator if victim == "coordinator" else (coordinator + 1) % 3
            await asyncio.to_thread(cluster.kill, node)
            await asyncio.sleep(0.5)
            await writer.settled_so_far()
            await all_seen(writer, [first, second])
            await asyncio.to_thread(cluster.start, node)
            await asyncio.to_thread(cluster.wait_until_in_sync, topic)
        await writer.settled_so_far()
        await all_seen(writer, [first, second])
        async with Admin(cluster.bootstrap) as admin:
            group = await admin.describe_group(settings["group_id"])
        assert (group.state, len(group.members)) == ("Stable", 2), "both are members still, or again"
    assert not writer.failed
    check_stored(writer, {**first.seen, **second.seen})


async def test_a_broker_that_is_stopped_in_order_troubles_nobody(cluster: KafkaCluster) -> None:
    """Whatever a consumer or a producer would raise ends the test: `reading` and `writing` catch nothing."""
    topic = await asyncio.to_thread(make_topic, cluster, replicas=EVERYWHERE, configs=SAFE)
    group: dict[str, Any] = {"group_id": f"g-{uuid.uuid4().hex[:10]}", "auto_commit_interval_ms": 500}
    async with (
        reading(cluster, topic, **group) as member,
        reading(cluster, topic) as alone,
        writing(cluster, topic) as writer,
    ):
        for partition in (0, 1):
            await writer.settled_so_far()
            node = await asyncio.to_thread(cluster.leader_of, topic, partition)
            await asyncio.to_thread(cluster.stop, node)
            await writer.settled_so_far()
            await asyncio.to_thread(cluster.start, node)
            await asyncio.to_thread(cluster.wait_until_in_sync, topic)
        await writer.settled_so_far()
        await all_seen(writer, [member])
        await all_seen(writer, [alone])
    assert not writer.failed
    assert alone.repeated == 0
    check_stored(writer, await asyncio.to_thread(stored, cluster, topic))


async def test_a_broker_that_does_not_answer_is_left_behind(cluster: KafkaCluster) -> None:
    """It is paused for longer than `request.timeout.ms`, and wakes up when others lead its partitions: the broker that clients ask first, then the coordinator."""
    topic = await asyncio.to_thread(make_topic, cluster, replicas=EVERYWHERE, configs=SAFE)
    group: dict[str, Any] = {"group_id": f"g-{uuid.uuid4().hex[:10]}", "auto_commit_interval_ms": 500}
    group |= PROTOCOLS["classic"]
    async with (
        reading(cluster, topic, request_timeout_ms=2_000) as alone,
        reading(cluster, topic, request_timeout_ms=2_000, **group) as member,
        writing(cluster, topic, request_timeout_ms=2_000) as writer,
    ):
        await until(lambda: alone.seen and member.seen, "both read")
        for number in range(2):
            node = 0 if number == 0 else await asyncio.to_thread(cluster.coordinator)
            await writer.settled_so_far()
            await all_seen(writer, [alone])
            await all_seen(writer, [member])
            await asyncio.to_thread(cluster.pause, node)
            await asyncio.sleep(3.0)
            await writer.settled_so_far()
            await all_seen(writer, [alone])
            await all_seen(writer, [member])
            await asyncio.to_thread(cluster.resume, node)
            await asyncio.to_thread(cluster.wait_until_in_sync, topic)
        await writer.settled_so_far()
        await all_seen(writer, [alone])
        await all_seen(writer, [member])
    assert not writer.failed
    assert alone.repeated == 0
    check_stored(writer, await asyncio.to_thread(stored, cluster, topic))


# ---- a log that becomes shorter (KIP-320)


async def write(cluster: KafkaCluster, topic: str, values: list[bytes]) -> None:
    async with Producer(cluster.bootstrap, batch_size=200) as producer:
        for value in values:
            await producer.send(topic, value, partition=0)


async def polled(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """So many and not one more; the consumer may have more at hand."""
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await consumer.poll(max_records=count - len(found))
    return found


async def iterated(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """The same for `async for`, which holds back what it has taken."""
    async with asyncio.timeout(30):
        return [await anext(consumer) for _ in range(count)]


def values(records: list[ConsumerRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def places(records: list[ConsumerRecord]) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records]


TAKES = (polled, iterated)
BOTH = [b"both-%d" % n for n in range(100)]
OLD = [b"old-%d" % n for n in range(100, 200)]
NEW = [b"new-%d" % n for n in range(100, 250)]
UNCLEAN = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}


async def test_a_log_that_was_cut_is_noticed(cluster: KafkaCluster, tmp_path: Path) -> None:
    """Records that only one replica had are read; then an unclean election takes them away, and others are written in their place."""
    topic = await asyncio.to_thread(make_topic, cluster, replicas=[(0, 1)], configs=UNCLEAN)
    tp, group_id = TopicPartition(topic, 0), f"g-{uuid.uuid4().hex[:10]}"
    await write(cluster, topic, BOTH)
    await asyncio.to_thread(cluster.stop, 1)
    await write(cluster, topic, OLD)

    async with AsyncExitStack() as stack:

        async def reader(reset: str, *, group_id: str | None = None) -> Consumer:
            consumer = Consumer(
                cluster.bootstrap, group_id=group_id, auto_offset_reset=reset, enable_auto_commit=False
            )
            await stack.enter_async_context(consumer)
            consumer.assign([tp])
            if group_id is None:
                consumer.seek(tp, 0)
            return consumer

        async def expect_cut(consumer: Consumer, take: Take, *, position: int) -> None:
            """An error that says so, before any other record, and no record until something is done about it."""
            with pytest.raises(LogTruncatedError, match=rf"{re.escape(topic)}-0: .*100.*{position}") as cut:
                await take(consumer, 1)
            assert (cut.value.tp, cut.value.offset) == (tp, 100)
            assert await consumer.poll(timeout_ms=500) == []
            consumer.seek(tp, cut.value.offset)

        # Some have read everything. Some have more at hand than they have given out: up to behind the cut, or up to before it.
        at_end = {reset: await reader(reset) for reset in ("none", "earliest", "latest")}
        behind = {(reset, take): await reader(reset) for reset in ("none", "earliest") for take in TAKES}
        before = {take: await reader("none") for take in TAKES}
        for consumer in at_end.values():
            assert values(await polled(consumer, 200)) == BOTH + OLD
        for (_, take), consumer in behind.items():
            assert values(await take(consumer, 120)) == BOTH + OLD[:20]
        for take, consumer in before.items():
            assert values(await take(consumer, 50)) == BOTH[:50]
        # One was away while it happened.
        away = await reader("earliest", group_id=group_id)
        assert values(await polled(away, 200)) == BOTH + OLD
        await away.commit()
        await away.close()

        await asyncio.to_thread(cluster.kill, 0)
        await asyncio.to_thread(cluster.start, 1)
        assert await asyncio.to_thread(cluster.leader_of, topic) == 1
        await asyncio.sleep(3.0)  # nobody polls, and all have noticed
        await expect_cut(at_end["none"], polled, position=200)
        for take in TAKES:
            await expect_cut(behind["none", take], take, position=120)

        await write(cluster, topic, NEW)
        for reset, consumer in at_end.items():
            assert places(await polled(consumer, 150)) == [*enumerate(NEW, 100)], reset
        for (reset, take), consumer in behind.items():
            assert places(await take(consumer, 150)) == [*enumerate(NEW, 100)], (reset, take)
        for take, consumer in before.items():
            assert places(await take(consumer, 200)) == [*enumerate(BOTH + NEW)][50:], take
        # Who comes back finds a log that is longer than what it had read.
        await expect_cut(await reader("none", group_id=group_id), polled, position=200)
        for reset in ("earliest", "latest"):
            back = await reader(reset, group_id=group_id)
            assert places(await polled(back, 150)) == [*enumerate(NEW, 100)], reset
        assert await asyncio.to_thread(java_after_the_cut, cluster, topic, group_id, tmp_path) == [
            "none was cut at 100, read up to 200",
            "earliest went on at 100",
            "latest went on at 100",
        ]
