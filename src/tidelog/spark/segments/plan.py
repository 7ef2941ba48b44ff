"""Tasks out of bounds: which bytes of which segments each of them reads. Pure but for looks into indexes.

Segments are cut where an index says that a batch begins, so that tasks are alike and none is larger than a few hundred megabytes; what is small is read together. With `minPartitions` or
`maxRecordsPerPartition` offsets are cut instead, as for a read from brokers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tidelog.client.metadata import TopicPartition
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.segments.stored import StoredLog, StoredSegment
from tidelog.spark.segments.transactions import Aborted, overlapping

TASK_BYTES_MIN: Final = 32 << 20
"""A task costs some tens of milliseconds, in which this much can be read."""
TASKS_PER_CORE: Final = 2


class Stretch(NamedTuple):
    """Offsets [start_offset, end_offset) of one segment, and the bytes in which they stand."""

    tp: TopicPartition
    path: str
    size: int
    """Of the file when it was looked at."""
    is_sealed: bool
    """Nobody appends to it any more."""
    position: int
    end_position: int
    """No offset that is asked for stands at or behind it; one that is not may stand before."""
    start_offset: int
    end_offset: int
    aborted: tuple[Aborted, ...] = ()
    may_be_torn: bool = False
    """Bytes at the end that are no whole batch are no damage."""

    @property
    def bytes_count(self) -> int:
        return self.end_position - self.position


Task = tuple[Stretch, ...]


Cuttable = tuple[StoredSegment, Stretch]


def stretches_of(
    log: StoredLog,
    asked: OffsetRange,
    *,
    aborted: Sequence[Aborted] = (),
    timestamp_min: int | None = None,
) -> list[Cuttable]:
    """One for each segment that may hold something, without those in which every record is older than `timestamp_min`."""
    found = []
    for segment in log.between(asked.start, asked.end):
        start = max(asked.start, segment.base_offset)
        end = asked.end if segment.end_offset is None else min(asked.end, segment.end_offset)
        if timestamp_min is not None:
            later = segment.later_than(timestamp_min)
            if later is None:
                continue
            start = max(start, later)
        if start >= end:
            continue
        position = segment.floor(start).position
        end_position = segment.size if end == segment.end_offset else segment.ceiling(end)
        if position < end_position:
            stretch = Stretch(
                log.tp,
                segment.path,
                segment.size,
                segment.end_offset is not None,
                position,
                end_position,
                start,
                end,
                overlapping(aborted, start, end),
            )
            found.append((segment, stretch))
    return found


def tasks_by_bytes(stretches: Sequence[Cuttable], *, bytes_max: int, cores: int | None = None) -> list[Task]:
    """About equal tasks, no larger than `bytes_max` as far as indexes allow, enough of them for the cores of this machine."""
    total = sum(each.bytes_count for _, each in stretches)
    wanted = total // (TASKS_PER_CORE * (cores or os.cpu_count() or 1))
    bytes_each = min(bytes_max, max(TASK_BYTES_MIN, wanted))
    return cut_and_packed(stretches, bytes_each)


def cut_and_packed(stretches: Sequence[Cuttable], bytes_max: int) -> list[Task]:
    return pack([part for segment, each in stretches for part in cut(segment, each, bytes_max)], bytes_max)


def cut(segment: StoredSegment, whole: Stretch, bytes_max: int) -> Iterator[Stretch]:
    """Parts of a stretch that begin with a batch each."""
    count = -(-whole.bytes_count // bytes_max)
    for number in range(1, count):
        place = segment.cut_near(
            whole.position + (whole.end_position - whole.position) // (count - number + 1)
        )
        if place is None or place.position >= whole.end_position or place.base_offset >= whole.end_offset:
            break
        if place.position <= whole.position or place.base_offset <= whole.start_offset:
            continue
        first = whole._replace(end_position=place.position, end_offset=place.base_offset)
        yield first._replace(aborted=overlapping(whole.aborted, first.start_offset, first.end_offset))
        whole = whole._replace(position=place.position, start_offset=place.base_offset)
        whole = whole._replace(aborted=overlapping(whole.aborted, whole.start_offset, whole.end_offset))
    yield whole


def pack(stretches: Iterable[Stretch], bytes_max: int) -> list[Task]:
    """Neighbours together, as long as they are not too large."""
    tasks: list[Task] = []
    current: list[Stretch] = []
    size = 0
    for each in stretches:
        if current and size + each.bytes_count > bytes_max:
            tasks.append(tuple(current))
            current, size = [], 0
        current.append(each)
        size += each.bytes_count
    if current:
        tasks.append(tuple(current))
    return tasks
