"""One reader under watch: what it may raise, how long it may take, what it may allocate (I53)."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from collections.abc import Callable

SECONDS_MAX = 0.05
"""Of this thread's own CPU: what others do on a busy machine does not count."""
HANG_SECONDS_MAX = 5.0
"""By the clock: whoever waits instead of working is found too."""
RETRIES = 5
"""A slow reader is slow again; a collection of garbage that fell into its time is not."""
FACTOR, FLOOR_BYTES = 60, 512 * 1024
"""Objects weigh more than the bytes they were read from: an empty struct of three bytes is an instance of 80."""


class Watch:
    """Counts outcomes; `run` raises AssertionError, with the frame's description, for what must not happen."""

    def __init__(self, *allowed: type[Exception]) -> None:
        self._allowed = allowed
        self.outcomes: Counter[str] = Counter()
        self.slowest_seconds = 0.0
        self.most_bytes = 0

    def run(self, action: Callable[[], object], describe: Callable[[], str]) -> None:
        seconds = self._once(action, describe)
        for _ in range(RETRIES):
            if seconds <= SECONDS_MAX:
                break
            seconds = min(seconds, self._once(action, describe, again=True))
        self.slowest_seconds = max(self.slowest_seconds, seconds)
        assert seconds <= SECONDS_MAX, f"took {seconds * 1000:.0f} ms: {describe()}"

    def _once(
        self, action: Callable[[], object], describe: Callable[[], str], *, again: bool = False
    ) -> float:
        began, clock = time.thread_time(), time.perf_counter()
        try:
            action()
            outcome = "read"
        except self._allowed as error:
            outcome = type(error).__name__
            assert str(error), f"refused without a word: {describe()}"
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}\n{describe()}") from error
        if not again:
            self.outcomes[outcome] += 1
        assert time.perf_counter() - clock < HANG_SECONDS_MAX, f"hung: {describe()}"
        return time.thread_time() - began

    def run_weighed(
        self, action: Callable[[], object], describe: Callable[[], str], size: int, extra: int = 0
    ) -> None:
        """As `run`, with tracemalloc on: what it allocates at its peak is in proportion to the `size` that it read."""
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        self._once(action, describe)
        _, peak = tracemalloc.get_traced_memory()
        self.most_bytes = max(self.most_bytes, peak - before)
        limit = FACTOR * size + FLOOR_BYTES + extra
        assert peak - before <= limit, f"allocated {peak - before} bytes, {limit} allowed: {describe()}"

    def numbers(self) -> dict[str, float]:
        return {
            **self.outcomes,
            "CPU ms max": self.slowest_seconds * 1000,
            "allocated MB max": self.most_bytes / 1e6,
        }

    def summary(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        return f"{counts}; slowest {self.slowest_seconds * 1000:.1f} ms, most {self.most_bytes / 1e6:.1f} MB"
