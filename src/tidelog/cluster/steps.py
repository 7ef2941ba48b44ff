"""Work in several steps that waits for the disk in between: a coroutine that needs no event loop but the two ports.

    async def make(…) -> Log:
        log = await offloaded(creation.run)     # in a thread
        …                                       # on the loop again

    Steps(offload, scheduler).run(make(…), done)

It reads from top to bottom, and runs under asyncio and in simulation alike. Only what is in this file may be awaited in it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from tidelog.ports import Offload, Scheduler

T = TypeVar("T")
Done: TypeAlias = Callable[[Any], None]


class _Wanted:
    """What a coroutine waits for: all that `begin` sets going, each with a callback of its own."""

    __slots__ = ("begin",)

    def __init__(self, begin: Sequence[Callable[[Steps, Done], None]]) -> None:
        self.begin = begin

    def __await__(self) -> Generator[_Wanted, list[Any], list[Any]]:
        return (yield self)


async def offloaded(work: Callable[[], T]) -> T:
    (result,) = await all_offloaded([work])
    if isinstance(result, Exception):
        raise result
    return result


async def all_offloaded(works: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """All of them at the same time; what one raises stands in its place."""

    def begin(work: Callable[[], T], steps: Steps, done: Done) -> None:
        steps.offload.run(work, done)

    return await _Wanted([partial(begin, work) for work in works]) if works else []


async def called_back(call: Callable[[Callable[[], None]], None]) -> None:
    """Wait until `call` calls what it is given."""
    await _Wanted([lambda _steps, done: call(lambda: done(None))])


async def next_turn() -> None:
    """Let others be served."""
    await _Wanted([lambda steps, done: _later(steps, done)])


def _later(steps: Steps, done: Done) -> None:
    steps.scheduler.call_soon(lambda: done(None))


class Steps:
    def __init__(self, offload: Offload, scheduler: Scheduler) -> None:
        self.offload = offload
        self.scheduler = scheduler

    def run(self, work: Coroutine[Any, Any, T], done: Callable[[T | Exception], None]) -> None:
        """`done` with what the coroutine returns or raises, perhaps before this returns."""
        self._go_on(work, done, None)

    def _go_on(
        self,
        work: Coroutine[Any, Any, T],
        done: Callable[[T | Exception], None],
        results: list[Any] | None,
    ) -> None:
        try:
            wanted: _Wanted = work.send(results)
        except StopIteration as end:
            done(end.value)
        except Exception as error:  # noqa: BLE001 - whoever runs it knows what it means
            done(error)
        else:
            self._wait_for(wanted, partial(self._go_on, work, done))

    def _wait_for(self, wanted: _Wanted, go_on: Callable[[list[Any]], None]) -> None:
        results: list[Any] = [None] * len(wanted.begin)
        missing = len(results)

        def finished(index: int, result: Any) -> None:
            nonlocal missing
            results[index] = result
            missing -= 1
            if missing == 0:
                go_on(results)

        for index, begin in enumerate(wanted.begin):
            begin(self, partial(finished, index))
