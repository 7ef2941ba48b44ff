"""One heap of events, and processes that live on it: the simulation's loop, clock and scheduler.

Everything happens at a time and in an order that the heap decides, so the same seed gives the same run (I59). A process is what can die,
hang and come back: what was scheduled by one that is dead never happens, what falls due while it is paused happens when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from random import Random
from typing import Final, TypeVar

T = TypeVar("T")

WALL_MS: Final = 1_700_000_000_000


class Event:
    __slots__ = ("action", "at", "is_held", "process")

    def __init__(self, at: float, action: Callable[[], object], process: Process | None) -> None:
        self.at = at
        self.action: Callable[[], object] | None = action
        self.process = process
        self.is_held = False
        """Its process was paused when it fell due."""

    def cancel(self) -> None:
        self.action = None


class EventHeap:
    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.touched: list[Process] = []
        """In which something has happened since somebody last looked, who empties this."""
        self._heap: list[tuple[float, int, Event]] = []
        self._sequence = 0

    def at(self, time: float, action: Callable[[], object], process: Process | None = None) -> Event:
        event = Event(time if time > self.now else self.now, action, process)
        self._sequence += 1
        heappush(self._heap, (event.at, self._sequence, event))
        return event

    def after(self, delay: float, action: Callable[[], object], process: Process | None = None) -> Event:
        return self.at(self.now + delay, action, process)

    def _push(self, event: Event) -> None:
        self._sequence += 1
        heappush(self._heap, (event.at, self._sequence, event))

    def resume(self, process: Process) -> None:
        """It goes on now, earlier than planned: so does what fell due meanwhile, in its order."""
        process.paused_until = self.now
        for index, (_, sequence, event) in enumerate(self._heap):
            if event.process is process and event.is_held:
                event.at = self.now
                self._heap[index] = (self.now, sequence, event)
        heapify(self._heap)

    def step(self, until: float) -> bool:
        """The next event, if there is one before `until`. False: there is none, and it is `until` now."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            event = heappop(heap)[2]
            action = event.action
            if action is None:
                continue
            process = event.process
            if process is not None and not process.alive:
                continue
            if process is not None:
                if process.paused_until > event.at:
                    event.at, event.is_held = process.paused_until, True
                    self._push(event)
                    continue
                if not process.touched:
                    process.touched = True
                    self.touched.append(process)
            self.now = event.at
            self.steps += 1
            action()
            return True
        self.now = until
        return False


class Process:
    """Implements `Scheduler` and `Clock`. `rate`: how fast its clocks run; `wall_skew_ms`: how wrong its wall clock is; `is_watched`: somebody wants to see it in `touched` of the heap."""

    def __init__(
        self, heap: EventHeap, *, rate: float = 1.0, wall_skew_ms: int = 0, is_watched: bool = True
    ) -> None:
        self.heap = heap
        self.alive = True
        self.paused_until = 0.0
        self.touched = not is_watched
        self.rate = rate
        self.wall_skew_ms = wall_skew_ms

    @property
    def is_alive(self) -> bool:
        return self.alive

    @property
    def is_paused(self) -> bool:
        return self.paused_until > self.heap.now

    def touch(self) -> None:
        """Something happens in it: whoever watches the world finds it in `touched` of the heap."""
        if not self.touched:
            self.touched = True
            self.heap.touched.append(self)

    def kill(self) -> None:
        self.alive = False

    def run(self, action: Callable[[], object]) -> None:
        """Something comes in from outside: it happens now, when the process goes on, or never."""
        if not self.alive:
            return
        if self.paused_until > self.heap.now:
            self.heap.at(self.paused_until, action, self).is_held = True
            return
        if not self.touched:
            self.touch()
        action()

    # ---- Scheduler

    def call_soon(self, callback: Callable[[], object], /) -> Event:
        return self.heap.after(0.0, callback, self)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Event:
        heap = self.heap
        return heap.at(heap.now + delay / self.rate, callback, self)

    # ---- Clock

    def monotonic(self) -> float:
        return self.heap.now * self.rate

    def wall_ms(self) -> int:
        return WALL_MS + self.wall_skew_ms + int(self.heap.now * 1000 * self.rate)


class SimThreads:
    """Implements `Offload`: the work is done at some moment while the caller waits; a crash may come before it, or between it and the answer."""

    def __init__(
        self, process: Process, rng: Random, *, takes_s: float, slow: float, slow_s: float = 0.8
    ) -> None:
        """`slow`: how often a disk takes up to `slow_s` instead of up to `takes_s`."""
        self._process = process
        self._rng = rng
        self.takes_s = takes_s
        self.slow = slow
        self.slow_s = slow_s

    def run(self, work: Callable[[], T], done: Callable[[T | Exception], None], /) -> None:
        rng = self._rng
        takes = rng.random() * (self.slow_s if rng.random() < self.slow else self.takes_s)
        if rng.random() < 0.5:
            result = _outcome(work)
            self._process.call_later(takes, lambda: done(result))
        else:
            self._process.call_later(takes, lambda: done(_outcome(work)))


def _outcome(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - the caller judges it
        return error
