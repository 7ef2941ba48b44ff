"""Producer ids for InitProducerId, from blocks that the controller hands out.

A block is durable in the metadata log before its first id leaves this file; what is left of it at a restart is forgotten.
So ids are unique for the life of the cluster, and giving one out costs no write. The next block is asked for before the last
one is used up. A broker that does not reach its controller says so soon: another one may have ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode

logger = logging.getLogger("tidelog.broker")

PATIENCE_SECONDS: Final = 1.0
"""How long a producer waits for a block. A controller that is there answers within milliseconds, and an election takes less."""
REFILL_SHARE: Final = 0.1
"""So little is left of a block when the next one is asked for."""


class ProducerIdSource:
    def __init__(
        self, allocate_block: Callable[[], Awaitable[range]], *, patience_s: float = PATIENCE_SECONDS
    ) -> None:
        self._allocate_block = allocate_block
        self._patience_s = patience_s
        self._block = range(0)
        self._next_block = range(0)
        self._refill_at = 0
        self._allocating: asyncio.Task[None] | None = None

    async def next(self) -> int:
        """Raises COORDINATOR_LOAD_IN_PROGRESS, which producers answer by asking again, if no block can be had in time."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while (producer_id := self._take()) is None:
            await self._wait_for_block(deadline)
        if len(self._block) <= self._refill_at and not self._next_block:
            self._allocate()
        return producer_id

    def _take(self) -> int | None:
        if not self._block:
            self._block, self._next_block = self._next_block, range(0)
            self._refill_at = int(len(self._block) * REFILL_SHARE)
        if not self._block:
            return None
        producer_id, self._block = self._block[0], self._block[1:]
        return producer_id

    async def _wait_for_block(self, deadline: float) -> None:
        """One block for all who came at the same moment; whoever gives up leaves the request to the others."""
        task = self._allocate()
        patience = deadline - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait([task], timeout=max(patience, 0))
        if not done:
            raise RequestError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"the controller has not handed out producer ids for {self._patience_s:g} s",
            )
        task.result()

    def _allocate(self) -> asyncio.Task[None]:
        if self._allocating is None or self._allocating.done():
            self._allocating = asyncio.create_task(self._fetch_block())
            self._allocating.add_done_callback(_told)
        return self._allocating

    async def _fetch_block(self) -> None:
        self._next_block = await self._allocate_block()


def _told(task: asyncio.Task[None]) -> None:
    """Whoever waits hears of a failure; if nobody does, the next who needs an id tries again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("no producer ids: %s", error)
