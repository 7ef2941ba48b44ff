"""Blocks of producer ids: each id once, the next block in time, and a soon answer if there is none."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.broker.producer_ids import ProducerIdSource
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode

BLOCK = 20


class Blocks:
    """A controller that hands out blocks, when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.failure: Exception | None = None

    async def allocate(self) -> range:
        self.asked += 1
        first = self.asked * 1000
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        return range(first, first + BLOCK)


async def test_ids_are_given_once_whoever_comes_at_the_same_moment() -> None:
    blocks = Blocks()
    source = ProducerIdSource(blocks.allocate)
    first = await asyncio.gather(*(source.next() for _ in range(BLOCK // 2)))
    assert sorted(first) == list(range(1000, 1000 + BLOCK // 2)) and blocks.asked == 1
    rest = await asyncio.gather(*(source.next() for _ in range(5 * BLOCK)))
    assert len({*first, *rest}) == len(first) + len(rest)


async def test_the_next_block_is_asked_for_before_the_last_is_used_up() -> None:
    blocks = Blocks()
    source = ProducerIdSource(blocks.allocate)
    given = [await source.next() for _ in range(BLOCK - 1)]
    await asyncio.sleep(0)
    assert blocks.asked == 2
    blocks.answers.clear()  # what is there now must do
    given += [await source.next() for _ in range(BLOCK)]
    assert len(set(given)) == len(given)


async def test_a_controller_that_cannot_be_reached_is_told_of_soon() -> None:
    blocks = Blocks()
    blocks.answers.clear()
    source = ProducerIdSource(blocks.allocate, patience_s=0.05)
    for _ in range(2):
        with pytest.raises(RequestError) as told:
            await source.next()
        assert told.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert blocks.asked == 1, "one request is under way, and is not repeated"
    blocks.answers.set()
    assert await source.next() == 1000


async def test_a_failure_is_told_and_the_next_one_tries_again() -> None:
    blocks = Blocks()
    blocks.failure = RequestError(ErrorCode.BROKER_ID_NOT_REGISTERED, "who are you")
    source = ProducerIdSource(blocks.allocate)
    with pytest.raises(RequestError) as told:
        await source.next()
    assert told.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED
    blocks.failure = None
    assert await source.next() == 2000
