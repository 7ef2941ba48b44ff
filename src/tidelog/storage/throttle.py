"""A budget of bytes per second for work that may wait: whoever spent says how much, and is told how long to pause."""

from __future__ import annotations

from typing import Final

_SAVED_SECONDS_MAX: Final = 0.25
"""What was not used in this time may be made up for; more would be a burst."""


class Throttle:
    __slots__ = ("_paid_until",)

    def __init__(self) -> None:
        self._paid_until = float("-inf")

    def spend(self, amount: int, *, now: float, per_second: float) -> float:
        """`amount` was spent at `now` (monotonic seconds): the seconds to wait before any more is."""
        start = max(self._paid_until, now - _SAVED_SECONDS_MAX)
        self._paid_until = start + amount / per_second
        return max(0.0, self._paid_until - now)
