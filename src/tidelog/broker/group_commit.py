"""Group commit: one fdatasync serves every request that waits at that moment, off the loop.

Partitions that were written to ask for a sync. When the previous round is done, the next one takes all of them: their
files are synced in a thread, then, back on the loop, their high watermarks move and their waiting producers are answered.
While a round runs, appends go on and gather for the next one, so the cost of a sync is shared by whatever load there is.

A sync that fails is never retried (I7): the kernel may already have dropped the dirty pages. Its log directory goes offline.

Budget: 45 µs of the whole process for each of fifty requests that share a sync (`bench/budgets.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from tidelog.replication.partition import Partition
from tidelog.storage.disk import DiskError
from tidelog.storage.log import FlushTicket

logger = logging.getLogger("tidelog.broker")

SYNCS_AT_ONCE = 6
TICKETS_PER_THREAD_MIN = 4


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
        self._round: asyncio.Future[list[list[DiskError | None]]] | None = None
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
        work: list[tuple[Partition, FlushTicket]] = []
        for partition in wanted:
            if partition.stopped_with is None:
                ticket = partition.log.begin_flush()
                if ticket is not None:
                    work.append((partition, ticket))
        if not work:
            self._idle.set()
            return
        self.rounds += 1
        tickets = [ticket for _, ticket in work]
        # Syncs that wait for the disk together are served together: many partitions are synced by several threads.
        size = max(TICKETS_PER_THREAD_MIN, -(-len(tickets) // SYNCS_AT_ONCE))
        syncing = [
            self._loop.run_in_executor(self._executor, _sync_all, tickets[first : first + size])
            for first in range(0, len(tickets), size)
        ]
        self._round = asyncio.gather(*syncing)
        self._round.add_done_callback(lambda future: self._end(work, future))

    def _end(
        self, work: list[tuple[Partition, FlushTicket]], future: asyncio.Future[list[list[DiskError | None]]]
    ) -> None:
        self._round = None
        for (partition, ticket), error in zip(work, chain.from_iterable(future.result()), strict=True):
            if error is not None:
                self._on_failure(partition, error)
            else:
                partition.flushed(ticket)
        if self._wanted:
            self._begin()
        else:
            self._idle.set()

    async def drain(self) -> None:
        """Wait until nothing is left to sync."""
        await self._idle.wait()


def _sync_all(tickets: Sequence[FlushTicket]) -> list[DiskError | None]:
    outcomes: list[DiskError | None] = []
    for ticket in tickets:
        try:
            ticket.run()
        except DiskError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes
