"""Who waits for room in the buffer gets it in turn, and a turn that nobody takes goes to the next."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tidelog.client.errors import BufferExhaustedError, ClosedError
from tidelog.client.producer.accumulator import Accumulator
from tidelog.client.producer.room import Room


def room_of(max_block_ms: int = 5_000) -> Room:
    accumulator = Accumulator(batch_size=100, linger_ms=0, buffer_memory=1_000)
    return Room(accumulator, max_block_ms=max_block_ms, hurry=lambda: None)


class Buffer:
    """Has room for so many more."""

    def __init__(self) -> None:
        self.free = 0
        self.taken: list[str] = []

    def append(self, name: str, size: int = 1) -> str | None:
        if self.free < size:
            return None
        self.free -= size
        self.taken.append(name)
        return name


async def waiting(room: Room, buffer: Buffer, name: str, size: int = 1) -> asyncio.Task[str]:
    task = asyncio.create_task(room.wait(lambda: buffer.append(name, size)))
    await asyncio.sleep(0)
    return task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_wait_get_room_in_the_order_in_which_they_came() -> None:
    room, buffer = room_of(), Buffer()
    tasks = [await waiting(room, buffer, name) for name in "abc"]
    buffer.free = 3
    room.tell_next()
    assert await asyncio.gather(*tasks) == ["a", "b", "c"]
    assert buffer.taken == ["a", "b", "c"]


async def test_a_large_one_keeps_its_place_before_small_ones() -> None:
    room, buffer = room_of(), Buffer()
    large = await waiting(room, buffer, "large", 3)
    small = await waiting(room, buffer, "small", 1)
    for _ in range(4):
        buffer.free += 1
        room.tell_next()
        await settle()
    assert buffer.taken == ["large", "small"]
    await asyncio.gather(large, small)


async def test_a_turn_that_is_given_to_somebody_who_gives_up_goes_to_the_next() -> None:
    room, buffer = room_of(), Buffer()
    first = await waiting(room, buffer, "first")
    second = await waiting(room, buffer, "second")
    buffer.free = 1
    room.tell_next()
    first.cancel()  # after its turn was given to it, before it could take it
    with suppress(asyncio.CancelledError):
        await first
    async with asyncio.timeout(1):
        assert await second == "second"


async def test_nobody_waits_for_ever() -> None:
    room, buffer = room_of(max_block_ms=20), Buffer()
    with pytest.raises(BufferExhaustedError, match=r"max\.block\.ms=20.*buffer\.memory=1000"):
        await (await waiting(room, buffer, "a"))
    assert not room.waiters


async def test_the_end_of_the_producer_is_told_to_all() -> None:
    room, buffer = room_of(), Buffer()
    tasks = [await waiting(room, buffer, name) for name in "ab"]
    room.close()
    for task in tasks:
        with pytest.raises(ClosedError):
            await task
