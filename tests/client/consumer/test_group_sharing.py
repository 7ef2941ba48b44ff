"""Partitions shared by three members, by every assignor, and by members of both protocols in one group.

Against a broker: ours in-process, or any Kafka named by TIDELOG_TEST_BOOTSTRAP.
"""

from __future__ import annotations

import pytest

from tests.client.consumer.members import Member, are_shared, membership_of, until
from tests.client.consumer.test_consumer import fill, new_group
from tidelog.client import Producer, TopicPartition

ASSIGNORS = ["range", "roundrobin", "sticky", "cooperative-sticky"]


async def write(bootstrap: str, topic: str, numbers: range, *, partitions: int) -> None:
    async with Producer(bootstrap) as producer:
        for n in numbers:
            await producer.send(topic, b"%d" % n, partition=n % partitions)


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_three_members_share_and_take_over(bootstrap: str, topic_name: str, assignor: str) -> None:
    await fill(bootstrap, topic_name, 60, partitions=6)
    group = new_group()
    options = {"partition_assignment_strategy": (assignor,), "enable_auto_commit": True}
    async with (
        Member(bootstrap, group, [topic_name], **options) as first,
        Member(bootstrap, group, [topic_name], **options) as second,
    ):
        await until(lambda: are_shared(6, first, second))
        before = first.partitions
        async with Member(bootstrap, group, [topic_name], **options) as third:
            await until(lambda: are_shared(6, first, second, third))
            if "sticky" in assignor:
                assert first.partitions <= before, "it keeps what it may keep"
            await write(bootstrap, topic_name, range(60, 120), partitions=6)
            await until(lambda: {*first.values, *second.values, *third.values} == set(range(120)))
        await until(lambda: are_shared(6, first, second))
        await write(bootstrap, topic_name, range(120, 180), partitions=6)
        await until(lambda: {*first.values, *second.values, *third.values} == set(range(180)))
        assert len(first.got) + len(second.got) + len(third.got) == 180, "nobody was killed: each record once"


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_a_cooperative_member_keeps_receiving_while_the_group_rebalances(
    bootstrap: str, topic_name: str, assignor: str
) -> None:
    """The rebalance lasts as long as the second member does not ask for records."""
    await fill(bootstrap, topic_name, 4, partitions=4)
    group = new_group()
    options = {"partition_assignment_strategy": (assignor,), "commits": True}
    async with (
        Member(bootstrap, group, [topic_name], **options) as first,
        Member(bootstrap, group, [topic_name], **options) as second,
    ):
        await until(lambda: are_shared(4, first, second) and len(first.got) + len(second.got) >= 4)
        its_own = first.partitions
        await second.rest()
        async with Member(bootstrap, group, [topic_name], **options) as third:
            membership = membership_of(first.consumer)
            assert membership is not None
            await until(lambda: membership.member.phase.value == "joining")
            await write(bootstrap, topic_name, range(4, 12), partitions=4)
            if assignor == "range":
                assert first.partitions == frozenset(), "who is eager gives everything up first"
            else:
                await until(lambda: {n for n in range(4, 12) if n % 4 in its_own} <= set(first.values))
                assert membership.member.phase.value == "joining" and first.partitions == its_own
            second.go_on()
            await until(lambda: are_shared(4, first, second, third))
            await until(lambda: {*first.values, *second.values, *third.values} == set(range(12)))


async def test_members_of_both_protocols_share_one_group(bootstrap: str, topic_name: str) -> None:
    """A group is moved to the consumer protocol and back, one member after the other, without a stop."""
    await fill(bootstrap, topic_name, 40, partitions=4)
    group, values = new_group(), set[int]()

    async def everything_arrives(count: int, *members: Member) -> None:
        await until(lambda: values.union(*(member.values for member in members)) == set(range(count)))

    async with Member(bootstrap, group, [topic_name], commits=True) as classic:
        await until(lambda: classic.partitions == {0, 1, 2, 3})
        async with Member(bootstrap, group, [topic_name], group_protocol="consumer", commits=True) as modern:
            await until(lambda: are_shared(4, classic, modern))
            await everything_arrives(40, classic, modern)
            await classic.rest()
            await classic.consumer.close()
            await until(lambda: modern.partitions == {0, 1, 2, 3})
            await write(bootstrap, topic_name, range(40, 80), partitions=4)
            await everything_arrives(80, classic, modern)
            async with Member(bootstrap, group, [topic_name], commits=True) as again:
                await until(lambda: are_shared(4, modern, again))
                await write(bootstrap, topic_name, range(80, 120), partitions=4)
                await everything_arrives(120, classic, modern, again)
                await modern.rest()
                await modern.consumer.close()
                await until(lambda: again.partitions == {0, 1, 2, 3})
                await write(bootstrap, topic_name, range(120, 160), partitions=4)
                await everything_arrives(160, classic, modern, again)
                tps = [TopicPartition(topic_name, p) for p in range(4)]
                await again.rest()
                await again.consumer.commit()
                assert {c and c.offset for c in (await again.consumer.committed(tps)).values()} == {40}
