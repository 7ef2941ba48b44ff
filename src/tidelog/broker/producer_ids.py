"""Producer ids for InitProducerId, from blocks that the controller hands out.

A block is durable in the metadata log before its first id leaves this file; what is left of it at a restart is forgotten.
So ids are unique for the life of the cluster, and giving one out costs no write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIdSource:
    def __init__(self, allocate_block: Callable[[], Awaitable[range]]) -> None:
        self._allocate_block = allocate_block
        self._ids = iter(range(0))
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        producer_id = next(self._ids, None)
        if producer_id is not None:
            return producer_id
        async with self._lock:  # one block for all who came at the same moment
            producer_id = next(self._ids, None)
            while producer_id is None:
                self._ids = iter(await self._allocate_block())
                producer_id = next(self._ids, None)
        return producer_id
