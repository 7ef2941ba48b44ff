"""How the micro-benchmarks time: microseconds of this thread's CPU per call, the best of several rounds.

CPU time and the best round, because the machine is rarely idle: what is to be seen is the cost of the code, not of its neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

ROUNDS = 7
ROUND_SECONDS = 0.05


class Timing(NamedTuple):
    """One operation and what it costs."""

    operation: str
    seconds: float


def best_seconds(operation: Callable[[], object], *, rounds: int = ROUNDS) -> float:
    operation()
    repeats = max(1, int(ROUND_SECONDS / max(_seconds(operation, 3), 1e-7)))
    return min(_seconds(operation, repeats) for _ in range(rounds))


def _seconds(operation: Callable[[], object], repeats: int) -> float:
    began = time.thread_time()
    for _ in range(repeats):
        operation()
    return (time.thread_time() - began) / repeats
