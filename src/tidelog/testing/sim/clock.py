"""Time that moves only when told: the simulation's `Clock`.

The monotonic clock never goes back; the wall clock may be moved in both directions (`jump_wall`), as operators and NTP do. A node's
clock may run fast or slow (`rate`).
"""

from __future__ import annotations


class SimClock:
    __slots__ = ("_elapsed_s", "_wall_ms", "rate")

    def __init__(self, wall_ms: int = 1_700_000_000_000, *, rate: float = 1.0) -> None:
        self._wall_ms = float(wall_ms)
        self._elapsed_s = 0.0
        self.rate = rate

    def wall_ms(self) -> int:
        return int(self._wall_ms)

    def monotonic(self) -> float:
        return self._elapsed_s

    def advance(self, milliseconds: float) -> None:
        """Let this much true time pass; both clocks move by it times `rate`."""
        if milliseconds < 0:
            raise ValueError(f"time cannot advance by {milliseconds} ms; jump_wall moves the wall clock back")
        self._wall_ms += milliseconds * self.rate
        self._elapsed_s += milliseconds * self.rate / 1000

    def jump_wall(self, milliseconds: int) -> None:
        """Move the wall clock only, forwards or backwards."""
        self._wall_ms += milliseconds
