"""Whether the files of a stopped broker are sound: each batch by itself, batches among each other, and the derived files
against the log. Finds, never repairs: a broker repairs what can be repaired when it starts.

Index entries are sorted as the log is, so each segment is read once with its two indexes walking along.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from tidelog.cli.log_dump import BY_NAME, NO_LIMIT, dump_file
from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader
from tidelog.records.record import iter_records
from tidelog.storage import checkpoints, files
from tidelog.storage.batch_scan import Batch, scan_batches
from tidelog.storage.disk import read_file
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.time_index import TimeIndex


@dataclass(frozen=True, slots=True)
class Damage:
    file: str
    problem: str
    position: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        where = [self.file]
        if self.position is not None:
            where.append(f"position {self.position}")
        if self.offset is not None:
            where.append(f"offset {self.offset}")
        return f"{', '.join(where)}: {self.problem}"


class Verification:
    """Collects what was seen and what is wrong, over any number of directories."""

    def __init__(self, *, deep: bool = False) -> None:
        self.damage: list[Damage] = []
        self.partitions = self.segments = self.batches = self.records = self.size_bytes = 0
        self._deep = deep
        self._disk = PosixDisk(read_only=True)

    def report(self) -> dict[str, Any]:
        return {
            "partitions": self.partitions,
            "segments": self.segments,
            "batches": self.batches,
            "records": self.records,
            "bytes": self.size_bytes,
            "damage": [asdict(damage) for damage in self.damage],
        }

    def directory(self, path: str) -> None:
        """A data directory, or a partition's."""
        path = path.rstrip("/") or "/"
        names = sorted(os.listdir(path))
        if _segment_bases(names):
            self._partition(path, names)
            return
        ends: dict[tuple[str, int], int] = {}
        for name in names:
            found = files.parse_partition_dir(name)
            inner = files.join(path, name)
            if found is None or found.suffix or not os.path.isdir(inner):
                continue
            inner_names = sorted(os.listdir(inner))
            if _segment_bases(inner_names):
                ends[found.topic, found.partition] = self._partition(inner, inner_names)
        self._small_files(path, names)
        self._recovery_points(path, names, ends)

    # -- one partition ----------------------------------------------------------------------------------------------

    def _partition(self, path: str, names: list[str]) -> int:
        """Returns the offset behind the last sound batch."""
        present = set(names)
        bases = _segment_bases(names)
        self.partitions += 1
        end = bases[0]
        for base, following in pairwise([*bases, None]):
            assert base is not None
            end = self._segment(path, base, following, max(end, base), present)
        self._small_files(path, names)
        return end

    def _segment(
        self, directory: str, base: int, following: int | None, start: int, present: set[str]
    ) -> int:
        path = files.segment_path(directory, base, files.LOG)
        file = self._disk.open(path)
        walk = _Neighbours(self._report, path, base, start, following)
        indexes = [
            index
            for index in (
                self._walk(directory, base, files.INDEX, present),
                self._walk(directory, base, files.TIME_INDEX, present),
            )
            if index is not None
        ]
        self.segments += 1
        self.size_bytes += file.size()
        position = 0
        try:
            for batch in scan_batches(file, 0, file.size()):
                self._batch(path, batch)
                walk.next(batch.position, batch.header)
                for index in indexes:
                    index.next(batch.position, batch.header)
                position = batch.position + batch.header.size
        except CorruptDataError as error:
            tail = "; a broker that starts here cuts the log at this position" if following is None else ""
            self._report(
                path, f"no sound batch follows: {_without_path(error, path)}{tail}", position, walk.end
            )
        finally:
            file.close()
        for index in indexes:
            index.finish()
        return walk.end

    def _batch(self, path: str, batch: Batch) -> None:
        header = batch.header
        self.batches += 1
        self.records += max(0, header.record_count)
        if not batch.crc_matches():
            self._report(path, "the batch fails its CRC", batch.position, header.base_offset)
        elif self._deep:
            try:
                count = sum(1 for _ in iter_records(batch.buffer, batch.offset, header))
                if count != header.record_count:
                    raise CorruptDataError(f"{count} records where the header says {header.record_count}")
            except CorruptDataError as error:
                self._report(path, str(error), batch.position, header.base_offset)

    # -- derived files ----------------------------------------------------------------------------------------------

    def _walk(self, directory: str, base: int, kind: str, present: set[str]) -> _IndexWalk | None:
        """None when there is no such file (a broker then builds it) or when its own form is already wrong."""
        path = files.segment_path(directory, base, kind)
        if files.base_name(path) not in present:
            return None
        file = self._disk.open(path)
        try:
            index = (OffsetIndex if kind == files.INDEX else TimeIndex)(file, base, NO_LIMIT)
            index.check(deep=True)
        except CorruptDataError as error:
            self._report(path, _without_path(error, path))
            return None
        return _IndexWalk(self._report, path, iter(index), by_time=kind == files.TIME_INDEX)

    def _small_files(self, directory: str, names: list[str]) -> None:
        """Files that prove themselves: snapshots by their CRC, checkpoints by their form."""
        for name in names:
            segment = files.parse_segment_name(name)
            if name in BY_NAME or (
                segment and segment.kind in (files.SNAPSHOT, files.TXN_INDEX) and not segment.suffix
            ):
                path = files.join(directory, name)
                try:
                    for _ in dump_file(path):
                        pass
                except CorruptDataError as error:
                    self._report(path, _without_path(error, path))

    def _recovery_points(self, directory: str, names: list[str], ends: dict[tuple[str, int], int]) -> None:
        """Everything below a recovery point was once on this disk for good."""
        if files.RECOVERY_POINT_CHECKPOINT not in names:
            return
        path = files.join(directory, files.RECOVERY_POINT_CHECKPOINT)
        try:
            points = checkpoints.decode_offsets(read_file(self._disk, path), path)
        except CorruptDataError:
            return  # reported with the small files
        for (topic, partition), point in points.items():
            end = ends.get((topic, partition))
            if end is not None and point > end:
                self._report(
                    path,
                    f"{topic}-{partition} was stored up to offset {point}, its log ends at {end}",
                    None,
                    end,
                )

    def _report(
        self, path: str, problem: str, position: int | None = None, offset: int | None = None
    ) -> None:
        self.damage.append(Damage(path, problem, position, offset))


_Report = Callable[..., None]


class _Neighbours:
    """What batches owe each other: rising offsets within the segment's range, epochs that never fall."""

    def __init__(self, report: _Report, path: str, base: int, start: int, following: int | None) -> None:
        self.end = start
        self._report = report
        self._path = path
        self._base = base
        self._following = following
        self._epoch = -1

    def next(self, position: int, header: BatchHeader) -> None:
        problem = self._problem(header)
        if problem:
            self._report(self._path, problem, position, header.base_offset)
        self.end = max(self.end, header.next_offset)
        self._epoch = max(self._epoch, header.partition_leader_epoch)

    def _problem(self, header: BatchHeader) -> str | None:
        if header.base_offset < self._base:
            return f"the batch begins before its segment ({self._base})"
        if header.base_offset < self.end:
            return f"the batch begins before the end of the one before it ({self.end})"
        if header.last_offset_delta < 0:
            return f"the batch ends {-header.last_offset_delta} offsets before it begins"
        if self._following is not None and header.last_offset >= self._following:
            return (
                f"the batch reaches offset {header.last_offset}, the next segment begins at {self._following}"
            )
        if header.partition_leader_epoch < self._epoch:
            return f"leader epoch {header.partition_leader_epoch} follows {self._epoch}"
        return None


class _IndexWalk:
    """An index beside its log: each entry must describe a batch that is there.

    An offset entry points at the first byte of a batch that begins at or before its offset. A time entry names an offset in
    a batch whose largest timestamp is the entry's.
    """

    def __init__(
        self, report: _Report, path: str, entries: Iterator[tuple[int, int]], *, by_time: bool
    ) -> None:
        self._report = report
        self._path = path
        self._entries = entries
        self._by_time = by_time
        self._entry = next(entries, None)

    def next(self, position: int, header: BatchHeader) -> None:
        while self._entry is not None:
            first, second = self._entry
            if self._by_time:
                if second > header.last_offset:
                    return
                self._check_time(first, second, position, header)
            else:
                if second > position:
                    return
                self._check_offset(first, second, position, header)
            self._entry = next(self._entries, None)

    def finish(self) -> None:
        """Entries left over lie behind the last batch."""
        while self._entry is not None:
            first, second = self._entry
            if self._by_time:
                self._report(self._path, f"the entry of time {first} lies behind the log", None, second)
            else:
                self._report(self._path, "the entry points behind the last batch", second, first)
            self._entry = next(self._entries, None)

    def _check_offset(self, offset: int, pointed_at: int, position: int, header: BatchHeader) -> None:
        if pointed_at != position:
            self._report(self._path, "the entry points into the middle of a batch", pointed_at, offset)
        elif offset < header.base_offset:
            self._report(
                self._path,
                f"the entry points at a batch that begins later, at {header.base_offset}",
                position,
                offset,
            )

    def _check_time(self, timestamp: int, offset: int, position: int, header: BatchHeader) -> None:
        if offset < header.base_offset or timestamp != header.max_timestamp:
            self._report(
                self._path,
                f"the entry says time {timestamp}; the batch there has {header.max_timestamp} as its latest",
                position,
                offset,
            )


def _segment_bases(names: list[str]) -> list[int]:
    found = map(files.parse_segment_name, names)
    return sorted(s.base_offset for s in found if s is not None and (s.kind, s.suffix) == (files.LOG, ""))


def _without_path(error: CorruptDataError, path: str) -> str:
    return str(error).removeprefix(path).lstrip(": ")
