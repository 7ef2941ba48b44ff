"""Group commit on its own: rounds are shared, failures reach their partition, and a busy loop is asked for one turn only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from tidelog.broker.threads import Threads, drained
from tidelog.replication.group_commit import SYNCS_AT_ONCE, GroupCommit
from tidelog.replication.partition import Partition
from tidelog.storage.disk import DiskError


class Ticket:
    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


class FakePartition:
    """Stands where a partition would: has something to flush whenever it is asked."""

    stopped_with = None

    def __init__(self, run: Callable[[], None] = lambda: None) -> None:
        self.log = self
        self._run = run
        self.flushes = 0
        self.flushed_in: list[str] = []

    def begin_flush(self) -> Ticket:
        return Ticket(self._run)

    def flushed(self, ticket: Ticket) -> None:
        self.flushes += 1
        self.flushed_in.append(threading.current_thread().name)


def commit(scene: Callable[[GroupCommit, list[Any]], Any]) -> list[Any]:
    """Runs the scene with a group commit; returns the partitions whose sync failed."""
    failed: list[Any] = []

    async def run() -> None:
        with ThreadPoolExecutor(SYNCS_AT_ONCE) as executor:
            group = GroupCommit(
                asyncio.get_running_loop(),
                Threads(asyncio.get_running_loop(), executor),
                lambda partition, error: failed.append((partition, error)),
            )
            await scene(group, failed)
            await asyncio.wait_for(drained(group), 10)

    asyncio.run(run())
    return failed


def test_what_arrives_in_one_turn_shares_a_round() -> None:
    partitions = [FakePartition() for _ in range(40)]

    async def scene(group: GroupCommit, _failed: list[Any]) -> None:
        for partition in partitions:
            group.request(cast(Partition, partition))
            group.request(cast(Partition, partition))
        await drained(group)
        assert group.rounds == 1

    assert commit(scene) == []
    assert [partition.flushes for partition in partitions] == [1] * 40
    assert {name for partition in partitions for name in partition.flushed_in} == {"MainThread"}


def test_what_arrives_during_a_round_is_the_next_one() -> None:
    release = threading.Event()
    first, second = FakePartition(lambda: cast(None, release.wait(10))), FakePartition()

    async def scene(group: GroupCommit, _failed: list[Any]) -> None:
        group.request(cast(Partition, first))
        while group.rounds == 0:
            await asyncio.sleep(0)
        group.request(cast(Partition, second))
        await asyncio.sleep(0.02)
        assert (first.flushes, second.flushes) == (0, 0)
        release.set()
        await drained(group)
        assert group.rounds == 2

    commit(scene)
    assert (first.flushes, second.flushes) == (1, 1)


def test_a_failed_sync_is_its_own_partitions_failure() -> None:
    error = DiskError("fdatasync", "somewhere/0.log", OSError(5, "Input/output error"))

    def fail() -> None:
        raise error

    good, bad = FakePartition(), FakePartition(fail)

    async def scene(group: GroupCommit, _failed: list[Any]) -> None:
        group.request(cast(Partition, bad))
        group.request(cast(Partition, good))

    assert commit(scene) == [(bad, error)]
    assert (good.flushes, bad.flushes) == (1, 0)


def test_a_bug_in_a_sync_is_told_and_stops_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    bad, others = FakePartition(fail), [FakePartition() for _ in range(8)]

    async def scene(group: GroupCommit, _failed: list[Any]) -> None:
        for partition in (bad, *others):
            group.request(cast(Partition, partition))

    assert commit(scene) == []
    assert "bug: the sync of" in caplog.text
    assert [partition.flushes for partition in (bad, *others)] == [0] + [1] * 8


def test_the_end_of_a_sync_waits_for_one_turn_of_the_loop() -> None:
    synced = threading.Event()
    partition = FakePartition(synced.set)
    turns = []

    async def scene(group: GroupCommit, _failed: list[Any]) -> None:
        group.request(cast(Partition, partition))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert synced.wait(10)
        # The loop stood still until the thread was done, as if busy. How often must it turn for the end to be seen?
        for turn in range(10):
            if partition.flushes:
                turns.append(turn)
                break
            await asyncio.sleep(0.002)

    commit(scene)
    assert turns
    assert turns[0] <= 2


@pytest.mark.parametrize("count", [1, 4, 5, 24, 25, 100])
def test_every_ticket_is_run_once_however_they_are_shared(count: int) -> None:
    ran: list[int] = []
    partitions = [FakePartition(lambda number=number: ran.append(number)) for number in range(count)]  # type: ignore[misc]

    async def scene(group: GroupCommit, _failed: list[Any]) -> None:
        for partition in partitions:
            group.request(cast(Partition, partition))

    commit(scene)
    assert sorted(ran) == list(range(count))
    assert all(partition.flushes == 1 for partition in partitions)
