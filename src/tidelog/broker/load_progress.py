"""What opening the logs found, told in the broker's log: each finding at once, and how far it is while it takes long.

Ten thousand recovered logs are not worth ten thousand lines. A log gets lines of its own where something was cut, damaged or rebuilt; the others
are counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidelog.storage.log import Log

logger = logging.getLogger("tidelog.broker")

EVERY_SECONDS = 2.0


class LoadProgress:
    """Called with each opened log, in whichever thread opened it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began = now()
        self._due = self._began + EVERY_SECONDS
        self._recovered = 0
        self._batches = 0
        self._bytes = 0

    def __call__(self, done: int, total: int, log: Log) -> None:
        report = log.recovery
        if report.batches_checked:
            self._recovered += 1
            self._batches += report.batches_checked
            self._bytes += report.bytes_checked
        for level, findings in ((logging.ERROR, report.damages), (logging.WARNING, report.cuts)):
            for finding in findings:
                logger.log(level, "%s", finding)
        for name in report.rebuilt:
            logger.info("%s/%s was rebuilt from the log", report.directory, name)
        if self._now() >= self._due:
            self._due = self._now() + EVERY_SECONDS
            logger.info(
                "opened %d of %d logs in %.0f s; %d checked so far, %.1f MB of batches",
                done, total, self._now() - self._began, self._recovered, self._bytes / 1e6,
            )  # fmt: skip

    def sum_up(self, logs: int) -> None:
        """After the last one."""
        seconds = self._now() - self._began
        if self._recovered:
            logger.info(
                "recovered %d of %d logs after an unclean stop: %d batches checked, %.1f MB in %.1f s",
                self._recovered, logs, self._batches, self._bytes / 1e6, seconds,
            )  # fmt: skip
        elif seconds >= EVERY_SECONDS:
            logger.info("opened %d logs in %.1f s", logs, seconds)
