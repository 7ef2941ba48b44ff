"""How long to wait before the next try, and when to stop trying. Pure: time and chance are arguments."""

from __future__ import annotations

from tidelog.ports import Rng


def pause_ms(rng: Rng, attempts: int, *, first_ms: int, max_ms: int) -> float:
    """Exponential with jitter, under Kafka's names: `retry.backoff.ms` doubling up to `retry.backoff.max.ms`, ±20 %."""
    return min(max_ms, first_ms << min(attempts, 30)) * (0.8 + 0.4 * rng.random())


class Backoff:
    """`pause_ms` with a memory of how often it was asked."""

    __slots__ = ("_attempts", "_first_ms", "_max_ms", "_rng")

    def __init__(self, rng: Rng, *, first_ms: int = 100, max_ms: int = 1000) -> None:
        self._rng = rng
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._attempts = 0

    def next_seconds(self) -> float:
        pause = pause_ms(self._rng, self._attempts, first_ms=self._first_ms, max_ms=self._max_ms)
        self._attempts += 1
        return pause / 1000

    def reset(self) -> None:
        self._attempts = 0


class Deadline:
    """A point in monotonic time."""

    __slots__ = ("at", "budget_ms")

    def __init__(self, now: float, budget_ms: int) -> None:
        self.budget_ms = budget_ms
        self.at = now + budget_ms / 1000

    def remaining_ms(self, now: float) -> int:
        return max(0, int((self.at - now) * 1000))

    def passed(self, now: float) -> bool:
        return now >= self.at
