"""Which partitions and segments stand in the directories that a reader was given. Looks at names and sizes, reads nothing else.

A path is a data directory (one of a broker's `log.dirs`), or the directory of one partition. Directories that are marked for deletion, are stray or belong to a move between disks are not
read, nor are files on their way in or out (`.cleaned`, `.swap`, `.deleted`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tidelog.client.metadata import TopicPartition
from tidelog.spark.segments.errors import SegmentsError
from tidelog.storage import files

INTERNAL: Final = "__"
SWAP_SECONDS_MAX: Final = 2.0
"""A broker that puts compacted segments in the place of old ones needs some milliseconds for it."""
_PAUSE_SECONDS: Final = 0.05


class PartitionDirectory(NamedTuple):
    tp: TopicPartition
    path: str

    @property
    def data_dir(self) -> str:
        return files.parent(self.path)


class SegmentFile(NamedTuple):
    base_offset: int
    path: str
    size: int


class Listing(NamedTuple):
    """One look at a partition's directory."""

    segments: tuple[SegmentFile, ...]
    names: frozenset[str]


def partition_directories(paths: Sequence[str]) -> list[PartitionDirectory]:
    """Of all paths, in order; a partition that stands in two of them is an error, as it would be read twice."""
    found: dict[TopicPartition, PartitionDirectory] = {}
    for each in all_partition_directories(paths):
        other = found.setdefault(each.tp, each)
        if other != each:
            raise SegmentsError(
                f"{each.tp} stands in {other.path} and in {each.path}: they are replicas, and each record would be read twice; name one of them"
            )
    return [found[tp] for tp in sorted(found)]


def all_partition_directories(paths: Sequence[str]) -> list[PartitionDirectory]:
    """The same with every replica."""
    found: list[PartitionDirectory] = []
    for path in dict.fromkeys(os.path.abspath(each) for each in paths):
        if not os.path.isdir(path):
            raise SegmentsError(
                f"{path} is no directory here; give a broker's data directory or a partition's, under a path that all executors see"
            )
        partition = _partition_of(path)
        inside = [partition] if partition else _partitions_in(path)
        if not inside:
            raise SegmentsError(
                f"no partitions stand in {path}; give a broker's data directory (log.dirs) or a partition's directory"
            )
        found += inside
    return found


def _partition_of(path: str) -> PartitionDirectory | None:
    """A directory counts as a partition's by its name and by what is in it: a data directory may be called `backup-1`."""
    parsed = files.parse_partition_dir(files.base_name(path))
    if parsed is None or parsed.suffix:
        return None
    if not any(files.parse_segment_name(name) for name in os.listdir(path)):
        return None
    return PartitionDirectory(TopicPartition(parsed.topic, parsed.partition), path)


def _partitions_in(data_dir: str) -> list[PartitionDirectory]:
    found = []
    for name in sorted(os.listdir(data_dir)):
        parsed = files.parse_partition_dir(name)
        path = files.join(data_dir, name)
        if parsed is not None and not parsed.suffix and os.path.isdir(path):
            found.append(PartitionDirectory(TopicPartition(parsed.topic, parsed.partition), path))
    return found


def user_partitions(found: Iterable[PartitionDirectory]) -> list[PartitionDirectory]:
    return [each for each in found if not each.tp.topic.startswith(INTERNAL)]


def list_segments(directory: str) -> Listing:
    """The segments of a partition, oldest first. Waits for a swap to end, which otherwise would show neither the old nor the new."""
    for _ in range(int(SWAP_SECONDS_MAX / _PAUSE_SECONDS)):
        listing = _listing(directory)
        if listing is not None:
            return listing
        time.sleep(_PAUSE_SECONDS)
    raise SegmentsError(
        f"{directory} holds .swap files: compaction is putting new segments in the place of old ones, or a broker died while it did;"
        " try again, or let a broker start on it once"
    )


def _listing(directory: str) -> Listing | None:
    """None: files are changing names."""
    names = frozenset(os.listdir(directory))
    found: list[SegmentFile] = []
    for name in sorted(names):
        parsed = files.parse_segment_name(name)
        if parsed is None or parsed.kind != files.LOG:
            continue
        if parsed.suffix == files.SWAP:
            return None
        if not parsed.suffix:
            path = files.join(directory, name)
            try:
                found.append(SegmentFile(parsed.base_offset, path, os.path.getsize(path)))
            except FileNotFoundError:  # renamed since the listing
                return None
    return Listing(tuple(found), names)
