"""Windows of event time: how they are written, which ones a moment belongs to, and how many rows came after theirs were closed.

Spark leaves late rows out and counts what is left of them after they were summed up; here every row counts. A row is late when all of its windows are closed, and partly late when
some are: a sliding window's neighbours close one after the other. Pure, but for the columns, which are Spark's.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

BINS_MAX: Final = 20_000
"""Ends of windows among the rows of one batch. With more, neighbours are merged and counts may be off."""
_DURATION: Final = re.compile(r"(\d+) (millisecond|second|minute|hour|day|week)s?")
_MS: Final = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}  # fmt: skip


def duration_ms(text: str) -> int:
    """ValueError: it is none."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be a duration such as 30 seconds, 5 minutes or 1 hour, not {text!r}")
    return int(match[1]) * _MS[match[2]]


@dataclass(frozen=True, slots=True)
class Windows:
    size_ms: int
    slide_ms: int
    """As long as the size: each moment is in one window."""

    def ends_ms(self, moment_us: int) -> tuple[int, int]:
        """The ends of the first and the last window that a moment is in."""
        last_start = moment_us // (self.slide_ms * 1000) * self.slide_ms
        earlier = (last_start * 1000 + self.size_ms * 1000 - moment_us - 1) // (self.slide_ms * 1000)
        return last_start - earlier * self.slide_ms + self.size_ms, last_start + self.size_ms

    def ends(self, moment: Column) -> tuple[Column, Column]:
        """The same of a timestamp."""
        from pyspark.sql import functions as F

        moment_us = F.unix_micros(moment)
        slide_us, size_us = self.slide_ms * 1000, self.size_ms * 1000
        into = F.pmod(moment_us, F.lit(slide_us))
        last_end = moment_us - into + size_us
        # From the last window on, each one before ends a slide earlier, as long as it still ends behind the moment.
        left = F.lit(size_us) - into - 1
        first_end = last_end - (left - F.pmod(left, F.lit(slide_us)))
        return (first_end / 1000).cast("bigint"), (last_end / 1000).cast("bigint")


def histogram(ends_ms: Column) -> Column:
    """How many rows have which end, exactly, as JSON."""
    from pyspark.sql import functions as F

    return F.to_json(F.histogram_numeric(ends_ms.cast("double"), F.lit(BINS_MAX)))


@dataclass(frozen=True, slots=True)
class Late:
    rows: int
    """All windows of theirs were closed: they are nowhere in the result."""
    partly: int
    """Some were."""
    is_exact: bool = True


def late(watermark_ms: int, first_ends: str | None, last_ends: str | None) -> Late:
    """From histograms of a batch. A window is closed when it ends at or before the watermark."""
    some, is_first_exact = _behind(watermark_ms, first_ends)
    every, is_last_exact = _behind(watermark_ms, last_ends)
    return Late(every, some - every, is_first_exact and is_last_exact)


def _behind(watermark_ms: int, text: str | None) -> tuple[int, bool]:
    bins = json.loads(text) if text else []
    behind = sum(round(each["y"]) for each in bins if each["x"] <= watermark_ms)
    return behind, len(bins) < BINS_MAX
