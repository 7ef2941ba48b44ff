"""Who waits for room in the buffer, in the order in which they came.

One at a time tries: whoever finds room wakes the next, and whoever does not waits on in the first place. Nobody waits longer than `max.block.ms`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from tidelog.client.backoff import Deadline
from tidelog.client.errors import BufferExhaustedError, ClosedError
from tidelog.client.producer.accumulator import Accumulator

T = TypeVar("T")


class Room:
    def __init__(self, accumulator: Accumulator, *, max_block_ms: int, hurry: Callable[[], None]) -> None:
        """`hurry`: somebody waits, send what can be sent."""
        self._accumulator = accumulator
        self._max_block_ms = max_block_ms
        self._hurry = hurry
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self.waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self, append: Callable[[], T | None]) -> T:
        """Try `append` until it finds room for its record or batch."""
        deadline = Deadline(self._loop.time(), self._max_block_ms)
        is_first = False
        while True:
            self._hurry()
            await self._turn(deadline, first=is_first)
            if self._is_closed:
                raise ClosedError("the producer was closed while a record waited for room")
            place = append()
            if place is not None:
                self.tell_next()
                return place
            is_first = True

    async def _turn(self, deadline: Deadline, *, first: bool) -> None:
        waiter = self._loop.create_future()
        if first:
            self.waiters.appendleft(waiter)
        else:
            self.waiters.append(waiter)
        try:
            done, _ = await asyncio.wait({waiter}, timeout=deadline.remaining_ms(self._loop.time()) / 1000)
        except asyncio.CancelledError:
            if waiter.done():
                self.tell_next()  # it was this one's turn, and nobody takes it
            raise
        finally:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
        if not done:
            accumulator = self._accumulator
            raise BufferExhaustedError(
                f"no room for another record within max.block.ms={self._max_block_ms}:"
                f" {accumulator.buffer_memory - accumulator.free} of buffer.memory={accumulator.buffer_memory}"
                " bytes wait for brokers. Send less at a time, raise buffer.memory, or look why brokers are slow"
            )

    def tell_next(self) -> None:
        """The first in line tries; if there is room for it, it tells the next."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def close(self) -> None:
        """Whoever waits hears that there never will be room."""
        self._is_closed = True
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()
