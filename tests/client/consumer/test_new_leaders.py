"""A consumer whose partition gets new leaders, with logs that are shorter than what was read, and leaders that fail before they can be asked (KIP-320)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.client.consumer.scripted_cluster import TP, ScriptedCluster, until
from tidelog.client import Consumer
from tidelog.client.errors import LogTruncatedError
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode

QUICK: dict[str, Any] = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "request_timeout_ms": 500}
OLD = [b"old-%d" % n for n in range(10)]
NEW = [b"new-%d" % n for n in range(10)]


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster() as cluster:
        cluster.write(*OLD)
        yield cluster


def reader(cluster: ScriptedCluster, reset: str = "earliest") -> Consumer:
    consumer = Consumer(cluster.bootstrap, auto_offset_reset=reset, **QUICK)
    consumer.assign([TP])
    consumer.seek(TP, 0)
    return consumer


async def take(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(5):
        while len(found) < count:
            records = await consumer.poll(max_records=count - len(found))
            found += [record.value for record in records]
    return found


async def test_a_leader_that_dies_before_it_was_asked_holds_nobody_up(cluster: ScriptedCluster) -> None:
    async with reader(cluster) as consumer:
        assert await take(consumer, 10) == OLD
        cluster.speechless.add((1, ApiKey.OFFSET_FOR_LEADER_EPOCH))
        cluster.elect(1)
        await until(lambda: (1, ApiKey.OFFSET_FOR_LEADER_EPOCH) in cluster.asked)
        cluster.die(1)
        cluster.elect(2)
        cluster.write(*NEW)
        assert await take(consumer, 10) == NEW


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH])
async def test_a_leader_that_does_not_know_it_yet_is_asked_again(
    cluster: ScriptedCluster, code: ErrorCode
) -> None:
    cluster.codes[ApiKey.OFFSET_FOR_LEADER_EPOCH] = [code]
    async with reader(cluster) as consumer:
        assert await take(consumer, 10) == OLD
        cluster.elect(1)
        cluster.write(*NEW)
        assert await take(consumer, 10) == NEW


@pytest.mark.parametrize("reset", ["earliest", "latest", "by_duration:PT1H"])
async def test_with_a_reset_policy_reading_goes_on_where_the_logs_part(
    cluster: ScriptedCluster, reset: str
) -> None:
    async with reader(cluster, reset) as consumer:
        assert await take(consumer, 10) == OLD
        cluster.elect(1, cut_at=6)
        cluster.write(*NEW)  # the new log is longer than what was read
        assert await take(consumer, 10) == NEW
        assert await consumer.position(TP) == 16


async def test_without_one_the_application_is_told_and_again_until_it_decides(
    cluster: ScriptedCluster,
) -> None:
    async with reader(cluster, "none") as consumer:
        assert await take(consumer, 10) == OLD
        cluster.elect(1, cut_at=6)
        cluster.write(*NEW)
        for _ in range(2):
            with pytest.raises(LogTruncatedError, match=r"orders-0: .* 6, .* 10 ") as cut:
                await take(consumer, 1)
            assert (cut.value.tp, cut.value.offset) == (TP, 6)
        consumer.seek(TP, cut.value.offset)
        assert await take(consumer, 10) == NEW


async def test_what_was_fetched_ahead_of_the_old_log_is_not_given_out(cluster: ScriptedCluster) -> None:
    async with reader(cluster, "none") as behind, reader(cluster, "none") as before:
        assert await take(behind, 8) == OLD[:8]
        assert await take(before, 3) == OLD[:3]
        cluster.elect(1, cut_at=6)
        cluster.write(*NEW)
        await asyncio.sleep(0.3)
        with pytest.raises(LogTruncatedError, match=r"orders-0: .* 6, .* 8 "):
            await take(behind, 1)
        assert await take(before, 13) == OLD[3:6] + NEW


async def test_what_was_fetched_ahead_before_anything_was_read_is_fetched_again(
    cluster: ScriptedCluster,
) -> None:
    async with reader(cluster, "none") as consumer:
        consumer.resume(TP)  # begins to fetch
        await until(lambda: consumer.lag(TP) is not None)
        cluster.elect(1, cut_at=6)
        cluster.write(*NEW)
        await asyncio.sleep(0.3)
        assert await take(consumer, 16) == OLD[:6] + NEW


async def test_an_iteration_does_not_give_out_what_it_holds_of_the_old_log(cluster: ScriptedCluster) -> None:
    async with reader(cluster, "none") as behind, reader(cluster, "none") as before:
        for consumer, count in ((behind, 8), (before, 3)):
            assert [(await anext(consumer)).value for _ in range(count)] == OLD[:count]
        cluster.elect(1, cut_at=6)
        cluster.write(*NEW)
        await asyncio.sleep(0.3)
        with pytest.raises(LogTruncatedError, match=r"orders-0: .* 6, .* 8 "):
            await anext(behind)
        assert [(await anext(before)).value for _ in range(13)] == OLD[3:6] + NEW


async def test_a_leader_that_cannot_tell_is_left_to_the_reset_policy(cluster: ScriptedCluster) -> None:
    cluster.has_forgotten_epochs = True
    async with reader(cluster, "earliest") as first, reader(cluster, "none") as second:
        for consumer in (first, second):
            assert await take(consumer, 10) == OLD
        cluster.elect(1, cut_at=6)
        assert await take(first, 6) == OLD[:6]
        with pytest.raises(LogTruncatedError, match=r"orders-0: .* somewhere, .* 10 ") as cut:
            await take(second, 1)
        assert cut.value.offset == -1


async def test_a_partition_of_which_enough_lies_here_is_validated_too(cluster: ScriptedCluster) -> None:
    """Nothing is asked of its leader: that there is another one shows in the metadata only."""
    cluster.records_at_once = 2
    async with reader(cluster, "none") as consumer:
        assert await take(consumer, 7) == OLD[:7]
        await asyncio.sleep(0.1)
        cluster.elect(1, cut_at=6)
        await consumer.partitions_for(TP.topic)
        consumer.resume(TP)  # looks for something to fetch, and there is nothing
        await asyncio.sleep(0.1)
        with pytest.raises(LogTruncatedError, match=r"orders-0: .* 6, .* 7 "):
            await take(consumer, 1)
