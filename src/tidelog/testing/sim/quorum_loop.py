"""One heap of events for a whole simulated quorum, and what each process sees of it: a scheduler, a clock, threads that wait for the disk.

Owns virtual time. Nothing runs but what stands on the heap, one event after the other, in an order that the seed alone decides. A process that is killed never
hears of anything again; one that is paused hears of everything later, at once.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import TypeVar

T = TypeVar("T")
_WALL_MS = 1_700_000_000_000


class Timer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object] | None) -> None:
        self.callback = callback

    def cancel(self) -> None:
        self.callback = None


class Heap:
    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._number = 0
        self._heap: list[tuple[float, int, Timer]] = []

    def after(self, delay: float, callback: Callable[[], object]) -> Timer:
        self._number += 1
        timer = Timer(callback)
        heappush(self._heap, (self.now + max(0.0, delay), self._number, timer))
        return timer

    def step(self, until: float) -> bool:
        """Run the next event before `until`. False: there is none, and it is `until` now."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, timer = heappop(self._heap)
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                self.events += 1
                callback()
                return True
        self.now = max(self.now, until)
        return False


class ProcessLoop:
    """`Scheduler` and `Clock` of one process. Its clock may run a little fast or slow, and its wall clock may be wrong."""

    def __init__(self, heap: Heap, *, rate: float = 1.0, wall_skew_ms: int = 0) -> None:
        self._heap = heap
        self.rate = rate
        self.wall_skew_ms = wall_skew_ms
        self.is_alive = True
        self.is_paused = False
        self._held: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object], /) -> Timer:
        return self.call_later(0.0, callback)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        timer = Timer(callback)
        self._heap.after(delay / self.rate, lambda: self._run(timer))
        return timer

    def monotonic(self) -> float:
        return self._heap.now * self.rate

    def wall_ms(self) -> int:
        return _WALL_MS + int(self._heap.now * 1000) + self.wall_skew_ms

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for callback in held:
            self.call_soon(callback)

    def _run(self, timer: Timer) -> None:
        if not self.is_alive or timer.callback is None:
            return
        if self.is_paused:
            self._held.append(lambda: timer.callback and timer.callback())
        else:
            timer.callback()


class SimThreads:
    """`Offload`: work is done at some moment while the caller waits; a crash may come before it or after it."""

    def __init__(self, heap: Heap, loop: ProcessLoop, rng: Random, *, slow: float) -> None:
        self._heap = heap
        self._loop = loop
        self._rng = rng
        self.slow = slow  # how often a disk takes its time

    def run(self, work: Callable[[], T], done: Callable[[T | Exception], None], /) -> None:
        takes = self._rng.uniform(0.0002, 0.004)
        if self._rng.random() < self.slow:
            takes = self._rng.uniform(0.01, 0.8)
        self._heap.after(takes * self._rng.random(), lambda: self._work(takes, work, done))

    def _work(self, takes: float, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        if not self._loop.is_alive:
            return
        result: T | Exception
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the caller judges it
            result = error
        self._loop.call_later(takes * self._rng.random(), lambda: done(result))
