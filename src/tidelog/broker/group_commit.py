"""Group commit: one fdatasync serves every request that waits at that moment, off the loop.

Partitions that were written to ask for a sync. When the previous round is done, the next one takes all of them: their
files are synced in a thread, then, back on the loop, their high watermarks move and their waiting producers are answered.
While a round runs, appends go on and gather for the next one, so the cost of a sync is shared by whatever load there is.

A sync that fails is never retried (I7): the kernel may already have dropped the dirty pages. Its log directory goes offline.

Budget: 45 µs of the whole process for each of fifty requests that share a sync (`bench/budgets.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from tidelog.replication.partition import Partition
from tidelog.storage.disk import DiskError
from tidelog.storage.log import FlushTicket

logger = logging.getLogger("tidelog.broker")

SYNCS_AT_ONCE = 6
TICKETS_PER_THREAD_MIN = 4

_Work: TypeAlias = tuple[Partition, FlushTicket]


class _Round:
    """What is synced now: how many threads still work on their share, and what came of the others'."""

    __slots__ = ("done", "shares")

    def __init__(self, shares: int) -> None:
        self.shares = shares
        self.done: list[tuple[_Work, Exception | None]] = []


class GroupCommit:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: ThreadPoolExecutor,
        on_failure: Callable[[Partition, DiskError], None],
    ) -> None:
        self._loop = loop
        self._executor = executor
        self._on_failure = on_failure
        self._wanted: dict[Partition, None] = {}
        self._round: _Round | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.rounds = 0

    def request(self, partition: Partition, /) -> None:
        wanted = self._wanted
        if partition not in wanted:
            wanted[partition] = None
            if self._round is None and len(wanted) == 1:
                # Not at once: what else arrives in this turn of the loop shares the sync.
                self._idle.clear()
                self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self._round is not None:
            return
        wanted, self._wanted = self._wanted, {}
        work: list[_Work] = []
        for partition in wanted:
            if partition.stopped_with is None:
                ticket = partition.log.begin_flush()
                if ticket is not None:
                    work.append((partition, ticket))
        if not work:
            self._idle.set()
            return
        self.rounds += 1
        # Syncs that wait for the disk together are served together: many partitions are synced by several threads.
        size = max(TICKETS_PER_THREAD_MIN, -(-len(work) // SYNCS_AT_ONCE))
        shares = [work[first : first + size] for first in range(0, len(work), size)]
        self._round = _Round(len(shares))
        for share in shares:
            self._executor.submit(self._sync, share)

    def _sync(self, share: list[_Work]) -> None:
        """In a thread. What came of it goes to the loop directly: through futures it would take three turns of a busy loop."""
        outcomes = [_sync_one(ticket) for _, ticket in share]
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            self._loop.call_soon_threadsafe(self._synced, share, outcomes)

    def _synced(self, share: list[_Work], outcomes: list[Exception | None]) -> None:
        assert self._round is not None
        self._round.done += zip(share, outcomes, strict=True)
        self._round.shares -= 1
        if self._round.shares == 0:
            self._end(self._round.done)

    def _end(self, done: list[tuple[_Work, Exception | None]]) -> None:
        self._round = None
        try:
            for (partition, ticket), error in done:
                if error is None:
                    partition.flushed(ticket)
                elif isinstance(error, DiskError):
                    self._on_failure(partition, error)
                else:
                    logger.error("bug: the sync of %r failed", partition, exc_info=error)
        finally:
            if self._wanted:
                self._begin()
            else:
                self._idle.set()

    async def drain(self) -> None:
        """Wait until nothing is left to sync."""
        await self._idle.wait()


def _sync_one(ticket: FlushTicket) -> Exception | None:
    try:
        ticket.run()
    except Exception as error:  # noqa: BLE001 - the loop tells a failing disk from a bug
        return error
    return None
