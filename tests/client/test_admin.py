"""Administration from Python, asyncio and blocking: topics, settings, offsets, records, groups."""

from __future__ import annotations

import time
import uuid

import pytest

from tidelog.client import Admin, Consumer, NewTopic, Producer, TopicPartition, blocking
from tidelog.client.admin import Resource, ResourceType
from tidelog.client.cluster import TopicMissingError
from tidelog.client.errors import BrokerError, BrokerUnreachableError
from tidelog.client.groups import GroupMissingError
from tidelog.client.offsets import EARLIEST, LATEST


async def test_a_topic_from_its_beginning_to_its_end(bootstrap: str, topic_name: str) -> None:
    async with Admin(bootstrap) as admin:
        (made,) = await admin.create_topics([NewTopic(topic_name, 2, 1, {"retention.ms": "60000"})])
        assert (made.name, made.partitions) == (topic_name, 2)
        await admin.cluster.topic(topic_name, expected=True, at_least_partitions=2)
        assert topic_name in (await admin.list_topics()).topics
        await admin.create_partitions(topic_name, 3)
        await admin.cluster.topic(topic_name, expected=True, at_least_partitions=3)
        (described,) = await admin.describe_topics([topic_name])
        assert len(described.partitions) == 3
        resource = Resource(ResourceType.TOPIC, topic_name)
        await admin.alter_configs(resource, set_={"retention.ms": "70000"})
        (entry,) = await admin.describe_configs(resource, ["retention.ms"])
        assert entry.value == "70000"
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
            await admin.create_topics([NewTopic(topic_name, 1, 1)])
        await admin.delete_topics([topic_name])
        with pytest.raises(TopicMissingError):
            await admin.delete_topics([topic_name])


async def test_offsets_records_and_groups(bootstrap: str, topic_name: str) -> None:
    tp, group = TopicPartition(topic_name, 0), f"g-{uuid.uuid4().hex[:10]}"
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(topic_name, 1, 1)])
        async with Producer(bootstrap) as producer:
            for n in range(10):
                await producer.send(topic_name, b"%d" % n)
        assert (await admin.list_offsets({tp: LATEST}))[tp].offset == 10
        assert await admin.delete_records({tp: 4}) == {tp: 4}
        assert (await admin.list_offsets({tp: EARLIEST}))[tp].offset == 4
        assert any(
            replica.topic == topic_name for d in await admin.describe_log_dirs() for replica in d.replicas
        )

        await admin.alter_group_offsets(group, {tp: 7})
        assert {t: c.offset for t, c in (await admin.group_offsets(group)).items()} == {tp: 7}
        assert group in {listed.group_id for listed in await admin.list_groups()}
        async with Consumer(bootstrap, group_id=group) as consumer:
            consumer.subscribe([topic_name])
            assert [record.value for record in await consumer.poll(timeout_ms=20_000)] == [b"7", b"8", b"9"]
            assert len((await admin.describe_group(group)).members) == 1
            with pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
                await admin.alter_group_offsets(group, {tp: 5})
        await admin.delete_group_offsets(group, [tp])
        assert await admin.group_offsets(group) == {}
        with pytest.raises(GroupMissingError):
            await admin.delete_group("nobody-knows-it")


def test_the_same_without_an_event_loop(bootstrap: str, topic_name: str) -> None:
    with blocking.Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic_name, 1, 1)])
        deadline = (
            time.monotonic() + 10
        )  # Kafka's controller answers before its brokers have heard of the topic
        while topic_name not in admin.list_topics().topics:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
            admin.create_topics([NewTopic(topic_name, 1, 1)])
        admin.delete_topics([topic_name])
        assert admin.create_topics.__doc__ == Admin.create_topics.__doc__


def test_nobody_there() -> None:
    with pytest.raises(BrokerUnreachableError), blocking.Admin("127.0.0.1:1", request_timeout_ms=200):
        pass
