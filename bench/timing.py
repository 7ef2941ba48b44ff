"""How the micro-benchmarks time: CPU of this thread per call, in microseconds of the reference machine.

A shared machine runs at full speed in one second and at half of it in the next, and its CPU time says nothing of that. So a fixed
piece of Python, the yardstick, is timed beside whatever is measured, and the result is scaled to a machine on which the yardstick takes
`YARDSTICK_SECONDS`: the machine of docs/PERFORMANCE.md when nobody else is on it. `machine_speed` says how far this one was from that.
"""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

ROUNDS = 15
ROUND_SECONDS = 0.02
YARDSTICK_SECONDS = 22.5e-6
"""One turn of the yardstick on the reference machine at its best."""

_TURNS = 20
_HEAD = struct.Struct(">hhih")
_FRAME = bytes(range(64))

_speeds: list[float] = []


class Timing(NamedTuple):
    """One operation and what it costs on the reference machine."""

    operation: str
    seconds: float


class _Thing:
    __slots__ = ("first", "second")

    def __init__(self, first: int, second: int) -> None:
        self.first = first
        self.second = second

    def total(self) -> int:
        return self.first + self.second


_THINGS = {number: _Thing(number, 1) for number in range(64)}


def _turn() -> int:
    """What a broker's Python does: fields out of frames, look-ups, calls, small objects, slices."""
    total = 0
    for number in range(40):
        key, version, _, length = _HEAD.unpack_from(_FRAME, number & 31)
        total += _THINGS[number].total()
        made = (key, version, _Thing(total, length), _FRAME[number : number + 8])
    return total + len(made)


class Stopwatch:
    """CPU of this thread between `start` and `stop`, as often as wanted, with the yardstick before and after each."""

    def __init__(self) -> None:
        self._began = 0.0
        self._yardstick = 0.0
        self.seconds = 0.0

    def start(self) -> None:
        self._yardstick = yardstick_seconds()
        self._began = time.thread_time()

    def stop(self) -> float:
        """The seconds since `start`; `seconds` has the sum."""
        spent = self._spent()
        scaled = spent * scale(self._yardstick, yardstick_seconds())
        self.seconds += scaled
        return scaled

    def _spent(self) -> float:
        return time.thread_time() - self._began

    def __enter__(self) -> Stopwatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def yardstick_seconds() -> float:
    """One turn, now."""
    began = time.thread_time()
    for _ in range(_TURNS):
        _turn()
    return (time.thread_time() - began) / _TURNS


def scale(*yardsticks: float) -> float:
    """What CPU seconds are multiplied with, when the yardstick took so long meanwhile."""
    speed = YARDSTICK_SECONDS / statistics.fmean(yardsticks)
    _speeds.append(speed)
    return speed


def machine_speed() -> float:
    """How fast this machine was, in the middle of all measurements, beside the reference machine."""
    return statistics.median(_speeds)


def cost_seconds(operation: Callable[[], object], *, rounds: int = ROUNDS) -> float:
    """Of one call; the middle of several rounds."""
    operation()
    repeats = max(1, int(ROUND_SECONDS / max(_round(operation, 3), 1e-7)))
    return statistics.median(_round(operation, repeats) for _ in range(rounds))


def _round(operation: Callable[[], object], repeats: int) -> float:
    watch = Stopwatch()
    watch.start()
    for _ in range(repeats):
        operation()
    return watch.stop() / repeats
