"""One partition's log as its files say it is, without a broker and without changing a byte.

Owns looking things up: where an offset stands, where a segment can be cut, how late its records are, where the log ends. Indexes only ever save reading: an entry is believed when a sound batch stands where
it points and says the same; otherwise the batches are walked. A broker would write such an index anew; whoever only reads must not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader
from tidelog.spark.segments.errors import DamagedSegmentError, Harm
from tidelog.spark.segments.layout import Listing, PartitionDirectory, list_segments
from tidelog.storage import files
from tidelog.storage.batch_scan import SCAN_CHUNK_BYTES, find_valid_batch, scan_headers, sound_batch_at
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.posix_disk import PosixDisk, PosixFile
from tidelog.storage.time_index import TimeIndex

NO_LIMIT: Final = 1 << 40  # of the bytes of an index: these are never appended to
MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
TAIL_WALK_BYTES_MAX: Final = 4 << 20


class Place(NamedTuple):
    """A sound batch begins here."""

    position: int
    base_offset: int


class StoredSegment:
    """A `.log` file and its two indexes, as far as they are there and can be believed."""

    def __init__(
        self, disk: PosixDisk, directory: str, base_offset: int, size: int, end_offset: int | None
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self.end_offset = end_offset
        """Where the next segment begins; None for the last one, which may have no whole batch at its end."""
        self.file: PosixFile = disk.open(files.segment_path(directory, base_offset, files.LOG))
        self._disk = disk
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._has_looked = False

    @property
    def path(self) -> str:
        return self.file.path

    def _indexes(self) -> tuple[OffsetIndex | None, TimeIndex | None]:
        if not self._has_looked:
            self._has_looked = True
            try:
                index = OffsetIndex(
                    self._disk.open(files.segment_path(self.directory, self.base_offset, files.INDEX)),
                    self.base_offset,
                    NO_LIMIT,
                )
                index.check()
                self._offset_index = index
            except (FileNotFoundError, CorruptDataError):
                self._offset_index = None
            try:
                times = TimeIndex(
                    self._disk.open(files.segment_path(self.directory, self.base_offset, files.TIME_INDEX)),
                    self.base_offset,
                    NO_LIMIT,
                )
                times.check()
                self._time_index = times
            except (FileNotFoundError, CorruptDataError):
                self._time_index = None
        return self._offset_index, self._time_index

    # ---- offsets

    def floor(self, offset: int) -> Place:
        """A batch from which on `offset` is found: the nearest one that the index knows, or the first."""
        index = self._indexes()[0]
        if index is not None and offset > self.base_offset:
            found = self._believed(index.lookup(offset)[1])
            if found is not None and found.base_offset <= offset:
                return found
        return Place(0, self.base_offset)

    def ceiling(self, offset: int) -> int:
        """A position from which on no batch holds an offset below `offset`; the file's end if the index knows none nearer."""
        index = self._indexes()[0]
        if index is None:
            return self.size
        _, position = index.lookup(offset)
        for _ in range(2):  # the entry at the offset itself, or the one behind it
            entry = index.first_at_or_after_position(position + 1)
            if entry is None:
                return self.size
            found = self._believed(entry[1])
            if found is not None and found.base_offset >= offset:
                return found.position
            position = entry[1]
        return self.size

    def cut_near(self, position: int) -> Place | None:
        """A batch at or behind a position at which the segment may be cut in two; None if the index knows none."""
        index = self._indexes()[0]
        entry = index.first_at_or_after_position(max(position, 1)) if index is not None else None
        return self._believed(entry[1]) if entry is not None else None

    def _believed(self, position: int) -> Place | None:
        header = sound_batch_at(
            self.file,
            position,
            self.size,
            first_offset=self.base_offset,
            last_offset=self.base_offset + MAX_RELATIVE_OFFSET,
        )
        return None if header is None else Place(position, header.base_offset)

    # ---- times

    def later_than(self, timestamp: int) -> int | None:
        """An offset below which no record is as late as `timestamp`; None if none in the whole segment is, for certain."""
        times = self._indexes()[1]
        if times is None or not times.entries:
            return self.base_offset
        last_timestamp, last_offset = times.last_entry
        if last_timestamp < timestamp and self._is_time_entry(last_timestamp, last_offset):
            if self.end_offset is not None and self._tail_is_older(last_offset, timestamp):
                return None
            return last_offset + 1
        indexed, offset = times.lookup(timestamp - 1)
        if indexed >= 0 and self._is_time_entry(indexed, offset):
            return offset + 1
        return self.base_offset

    def _is_time_entry(self, timestamp: int, offset: int) -> bool:
        for _, header in self.headers(self.floor(offset).position, self.size):
            if header.last_offset >= offset:
                return header.last_offset == offset and header.max_timestamp == timestamp
        return False

    def _tail_is_older(self, offset: int, timestamp: int) -> bool:
        """Whether what stands behind the time index's last entry is older too. Too long a tail is not looked at: the answer is no."""
        start = self.floor(offset).position
        if self.size - start > TAIL_WALK_BYTES_MAX:
            return False
        return all(header.max_timestamp < timestamp for _, header in self.headers(start, self.size))

    # ---- batches

    def headers(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of every batch; DamagedSegmentError where none stands."""
        at, offset = position, self.base_offset
        try:
            for at, header in scan_headers(self.file, position, end, chunk_bytes=SCAN_CHUNK_BYTES):
                yield at, header
                offset, at = header.next_offset, at + header.size
        except CorruptDataError as error:
            raise DamagedSegmentError(self.harm_from(at, offset, str(error))) from error

    def harm_from(self, position: int, first_offset: int, problem: str) -> Harm:
        """What is harmed at a position reaches to the next sound batch, or to the end."""
        problem = problem.removeprefix(self.path).lstrip(": ")
        found = find_valid_batch(
            self.file,
            position + 1,
            self.size,
            first_offset=first_offset,
            last_offset=self.base_offset + MAX_RELATIVE_OFFSET,
        )
        place = self._believed(found) if found is not None else None
        if place is not None:
            return Harm(
                self.path, position, place.position - position, first_offset, place.base_offset, problem
            )
        end_offset = first_offset if self.end_offset is None else max(self.end_offset, first_offset)
        return Harm(self.path, position, self.size - position, first_offset, end_offset, problem)

    def close(self) -> None:
        """Only the files: an index that closes itself would cut the zeroes that Kafka allocates ahead in a running one."""
        self.file.close()
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.file.close()


class StoredLog:
    """A partition's segments, oldest first, from one look at the directory."""

    def __init__(
        self,
        partition: PartitionDirectory,
        *,
        disk: PosixDisk | None = None,
        listing: Listing | None = None,
    ) -> None:
        self.tp = partition.tp
        self.directory = partition.path
        self.disk = disk or PosixDisk(max_open_files=64, read_only=True)
        listing = listing or list_segments(partition.path)
        self.names = listing.names
        ends = [*(each.base_offset for each in listing.segments[1:]), None]
        self.segments = [
            StoredSegment(self.disk, partition.path, each.base_offset, each.size, end)
            for each, end in zip(listing.segments, ends, strict=True)
        ]
        self._end: int | None = None

    @property
    def first_offset(self) -> int:
        return self.segments[0].base_offset if self.segments else 0

    @property
    def is_empty(self) -> bool:
        return not any(each.size for each in self.segments)

    def end_offset(self) -> int:
        """Behind the last whole batch. What a crash tore off behind it, or a broker is writing, is left alone: no one was promised it."""
        if self._end is None:
            self._end = self._find_end()
        return self._end

    def _find_end(self) -> int:
        if not self.segments:
            return 0
        last = self.segments[-1]
        place = last.floor(last.base_offset + MAX_RELATIVE_OFFSET)
        end = last.base_offset
        try:
            for _, header in scan_headers(last.file, place.position, last.size, chunk_bytes=SCAN_CHUNK_BYTES):
                end = header.next_offset
        except CorruptDataError:
            pass
        return end

    def between(self, start_offset: int, end_offset: int) -> list[StoredSegment]:
        """Segments that may hold offsets in [start, end)."""
        return [
            each
            for each in self.segments
            if each.base_offset < end_offset and (each.end_offset is None or each.end_offset > start_offset)
        ]

    def headers(
        self, start_offset: int, end_offset: int, *, skips_damage: bool = False
    ) -> Iterator[tuple[StoredSegment, int, BatchHeader]]:
        """Every batch with offsets in [start, end), by its header."""
        for segment in self.between(start_offset, end_offset):
            position = segment.floor(start_offset).position
            while position < segment.size:
                try:
                    for at, header in segment.headers(position, segment.size):
                        if header.base_offset >= end_offset:
                            return
                        if header.last_offset >= start_offset:
                            yield segment, at, header
                        if header.next_offset >= end_offset:
                            return  # what follows may still be on its way to the disk
                    break
                except DamagedSegmentError as error:
                    if not skips_damage:
                        raise
                    position = error.harm.position + error.harm.length

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
