"""Coroutines over ports: each step waits for its own work, and what fails is raised where it is awaited."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.cluster.world import ManualLoop
from tidelog.cluster.steps import Steps, all_offloaded, called_back, next_turn, offloaded


def run(loop: ManualLoop, work: Any) -> list[Any]:
    results: list[Any] = []
    Steps(loop, loop).run(work, results.append)
    return results


def test_work_that_waits_for_nothing_is_done_at_once() -> None:
    async def work() -> int:
        return 7

    assert run(ManualLoop(), work()) == [7]


def test_a_step_goes_on_when_its_work_is_done() -> None:
    loop = ManualLoop()

    async def work() -> int:
        first = await offloaded(lambda: 20)
        await next_turn()
        return first + await offloaded(lambda: 1)

    results = run(loop, work())
    loop.finish()
    assert (results, loop.offloaded) == ([], [])
    loop.pass_time(0)
    loop.finish()
    assert results == [21]


def test_many_at_a_time_come_back_in_their_order() -> None:
    loop = ManualLoop()
    broken = ValueError("broken")

    def fail() -> int:
        raise broken

    async def work() -> list[int | Exception]:
        return await all_offloaded([lambda: 1, fail, lambda: 3])

    results = run(loop, work())
    for index in (2, 0, 0):
        loop.finish(index)
    assert results == [[1, broken, 3]]


def test_what_work_raises_is_raised_by_its_step() -> None:
    loop = ManualLoop()

    async def work() -> str:
        try:
            await offloaded(partial(int, "x"))
        except ValueError:
            return "caught"
        return "not raised"

    results = run(loop, work())
    loop.finish()
    assert results == ["caught"]


def test_what_a_coroutine_raises_is_its_result() -> None:
    async def work() -> None:
        raise KeyError("gone")

    (result,) = run(ManualLoop(), work())
    assert isinstance(result, KeyError)


def test_a_callback_can_be_waited_for() -> None:
    waiting: list[Callable[[], None]] = []

    async def work() -> str:
        await called_back(waiting.append)
        return "called"

    results = run(ManualLoop(), work())
    assert results == []
    waiting[0]()
    assert results == ["called"]
