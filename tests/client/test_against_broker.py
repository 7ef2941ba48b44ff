"""The client against a real broker: what is written comes back, and administration does what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import pytest

from tidelog.client import Consumer, ConsumerRecord, Producer
from tidelog.client.admin import Admin, ConfigSource, NewTopic, Resource, ResourceType
from tidelog.client.cluster import ClusterClient, TopicMissingError
from tidelog.client.errors import BrokerError
from tidelog.client.metadata import ZERO_ID, TopicPartition
from tidelog.client.offsets import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    delete_records,
    describe_log_dirs,
    list_offsets,
)
from tidelog.records.record import Headers
from tidelog.wire.error_codes import ErrorCode

T = TypeVar("T")


def with_cluster(bootstrap: str, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with asyncio.timeout(30), ClusterClient(bootstrap) as cluster:
            return await work(cluster)

    return asyncio.run(main())


async def make(cluster: ClusterClient, name: str, partitions: int = 1, **configs: str) -> None:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    await Admin(cluster).create_topics([NewTopic(name, partitions, 1, settings)])
    await cluster.topic(name, expected=True)


class Written(NamedTuple):
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


async def write(bootstrap: str, name: str, records: list[Written], **options: Any) -> None:
    async with Producer(bootstrap, **options) as producer:
        for timestamp_ms, key, value, headers in records:
            await producer.send(name, value, key=key, headers=headers, timestamp_ms=timestamp_ms)


async def read(bootstrap: str, tp: TopicPartition, count: int, **options: Any) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    async with Consumer(bootstrap, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign([tp])
        while len(found) < count:
            found += await consumer.poll()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_what_is_written_is_read_back(bootstrap: str, topic_name: str, codec: str, acks: int) -> None:
    sent = [
        Written(1_700_000_000_000 + i, None, b"value %d " % i * (i % 7), (("n", b"%d" % i), ("none", None)))
        for i in range(500)
    ]
    sent += [Written(1_700_000_001_000, b"gone", None)]

    async def work(cluster: ClusterClient) -> None:
        await make(cluster, topic_name)
        options = {"compression_type": codec, "acks": acks, "enable_idempotence": acks == -1}
        await write(bootstrap, topic_name, sent, batch_size=4_000, **options)
        tp = TopicPartition(topic_name, 0)
        while (await list_offsets(cluster, {tp: LATEST}))[tp].offset < len(sent):
            assert acks == 0, "acknowledged records must be there at once"
            await asyncio.sleep(0.01)
        got = await read(bootstrap, tp, len(sent))
        assert [r.offset for r in got] == list(range(len(sent)))
        assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in got] == sent

    with_cluster(bootstrap, work)


def test_small_fetches_still_bring_large_batches(bootstrap: str, topic_name: str) -> None:
    sent = [Written(1, None, bytes([i]) * 20_000) for i in range(30)]

    async def work(cluster: ClusterClient) -> None:
        await make(cluster, topic_name)
        await write(bootstrap, topic_name, sent, batch_size=70_000, linger_ms=50)
        got = await read(
            bootstrap,
            TopicPartition(topic_name, 0),
            len(sent),
            fetch_max_bytes=1_000,
            max_partition_fetch_bytes=1_000,
        )
        assert [r.value for r in got] == [r.value for r in sent]

    with_cluster(bootstrap, work)


def test_following_sees_records_that_come_later(bootstrap: str, topic_name: str) -> None:
    async def work(cluster: ClusterClient) -> None:
        await make(cluster, topic_name)
        reading = read(bootstrap, TopicPartition(topic_name, 0), 2, fetch_max_wait_ms=5_000)
        follower = asyncio.create_task(reading)
        for value in (b"one", b"two"):
            await asyncio.sleep(0.05)
            await write(bootstrap, topic_name, [Written(1, None, value)])
        assert [r.value for r in await follower] == [b"one", b"two"]

    with_cluster(bootstrap, work)


def test_offsets_by_time_and_deleting_records(bootstrap: str, topic_name: str) -> None:
    base = 1_700_000_000_000

    async def work(cluster: ClusterClient) -> None:
        await make(cluster, topic_name, retention_ms="-1")
        for i in range(10):
            await write(bootstrap, topic_name, [Written(base + 10 * i, None, b"%d" % i)])
        tp = TopicPartition(topic_name, 0)

        async def at(timestamp: int) -> int:
            return (await list_offsets(cluster, {tp: timestamp}))[tp].offset

        assert [await at(base), await at(base + 11), await at(base + 90), await at(base + 91)] == [
            0,
            2,
            9,
            -1,
        ]
        assert [await at(EARLIEST), await at(LATEST), await at(MAX_TIMESTAMP)] == [0, 10, 9]
        assert await delete_records(cluster, {tp: 4}) == {tp: 4}
        assert await at(EARLIEST) == 4
        with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
            await delete_records(cluster, {tp: 11})
        assert await delete_records(cluster, {tp: -1}) == {tp: 10}

    with_cluster(bootstrap, work)


def test_topics_come_grow_and_go(bootstrap: str, topic_name: str) -> None:
    async def work(cluster: ClusterClient) -> None:
        admin = Admin(cluster)
        (created,) = await admin.create_topics([NewTopic(topic_name, 2, 1)])
        assert (created.partitions, created.replication_factor) == (2, 1)
        with pytest.raises(BrokerError, match=topic_name) as raised:
            await admin.create_topics([NewTopic(topic_name, 2, 1)])
        assert raised.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        info = await cluster.topic(topic_name, expected=True)
        assert sorted(info.partitions) == [0, 1]
        assert info.topic_id == created.topic_id != ZERO_ID
        await admin.create_partitions(topic_name, 4)
        assert len((await cluster.topic(topic_name, at_least_partitions=4)).partitions) == 4
        assert topic_name in (await admin.list_topics()).topics
        await admin.delete_topics([topic_name])
        with pytest.raises(TopicMissingError):
            for _ in range(500):  # a broker may hear of the deletion a moment later than the controller
                await admin.describe_topics([topic_name])
                await asyncio.sleep(0.02)
        with pytest.raises(TopicMissingError):
            await admin.delete_topics([topic_name])
        with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
            await admin.create_topics([NewTopic("no spaces allowed")])

    with_cluster(bootstrap, work)


def test_configs_are_changed_one_by_one(bootstrap: str, topic_name: str) -> None:
    async def work(cluster: ClusterClient) -> None:
        admin = Admin(cluster)
        await make(cluster, topic_name, retention_ms="3600000")
        topic = Resource(ResourceType.TOPIC, topic_name)

        async def own() -> dict[str, str | None]:
            entries = await admin.describe_configs(topic)
            return {e.name: e.value for e in entries if e.source == ConfigSource.DYNAMIC_TOPIC_CONFIG}

        assert await own() == {"retention.ms": "3600000"}
        await admin.alter_configs(topic, set_={"max.message.bytes": "2000"})
        assert await own() == {"retention.ms": "3600000", "max.message.bytes": "2000"}
        await admin.alter_configs(topic, unset=["retention.ms"])
        assert await own() == {"max.message.bytes": "2000"}
        with pytest.raises(BrokerError, match=topic_name) as raised:
            await admin.alter_configs(topic, set_={"max.message.bytes": "lots"})
        assert raised.value.code == ErrorCode.INVALID_CONFIG
        (entry,) = await admin.describe_configs(topic, ["max.message.bytes"])
        assert (entry.value, entry.read_only, entry.sensitive) == ("2000", False, False)
        assert [name for name, _, _ in entry.synonyms] == ["max.message.bytes", "message.max.bytes"]
        with pytest.raises(TopicMissingError):
            await admin.describe_configs(Resource(ResourceType.TOPIC, topic_name + "-not"))

    with_cluster(bootstrap, work)


def test_log_dirs_tell_sizes(bootstrap: str, topic_name: str) -> None:
    async def work(cluster: ClusterClient) -> None:
        await make(cluster, topic_name)
        await write(bootstrap, topic_name, [Written(1, None, b"x" * 1000)] * 50)
        sizes = [
            r.size_bytes
            for d in await describe_log_dirs(cluster)
            for r in d.replicas
            if r.topic == topic_name
        ]
        assert len(sizes) == 1
        assert sizes[0] > 50_000

    with_cluster(bootstrap, work)
