"""Log lines that strangers can cause, at most so many per second: a flood of bad frames must not become a flood of log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LINES_PER_SECOND = 20


class LimitedLog:
    def __init__(
        self,
        logger: logging.Logger,
        *,
        lines_per_second: int = LINES_PER_SECOND,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self.lines_per_second = lines_per_second
        self._now = now
        self._window = -1.0
        self._written = 0
        self._left_out = 0

    def warning(self, message: str, *values: object) -> None:
        self._write(logging.WARNING, message, values)

    def error(self, message: str, *values: object) -> None:
        self._write(logging.ERROR, message, values)

    def _write(self, level: int, message: str, values: tuple[object, ...]) -> None:
        second = self._now() // 1
        if second != self._window:
            if self._left_out:
                self._logger.warning("%d more lines like the last ones were left out", self._left_out)
            self._window, self._written, self._left_out = second, 0, 0
        if self._written < self.lines_per_second:
            self._written += 1
            self._logger.log(level, message, *values)
        else:
            self._left_out += 1
