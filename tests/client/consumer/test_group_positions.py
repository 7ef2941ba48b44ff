"""Where a member stands: positions, lag, committed offsets, and seeking in a group.

Against a broker: ours in-process, or any Kafka named by TIDELOG_TEST_BOOTSTRAP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

import pytest

from tests.client.consumer.members import IMPATIENT, Member, membership_of, until
from tests.client.consumer.test_consumer import GROUPS, fill, new_group, take
from tidelog.client import Committed, Consumer, TopicPartition
from tidelog.client.admin import Admin
from tidelog.client.errors import CommitFailedError

FIRST_MS = 1_700_000_000_000
"""When the first record of `fill` was made; each of the others a millisecond later."""


@pytest.mark.parametrize("protocol", GROUPS)
async def test_position_lag_and_committed_agree_and_are_found_again(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    await fill(bootstrap, topic_name, 30)
    group, tp = new_group(), TopicPartition(topic_name, 0)
    options = {**IMPATIENT, "group_id": group, "group_protocol": protocol}
    async with Consumer(bootstrap, **options, max_poll_records=10) as consumer:
        consumer.subscribe([topic_name])
        assert await consumer.committed([tp]) == {tp: None}
        await take(consumer, 10)
        assert (await consumer.position(tp), consumer.lag(tp)) == (10, 20)
        await consumer.commit()
        await take(consumer, 10)
        assert (await consumer.position(tp), consumer.lag(tp)) == (20, 10)
        assert (await consumer.committed([tp]))[tp] == Committed(10, 0, "")
    async with Consumer(bootstrap, **options) as again:
        again.subscribe([topic_name])
        assert (await take(again, 20))[0] == b"10"
        assert again.lag(tp) == 0


async def test_seeking_in_a_group_and_what_is_committed_then(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 30)
    group, tp = new_group(), TopicPartition(topic_name, 0)
    async with Consumer(bootstrap, **IMPATIENT, group_id=group) as consumer:
        consumer.subscribe([topic_name])
        await take(consumer, 30)
        found = await consumer.offsets_for_times({tp: FIRST_MS + 12})
        assert found[tp] is not None and (found[tp].offset, found[tp].timestamp) == (12, FIRST_MS + 12)
        assert await consumer.offsets_for_times({tp: FIRST_MS + 99}) == {tp: None}
        consumer.seek_to_time({tp: FIRST_MS + 12})
        assert await consumer.position(tp) == 12
        (record,) = await consumer.poll(timeout_ms=5_000, max_records=1)
        assert record.value == b"12"
        await consumer.commit()
        assert (await consumer.committed([tp]))[tp] == Committed(13, 0, "")
        assert consumer.lag(tp) == 17


async def test_a_listener_may_seek_when_partitions_come(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 30)

    class FromTheMiddle:
        async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            for tp in partitions:
                consumer.seek(tp, 15)
                assert await consumer.position(tp) == 15

    async with Consumer(bootstrap, **IMPATIENT, group_id=new_group()) as consumer:
        consumer.subscribe([topic_name], listener=FromTheMiddle())
        assert (await take(consumer, 15))[0] == b"15"


@pytest.mark.parametrize("protocol", GROUPS)
async def test_a_group_that_was_nowhere_begins_by_duration(
    bootstrap: str, topic_name: str, protocol: str
) -> None:
    await fill(bootstrap, topic_name, 30)  # made years ago
    days = int((time.time() - FIRST_MS / 1000) / 86_400)
    for reset, first in ((f"by_duration:P{days + 1}D", 0), (f"by_duration:P{days - 1}DT1H", 30)):
        options = {**IMPATIENT, "auto_offset_reset": reset, "group_protocol": protocol}
        async with Consumer(bootstrap, **options, group_id=new_group()) as consumer:
            consumer.subscribe([topic_name])
            tp = TopicPartition(topic_name, 0)
            async with asyncio.timeout(20):
                while tp not in consumer.assignment():
                    await consumer.poll(timeout_ms=50, max_records=1)
            assert await consumer.position(tp) - first in (0, 1)


async def test_a_commit_in_the_background_says_what_became_of_it(bootstrap: str, topic_name: str) -> None:
    await fill(bootstrap, topic_name, 30)
    tp, heard = TopicPartition(topic_name, 0), list[tuple[int, BaseException | None]]()

    async with Member(bootstrap, new_group(), [topic_name], max_poll_interval_ms=500) as member:
        await until(lambda: len(member.got) == 30)
        await member.rest()

        def note(offsets: object, error: BaseException | None) -> None:
            heard.append((offsets[tp].offset, error))  # type: ignore[index]

        member.consumer.commit_async(None, note)
        await until(lambda: heard)
        assert heard == [(30, None)]
        await until(lambda: not membership_of(member.consumer).member.is_member)  # type: ignore[union-attr]
        member.consumer.commit_async({tp: 7}, note)
        await until(lambda: len(heard) == 2)
        assert heard[1][0] == 7 and isinstance(heard[1][1], CommitFailedError)
        assert "max.poll.interval.ms=500" in str(heard[1][1])


async def test_what_others_have_committed_meanwhile_is_not_taken_for_ones_own(
    bootstrap: str, topic_name: str
) -> None:
    """A commit by itself is left out where nothing has changed, but somebody else may have sent the group back."""
    await fill(bootstrap, topic_name, 30)
    group, tp = new_group(), TopicPartition(topic_name, 0)
    options = {**IMPATIENT, "enable_auto_commit": True, "group_id": group}
    async with Consumer(bootstrap, **options) as first:
        first.subscribe([topic_name])
        await take(first, 30)
        first.unsubscribe()
        await until(lambda: membership_of(first) is None)
        async with Admin(bootstrap) as admin:
            await admin.alter_group_offsets(group, {tp: 10})
        first.subscribe([topic_name])
        assert (await take(first, 20))[0] == b"10"
    assert (await Consumer(bootstrap, group_id=group).committed([tp]))[tp] == Committed(30, 0, "")
