"""Members that are cut off, killed, too slow or replaced: they are told what happened and which setting it was, and the group loses nothing.

Against a broker: ours in-process, or any Kafka named by TIDELOG_TEST_BOOTSTRAP.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

import pytest

from tests.client.consumer.members import (
    SHORT_SESSION_MS,
    Member,
    are_shared,
    membership_of,
    shorten_session,
    until,
)
from tests.client.consumer.test_consumer import GROUPS, fill, new_group
from tests.client.wire import CLIENT_ID, Wire
from tidelog.client import Producer, TopicPartition
from tidelog.client.admin import Admin
from tidelog.client.errors import CommitFailedError, FencedInstanceError


async def write(bootstrap: str, topic: str, numbers: range, *, partitions: int) -> None:
    async with Producer(bootstrap) as producer:
        for n in numbers:
            await producer.send(topic, b"%d" % n, partition=n % partitions)


async def until_members(bootstrap: str, group: str, count: int) -> None:
    async with Admin(bootstrap) as admin, asyncio.timeout(20):
        while len((await admin.describe_group(group)).members) != count:
            await asyncio.sleep(0.05)


# ---- cut off


@pytest.mark.parametrize("protocol", GROUPS)
async def test_a_member_whose_session_ended_is_told_and_goes_on_where_the_group_was(
    bootstrap: str, topic_name: str, wire: Wire, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidelog.client")
    await fill(bootstrap, topic_name, 40, partitions=2)
    group = new_group()
    await shorten_session(bootstrap, group)
    async with Member(
        bootstrap,
        group,
        [topic_name],
        group_protocol=protocol,
        client_id=CLIENT_ID,
        session_timeout_ms=SHORT_SESSION_MS,
    ) as member:
        await until(lambda: len(member.got) == 40)
        await member.rest()
        await member.consumer.commit({TopicPartition(topic_name, 0): 15, TopicPartition(topic_name, 1): 20})
        wire.cut()
        await until_members(bootstrap, group, 0)
        wire.mend()
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms=300000.*session\.timeout\.ms"):
            await member.consumer.commit()
        member.go_on()
        await until(lambda: len(member.got) == 45)
        assert member.values[40:] == [30, 32, 34, 36, 38], "what was not committed, and nothing else"
        both = frozenset((0, 1))
        assert member.heard == [("assigned", both), ("lost", both), ("assigned", both)]
        await member.rest()
        await member.consumer.commit()
    lines = [record.getMessage() for record in caplog.records if f"group {group}" in record.getMessage()]
    names = f"{topic_name}-0, {topic_name}-1"
    assert lines.count(f"group {group}: this member takes {names}") == 2
    (lost,) = (line for line in lines if f"this member loses {names}" in line)
    assert "session.timeout.ms" in lost


@pytest.mark.parametrize("protocol", GROUPS)
async def test_a_member_that_is_killed_is_replaced_after_its_session(
    bootstrap: str, topic_name: str, wire: Wire, protocol: str
) -> None:
    await fill(bootstrap, topic_name, 40, partitions=4)
    group = new_group()
    await shorten_session(bootstrap, group)
    options = {"group_protocol": protocol, "session_timeout_ms": SHORT_SESSION_MS, "commits": True}
    async with (
        Member(bootstrap, group, [topic_name], client_id=CLIENT_ID, **options) as killed,
        Member(bootstrap, group, [topic_name], **options) as other,
    ):
        await until(lambda: are_shared(4, killed, other) and len(killed.got) + len(other.got) >= 40)
        its_own = other.partitions
        await killed.rest()
        await write(bootstrap, topic_name, range(40, 80), partitions=4)
        wire.sever()
        await until(lambda: other.partitions == {0, 1, 2, 3})
        await until(lambda: set(killed.values) | set(other.values) == set(range(80)))
        assert {n for n in range(40, 80) if n % 4 not in its_own} <= set(other.values)


@pytest.mark.parametrize("protocol", GROUPS)
async def test_who_asks_for_no_records_for_too_long_loses_its_partitions_and_gets_some_again(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    await fill(bootstrap, topic_name, 40, partitions=4)
    group = new_group()
    async with (
        Member(bootstrap, group, [topic_name], group_protocol=protocol, max_poll_interval_ms=1_000) as slow,
        Member(bootstrap, group, [topic_name], group_protocol=protocol, commits=True) as other,
    ):
        await until(lambda: are_shared(4, slow, other) and len(slow.got) + len(other.got) >= 40)
        lost = slow.partitions
        await slow.rest()
        await until(lambda: other.partitions == {0, 1, 2, 3})
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms=1000"):
            await slow.consumer.commit()
        await until(
            lambda: set(other.values) == set(range(40))
        )  # also what the slow one has read and not committed
        slow.go_on()
        await until(lambda: are_shared(4, slow, other))
        assert ("lost", lost) in slow.heard, "others had them meanwhile: nothing to commit, so not revoked"


# ---- names


@pytest.mark.parametrize("protocol", GROUPS)
async def test_of_two_consumers_with_one_instance_id_one_is_fenced(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    """In the classic protocol the newer one stays, in the consumer protocol the one whose session has not ended."""
    await fill(bootstrap, topic_name, 4, partitions=2)
    group = new_group()
    static = {"group_protocol": protocol, "group_instance_id": "kitchen-1"}
    async with Member(bootstrap, group, [topic_name], **static) as first:
        await until(lambda: first.partitions == {0, 1})
        async with Member(bootstrap, group, [topic_name], **static) as second:
            winner, loser = (second, first) if protocol == "classic" else (first, second)
            await until(lambda: loser.failure is not None)
            assert isinstance(loser.failure, FencedInstanceError)
            assert "group.instance.id=kitchen-1" in str(loser.failure)
            await until(lambda: winner.partitions == {0, 1})
            with pytest.raises((FencedInstanceError, CommitFailedError)):
                await loser.consumer.commit({TopicPartition(topic_name, 0): 1})
            await winner.consumer.commit({TopicPartition(topic_name, 0): 1})


@pytest.mark.parametrize("protocol", GROUPS)
async def test_a_static_member_that_comes_back_costs_nobody_anything(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    await fill(bootstrap, topic_name, 40, partitions=4)
    group = new_group()
    static = {"group_protocol": protocol, "group_instance_id": "kitchen-1", "commits": True}
    async with Member(bootstrap, group, [topic_name], **static) as before:
        await until(lambda: before.partitions == {0, 1, 2, 3})  # it leads the group
        async with Member(
            bootstrap, group, [topic_name], group_protocol=protocol, group_instance_id="kitchen-2"
        ) as other:
            await until(lambda: are_shared(4, before, other))
            await until(lambda: len(before.got) + len(other.got) >= 40)
            had, heard = before.partitions, list(other.heard)
            await before.rest()
            await before.consumer.close()
            await write(bootstrap, topic_name, range(40, 48), partitions=4)
            async with Member(bootstrap, group, [topic_name], **static) as again:
                await until(lambda: again.partitions == had)
                await until(lambda: set(again.values) >= {n for n in range(40, 48) if n % 4 in had})
                assert other.heard == heard, "the other one goes on as if nothing had happened"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"session_timeout_ms": 200}, r"session\.timeout\.ms is outside of what the broker allows"),
        (
            {"partition_assignment_strategy": ("sticky",)},
            r"share no assignor.*partition\.assignment\.strategy",
        ),
        ({"group_protocol": "consumer", "group_remote_assignor": "fair"}, r"no such group\.remote\.assignor"),
    ],
)
async def test_a_group_that_does_not_take_a_member_says_which_setting_it_is(
    bootstrap: str, topic_name: str, options: dict[str, Any], words: str
) -> None:
    await fill(bootstrap, topic_name, 4)
    group = new_group()
    async with Member(bootstrap, group, [topic_name], partition_assignment_strategy=("range",)) as first:
        await until(lambda: first.got)
        async with Member(bootstrap, group, [topic_name], **options) as refused:
            await until(lambda: refused.failure is not None)
            assert re.search(words, str(refused.failure)) and group in str(refused.failure)


# ---- commits


def phase_of(member: Member) -> str:
    membership = membership_of(member.consumer)
    assert membership is not None
    return membership.member.phase.value


async def committed(member: Member, tp: TopicPartition) -> int | None:
    found = (await member.consumer.committed([tp]))[tp]
    return None if found is None else found.offset


async def test_a_commit_while_the_group_rebalances_counts_or_says_that_it_does_not(
    bootstrap: str, topic_name: str, wire: Wire
) -> None:
    await fill(bootstrap, topic_name, 40, partitions=3)
    group = new_group()
    options = {"partition_assignment_strategy": ("cooperative-sticky",)}
    async with Member(bootstrap, group, [topic_name], client_id=CLIENT_ID, **options) as leader:
        await until(lambda: leader.partitions == {0, 1, 2})
        async with Member(bootstrap, group, [topic_name], **options) as member:
            await until(lambda: are_shared(3, leader, member))
            tp = TopicPartition(topic_name, min(member.partitions))
            await member.rest()
            async with Member(bootstrap, group, [topic_name], **options) as third:
                # Everybody waits for this member to join again; until then it may commit.
                await until(lambda: phase_of(leader) == phase_of(third) == "joining")
                await member.consumer.commit({tp: 7})
                assert await committed(member, tp) == 7
                # All have joined, and wait for the leader to deal out.
                wire.cut()
                member.go_on()
                await until(lambda: phase_of(member) == "syncing")
                with pytest.raises(CommitFailedError, match="rebalances: nothing was committed"):
                    await member.consumer.commit({tp: 9})
                assert await committed(member, tp) == 7
                wire.mend()
                await until(lambda: are_shared(3, leader, member, third))
                (owner,) = (m for m in (leader, member, third) if tp in m.consumer.assignment())
                await owner.rest()
                await owner.consumer.commit({tp: 9})


@pytest.mark.parametrize("protocol", GROUPS)
async def test_commits_and_rebalances_at_the_same_time_lose_nothing(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    """Whoever has a partition next begins at the last commit that was acknowledged, or before."""
    await fill(bootstrap, topic_name, 1, partitions=3)
    group, done = new_group(), asyncio.Event()
    written = 0

    async def keep_writing() -> None:
        nonlocal written
        async with Producer(bootstrap, linger_ms=0) as producer:
            while not done.is_set():
                written += 1
                await producer.send_and_wait(topic_name, b"%d" % written, partition=written % 3)
                await asyncio.sleep(0.002)  # members must be able to keep up

    options = {"group_protocol": protocol, "commits": True, "max_poll_records": 20}
    writing = asyncio.create_task(keep_writing())
    async with Member(bootstrap, group, [topic_name], **options) as first:
        seen: set[int] = set()
        for _ in range(4):
            await until(lambda: first.got)
            async with Member(bootstrap, group, [topic_name], **options) as guest:
                await until(lambda: guest.partitions)
                await until(lambda: guest.got)
            seen |= set(guest.values)
        done.set()
        await writing
        with suppress(TimeoutError):  # what is missing says more
            await until(lambda: len(seen.union(first.values)) > written, seconds=60)
        assert seen.union(first.values) == set(range(written + 1)), f"{first.failure} {first.refused}"
        for error in first.refused:
            assert "rebalances" in str(error) or "goes on without this member" in str(error)
