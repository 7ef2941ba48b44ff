"""What a Spark task reads: ranges of offsets, and how many of them make a task.

A partition of the log is one task, unless it is asked for more (`minPartitions`) or for smaller ones (`maxRecordsPerPartition`). Small micro-batches go the other
way: all of their ranges are packed into few tasks, because a task costs more than a few thousand records. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tidelog.client.metadata import TopicPartition

PACKED_OFFSETS_MAX: Final = 20_000
"""A micro-batch of no more than this is one task."""


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition. Not all of them need to hold records."""

    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.tp} [{self.start}, {self.end})"


def split(
    ranges: Iterable[OffsetRange], *, tasks_min: int | None = None, size_max: int | None = None
) -> list[OffsetRange]:
    """At least `tasks_min` of them where there are as many offsets, none larger than `size_max`, cut as evenly as it goes."""
    whole = [each for each in ranges if each.size > 0]
    counts = [1 if size_max is None else -(-each.size // size_max) for each in whole]
    if tasks_min is not None:
        _share_out(whole, counts, tasks_min)
    return [part for each, count in zip(whole, counts, strict=True) for part in _cut(each, count)]


def _share_out(ranges: Sequence[OffsetRange], counts: list[int], tasks_min: int) -> None:
    """More tasks where the parts are largest, until there are enough or no part can be cut."""
    parts = [
        (-each.size / count, number) for number, (each, count) in enumerate(zip(ranges, counts, strict=True))
    ]
    heapq.heapify(parts)
    total = sum(counts)
    while total < tasks_min and parts:
        _, number = heapq.heappop(parts)
        if counts[number] >= ranges[number].size:
            continue
        counts[number] += 1
        total += 1
        heapq.heappush(parts, (-ranges[number].size / counts[number], number))


def _cut(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    edges = [whole.start + whole.size * number // count for number in range(count + 1)]
    return (OffsetRange(whole.tp, start, end) for start, end in pairwise(edges))


def pack(
    ranges: Sequence[OffsetRange], *, offsets_max: int = PACKED_OFFSETS_MAX
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task: all in one if they are small together, else one each."""
    if len(ranges) > 1 and sum(each.size for each in ranges) <= offsets_max:
        return [tuple(ranges)]
    return [(each,) for each in ranges]
