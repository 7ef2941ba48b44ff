"""What `explain topic` says of a topic's segments: rows for a table, and the reasons below it. Pure: the broker was asked elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from tidelog.cli.group_timeline import span
from tidelog.cli.output import human_bytes
from tidelog.client.segments import PartitionSegments, SegmentInfo

COLUMNS = ("offsets", "size", "newest record", "age", "state", "until")
NUMBERS = ("size", "age")
ROWS_MAX = 40
"""Of a partition with more segments, the middle of each stretch with the same state is left out."""


def headline(topic: str, partitions: Sequence[PartitionSegments]) -> str:
    segments = [segment for each in partitions for segment in each.segments]
    parts = [f"topic {topic}"]
    parts.append(f"cleanup.policy={', '.join(sorted({each.cleanup_policy for each in partitions}))}")
    parts.append(f"{_counted(len(partitions), 'partition')}, {_counted(len(segments), 'segment')}")
    parts.append(human_bytes(sum(segment.size for segment in segments)))
    return "  ".join(parts)


def partition_line(found: PartitionSegments) -> str:
    line = f"partition {found.partition}: offsets {found.log_start_offset} to {found.log_end_offset}"
    if found.high_watermark < found.log_end_offset:
        line += f", committed up to {found.high_watermark}"
    if found.last_stable_offset < found.high_watermark:
        line += f", stable up to {found.last_stable_offset}"
    return line + f"; {human_bytes(sum(segment.size for segment in found.segments))}"


def rows(found: PartitionSegments, *, every: bool) -> Iterator[tuple[object, ...]]:
    stretches = [list(stretch) for _, stretch in groupby(found.segments, lambda each: each.fate)]
    shorten = not every and len(found.segments) > ROWS_MAX
    for stretch in stretches:
        if shorten and len(stretch) > 3:
            between = stretch[1:-1]
            yield _row(stretch[0], found.now_ms)
            size = human_bytes(sum(segment.size for segment in between))
            yield f"… {len(between)} more", size, "", "", stretch[0].fate, ""
            yield _row(stretch[-1], found.now_ms)
        else:
            yield from (_row(segment, found.now_ms) for segment in stretch)


def _row(segment: SegmentInfo, now_ms: int) -> tuple[object, ...]:
    newest = None if segment.newest_timestamp is None else moment(segment.newest_timestamp)
    until = None
    if segment.until_ms is not None:
        left = segment.until_ms - now_ms
        until = f"{moment(segment.until_ms)} (in {long_span(left)})" if left > 0 else "now"
    offsets = (
        f"{segment.base_offset}-{segment.end_offset - 1}"
        if segment.end_offset > segment.base_offset
        else "none"
    )
    return offsets, human_bytes(segment.size), newest, long_span(segment.age_ms), segment.fate, until


def reasons(partitions: Sequence[PartitionSegments]) -> list[str]:
    """Each once, in the order in which segments meet them."""
    told = dict.fromkeys(
        f"{segment.fate}: {segment.explanation}" for each in partitions for segment in each.segments
    )
    return list(told)


def document(topic: str, partitions: Sequence[PartitionSegments]) -> dict[str, Any]:
    return {
        "topic": topic,
        "partitions": [
            {**each._asdict(), "segments": [segment._asdict() for segment in each.segments]}
            for each in partitions
        ],
    }


def long_span(ms: float) -> str:
    """Segments live for days, or for ever."""
    days = ms / 86_400_000
    if days >= 3:
        return f"{days:.0f} days" if days < 10_000 else "more than 27 years"
    return span(ms)


def moment(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(wall_ms)  # timestamps are the producer's: anything may come


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
