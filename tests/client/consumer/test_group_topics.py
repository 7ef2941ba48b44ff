"""What a group reads changes: subscriptions end and begin, topics grow, go, and come again under the same name.

Against a broker: ours in-process, or any Kafka named by TIDELOG_TEST_BOOTSTRAP.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.client.consumer.members import Member, are_shared, until
from tests.client.consumer.test_consumer import GROUPS, fill, new_group, take
from tests.client.producer.test_producer import make_topic
from tidelog.client import Consumer, Producer, TopicPartition
from tidelog.client.admin import Admin
from tidelog.client.cluster import TopicMissingError
from tidelog.client.errors import BrokerError


@pytest.mark.parametrize("protocol", GROUPS)
async def test_unsubscribing_commits_and_frees_the_partitions_at_once(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    await fill(bootstrap, topic_name, 40, partitions=4)
    group = new_group()
    options = {"group_protocol": protocol, "enable_auto_commit": True}
    async with (
        Member(bootstrap, group, [topic_name], **options) as first,
        Member(bootstrap, group, [topic_name], **options) as other,
    ):
        await until(lambda: are_shared(4, first, other) and len(first.got) + len(other.got) >= 40)
        had = first.partitions
        await first.rest()
        first.consumer.unsubscribe()
        assert first.consumer.assignment() == first.consumer.subscription() == frozenset()
        with pytest.raises(ValueError, match="subscribe to topics"):
            await first.consumer.poll()
        await until(lambda: other.partitions == {0, 1, 2, 3})
        await until(lambda: first.heard[-1] == ("revoked", had))
        assert len(first.got) + len(other.got) == 40, (
            "what was read before is committed: nobody reads it again"
        )

        first.consumer.subscribe([topic_name], listener=first)
        first.go_on()
        await until(lambda: are_shared(4, first, other))


@pytest.mark.parametrize("protocol", GROUPS)
async def test_who_unsubscribes_and_closes_has_left(bootstrap: str, topic_name: str, protocol: str) -> None:
    await fill(bootstrap, topic_name, 10)
    group, tp = new_group(), TopicPartition(topic_name, 0)
    async with Consumer(
        bootstrap, group_id=group, group_protocol=protocol, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic_name])
        await take(consumer, 10)
        consumer.unsubscribe()
    async with Admin(bootstrap) as admin:
        assert (await admin.describe_group(group)).members == ()
        assert (await admin.group_offsets(group))[tp].offset == 10


@pytest.mark.parametrize("protocol", GROUPS)
async def test_a_subscription_that_is_replaced_gives_up_one_topic_and_takes_another(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    await fill(bootstrap, topic_name + "-a", 10)
    await fill(bootstrap, topic_name + "-b", 10)
    async with Member(bootstrap, new_group(), [topic_name + "-a"], group_protocol=protocol) as member:
        await until(lambda: len(member.got) == 10)
        member.consumer.subscribe([topic_name + "-b"], listener=member)
        await until(lambda: len(member.got) == 20)
        assert {record.topic for record in member.got[10:]} == {topic_name + "-b"}
        assert member.consumer.assignment() == {TopicPartition(topic_name + "-b", 0)}


@pytest.mark.parametrize("protocol", GROUPS)
async def test_partitions_that_are_added_are_read_from_their_beginning(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    await fill(bootstrap, topic_name, 4, partitions=2)
    async with Member(
        bootstrap, new_group(), [topic_name], group_protocol=protocol, commits=True, metadata_max_age_ms=200
    ) as member:
        await until(lambda: len(member.got) == 4)
        async with Admin(bootstrap) as admin:
            await admin.create_partitions(topic_name, 4)
            await admin.cluster.topic(topic_name, expected=True, at_least_partitions=4)
        async with Producer(bootstrap) as producer:
            for n in range(4, 12):
                await producer.send(topic_name, b"%d" % n, partition=n % 4)
        await until(lambda: sorted(member.values) == list(range(12)))
        assert member.partitions == {0, 1, 2, 3}


async def make_anew(bootstrap: str, topic: str, numbers: range) -> None:
    """The same name, another topic."""
    async with Admin(bootstrap) as admin, asyncio.timeout(20):
        await admin.delete_topics([topic])
        while True:
            try:
                await make_topic(bootstrap, topic)
                break
            except BrokerError as error:  # Kafka deletes in the background
                assert error.name == "TOPIC_ALREADY_EXISTS"
                await asyncio.sleep(0.05)
    async with Producer(bootstrap) as producer:
        for n in numbers:
            await producer.send(topic, b"%d" % n, partition=0)


@pytest.mark.parametrize("protocol", GROUPS)
async def test_a_topic_that_is_made_anew_is_read_from_its_own_beginning(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    """Although offset 20, where the member was in the old one, is in the new one, too."""
    await fill(bootstrap, topic_name, 20)
    group, tp = new_group(), TopicPartition(topic_name, 0)
    options = {
        "group_protocol": protocol,
        "enable_auto_commit": True,
        "auto_commit_interval_ms": 100,
        "allow_auto_create_topics": False,
        "metadata_max_age_ms": 300,
    }
    async with Member(bootstrap, group, [topic_name], **options) as member:
        await until(lambda: len(member.got) == 20)
        await make_anew(bootstrap, topic_name, range(100, 130))
        await until(lambda: len(member.got) >= 50)
        assert member.values[20:] == list(range(100, 130))
        assert await member.consumer.position(tp) == 30
    async with Admin(bootstrap) as admin:
        assert (await admin.group_offsets(group))[tp].offset == 30


async def test_an_offset_in_a_deleted_topic_is_not_committed_for_a_new_one_of_its_name(
    bootstrap: str, topic_name: str
) -> None:
    await fill(bootstrap, topic_name, 20)
    tp = TopicPartition(topic_name, 0)
    async with Member(bootstrap, new_group(), [topic_name], allow_auto_create_topics=False) as member:
        await until(lambda: len(member.got) == 20)
        await member.rest()
        member.consumer.pause(tp)
        await asyncio.sleep(0.2)  # no fetch is on its way that would tell what happens now
        await make_anew(bootstrap, topic_name, range(100, 130))
        with pytest.raises(TopicMissingError, match=topic_name):
            await member.consumer.commit()
        assert await member.consumer.committed([tp]) == {tp: None}
        member.consumer.resume(tp)
        member.go_on()
        await until(lambda: member.values[20:] == list(range(100, 130)))


async def test_without_a_group_a_topic_that_is_made_anew_is_read_too(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 20)
    tp = TopicPartition(topic_name, 0)
    async with Consumer(bootstrap, auto_offset_reset="latest", allow_auto_create_topics=False) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert len(await take(consumer, 20)) == 20
        await make_anew(bootstrap, topic_name, range(100, 130))
        assert await take(consumer, 30) == [b"%d" % n for n in range(100, 130)]


async def test_a_topic_that_is_missing_is_named_and_holds_up_no_other(
    bootstrap: str, topic_name: str
) -> None:
    await fill(bootstrap, topic_name, 10)
    async with Consumer(bootstrap, auto_offset_reset="earliest", allow_auto_create_topics=False) as consumer:
        consumer.assign([TopicPartition(topic_name, 0), TopicPartition(topic_name + "-missing", 0)])
        with pytest.raises(TopicMissingError, match=topic_name + "-missing"):
            await consumer.poll(timeout_ms=5_000)
        got: list[bytes | None] = []
        async with asyncio.timeout(10):
            while len(got) < 10:
                with suppress(TopicMissingError):
                    got += [record.value for record in await consumer.poll()]


@pytest.mark.parametrize("protocol", GROUPS)
async def test_a_topic_that_is_deleted_holds_up_no_other(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    """Nor do its offsets, which cannot be committed any more."""
    await fill(bootstrap, topic_name + "-a", 10)
    await fill(bootstrap, topic_name + "-b", 10)
    group, kept = new_group(), TopicPartition(topic_name + "-b", 0)
    async with Member(
        bootstrap,
        group,
        [topic_name + "-a", topic_name + "-b"],
        group_protocol=protocol,
        enable_auto_commit=True,
        auto_commit_interval_ms=100_000,
        allow_auto_create_topics=False,
        metadata_max_age_ms=200,
    ) as member:
        await until(lambda: len(member.got) == 20)
        async with Admin(bootstrap) as admin:
            await admin.delete_topics([topic_name + "-a"])
        await until(lambda: member.consumer.assignment() == {kept}, seconds=10)
        async with Producer(bootstrap) as producer:
            await producer.send(kept.topic, b"10")
        await until(lambda: len(member.got) == 21, seconds=5)
    async with Admin(bootstrap) as admin:
        assert (await admin.group_offsets(group))[kept].offset == 11
