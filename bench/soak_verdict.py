"""Whether memory is flat: judged from samples of the resident memory, one per second. Pure; prints nothing.

The line through the samples is the median of the slopes between any two of them (Theil and Sen): a spike, or a few, does not tilt
it, a steady climb does.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

MB = 1e6
BIN_SECONDS = 10
BYTES_PER_SECOND_MAX = 1 * MB / 600
"""A megabyte in ten minutes …"""
SHARE_MAX = 0.02
"""… or this share of the memory over the judged time, whichever is more."""
PLOT_ROWS = 12


class Sample(NamedTuple):
    second: float
    rss_bytes: int
    open_files: int


class Verdict(NamedTuple):
    median_bytes: float
    peak_bytes: float
    judged_seconds: float
    grown_bytes: float
    """Over the judged time, by the line."""
    allowed_bytes: float

    @property
    def is_flat(self) -> bool:
        return self.grown_bytes <= self.allowed_bytes


def judge(samples: list[Sample], *, warm_up_seconds: float, slack_bytes: float = 0.0) -> Verdict:
    """The samples after the warm-up. `slack_bytes` is allowed on top: for a run too short to judge a slope by."""
    judged = [sample for sample in samples if sample.second >= warm_up_seconds]
    points = _binned(judged)
    if len(points) < 3:
        raise ValueError(f"{len(judged)} samples after the warm-up are too few to judge by")
    span = judged[-1].second - judged[0].second
    median = statistics.median(sample.rss_bytes for sample in judged)
    allowed = max(BYTES_PER_SECOND_MAX * span, SHARE_MAX * median) + slack_bytes
    peak = max(sample.rss_bytes for sample in samples)
    return Verdict(median, peak, span, slope(points) * span, allowed)


def _binned(samples: list[Sample]) -> list[tuple[float, float]]:
    """(second, median) of every ten seconds; of every second when there are few."""
    width = BIN_SECONDS if len(samples) >= 12 * BIN_SECONDS else 1
    bins: dict[int, list[int]] = {}
    for sample in samples:
        bins.setdefault(int(sample.second // width), []).append(sample.rss_bytes)
    return [((number + 0.5) * width, statistics.median(values)) for number, values in bins.items()]


def slope(points: list[tuple[float, float]]) -> float:
    """Bytes per second."""
    return statistics.median(
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for position, earlier in enumerate(points)
        for later in points[position + 1 :]
    )


class Minute(NamedTuple):
    minute: int
    median_bytes: float
    peak_bytes: int
    open_files: int


def minutes(samples: list[Sample]) -> list[Minute]:
    bins: dict[int, list[Sample]] = {}
    for sample in samples:
        bins.setdefault(int(sample.second // 60), []).append(sample)
    return [
        Minute(
            number + 1,
            statistics.median(sample.rss_bytes for sample in found),
            max(sample.rss_bytes for sample in found),
            max(sample.open_files for sample in found),
        )
        for number, found in sorted(bins.items())
    ]


def plot(samples: list[Sample], *, width_max: int = 100) -> str:
    """Resident memory over time in characters; each column is the median of its time."""
    width = min(width_max, len(samples) // 2)
    columns: dict[int, list[int]] = {}
    last = max(sample.second for sample in samples) or 1.0
    for sample in samples:
        columns.setdefault(int(sample.second / last * (width - 1)), []).append(sample.rss_bytes)
    heights = {column: statistics.median(values) for column, values in columns.items()}
    top = max(heights.values())
    lines = []
    for row in range(PLOT_ROWS, 0, -1):
        level = top * row / PLOT_ROWS
        marks = "".join(
            "█" if heights.get(column, 0) >= level - top / PLOT_ROWS / 2 else " " for column in range(width)
        )
        lines.append(f"{level / MB:7.0f} MB ┤{marks}")
    lines.append(" " * 11 + "└" + "─" * width)
    lines.append(" " * 12 + "0" + f"{last / 60:.1f} min".rjust(width - 1))
    return "\n".join(lines)
