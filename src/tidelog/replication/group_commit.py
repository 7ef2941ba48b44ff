"""Group commit: one fdatasync serves every request that waits at that moment, off the loop.

Partitions that were written to ask for a sync. When the previous round is done, the next one takes all of them: their
files are synced in a thread, then, back on the loop, their high watermarks move and their waiting producers are answered.
While a round runs, appends go on and gather for the next one, so the cost of a sync is shared by whatever load there is.

A sync that fails is never retried (I7): the kernel may already have dropped the dirty pages. Its log directory goes offline.

Budget: 45 µs of the whole process for each of fifty requests that share a sync (`bench/budgets.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from tidelog.ports import Offload, Scheduler
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
        scheduler: Scheduler,
        offload: Offload,
        on_failure: Callable[[Partition, DiskError], None],
    ) -> None:
        self._scheduler = scheduler
        self._offload = offload
        self._on_failure = on_failure
        self._wanted: dict[Partition, None] = {}
        self._round: _Round | None = None
        self._is_idle = True
        self._drained: list[Callable[[], None]] = []
        self.rounds = 0

    def request(self, partition: Partition, /) -> None:
        wanted = self._wanted
        if partition not in wanted:
            wanted[partition] = None
            if self._round is None and len(wanted) == 1:
                # Not at once: what else arrives in this turn of the loop shares the sync.
                self._is_idle = False
                self._scheduler.call_soon(self._begin)

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
            self._rest()
            return
        self.rounds += 1
        # Syncs that wait for the disk together are served together: many partitions are synced by several threads.
        size = max(TICKETS_PER_THREAD_MIN, -(-len(work) // SYNCS_AT_ONCE))
        shares = [work[first : first + size] for first in range(0, len(work), size)]
        self._round = _Round(len(shares))
        for share in shares:
            self._offload.run(partial(_sync_all, share), partial(self._synced, share))

    def _synced(self, share: list[_Work], outcomes: list[Exception | None] | Exception) -> None:
        assert self._round is not None
        assert not isinstance(outcomes, Exception)
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
                self._rest()

    def _rest(self) -> None:
        self._is_idle = True
        drained, self._drained = self._drained, []
        for done in drained:
            done()

    def when_drained(self, done: Callable[[], None]) -> None:
        """Call `done` once nothing is left to sync, perhaps at once."""
        if self._is_idle:
            done()
        else:
            self._drained.append(done)


def _sync_all(share: list[_Work]) -> list[Exception | None]:
    """In a thread."""
    return [_sync_one(ticket) for _, ticket in share]


def _sync_one(ticket: FlushTicket) -> Exception | None:
    try:
        ticket.run()
    except Exception as error:  # noqa: BLE001 - the loop tells a failing disk from a bug
        return error
    return None
