"""Cleans one log: finds the latest offset of each key, and writes new segments without what is superseded.

The part of compaction that takes time. It reads sealed files and writes `.cleaned` ones through the `Disk` port, in another process or in a
simulation; nothing that anybody reads is changed here. After each group of segments it waits for the swap (`cleaner_swap`): at most one copy
of a group lies about, and a later group is never in place before an earlier one, so that a tombstone is not given its horizon, nor dropped, while a
value below it is still there (I29).

The dirty part is read once for its keys, then everything below it once more to be filtered. When the map is full, the log is cleaned as far
as the map reaches, and the rest the next time. It may end at any `pause`: what it leaves are `.cleaned` files, which mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from tidelog.errors import CorruptDataError
from tidelog.ports import Clock
from tidelog.records import columnar_kernels as columns
from tidelog.records.batch import HEADER_SIZE, MIN_BATCH_LENGTH, read_header
from tidelog.records.compaction import Chunk, OffsetMap, Rules, filter_chunk, read_chunk
from tidelog.storage import files
from tidelog.storage.cleaner_job import Cleaned, CleanedGroup, CleanJob, NoRoomToClean, Source
from tidelog.storage.cleaner_output import Output
from tidelog.storage.cleaner_plan import NO_HORIZON, Weighed, group
from tidelog.storage.cleaner_transactions import Judge, aborted_in, rows_without_keys
from tidelog.storage.disk import Disk, File
from tidelog.storage.disk_space import AUTOMATIC, AUTOMATIC_BYTES_MAX, AUTOMATIC_BYTES_MIN, AUTOMATIC_SHARE
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.throttle import Throttle

Pause = Callable[[float], None]
"""Waits this many seconds, or not at all; may raise to end the cleaning. Called every few hundred kilobytes."""


_FAR_AWAY_MS: Final = 1 << 61
"""For ever, and small enough to be reckoned with."""


def horizon_for(now_ms: int, delete_retention_ms: int) -> int:
    """From when a tombstone that becomes clean now may go."""
    return min(now_ms + delete_retention_ms, _FAR_AWAY_MS)


class LogCleaner:
    """`groups` to its end, each swapped before the next is asked for; then `result` says what was done."""

    def __init__(
        self, disk: Disk, job: CleanJob, *, clock: Clock, secret: bytes, pause: Pause = lambda seconds: None
    ) -> None:
        """`secret` is 16 random bytes (see `OffsetMap`)."""
        self._disk = disk
        self._job = job
        self._clock = clock
        self._pause = pause
        self._secret = secret
        self._throttle = Throttle()
        self.bytes_per_second = job.limits.bytes_per_second
        """May be changed in a `pause`."""
        self._began = clock.monotonic()
        self._buffer_bytes = max(HEADER_SIZE, job.limits.buffer_bytes // 2)
        self._horizon_ms = NO_HORIZON
        self._map_end = job.end_offset
        self._is_full = False
        self.bytes_read = self.bytes_written = 0
        self._records_read = self._records_kept = self._null_keys = self._opaque = 0

    @property
    def result(self) -> Cleaned:
        return Cleaned(
            self._map_end,
            self._horizon_ms,
            self.bytes_read,
            self.bytes_written,
            self._records_read,
            self._records_kept,
            self._null_keys,
            self._opaque,
            self._is_full,
        )

    def groups(self) -> Iterator[CleanedGroup]:
        job = self._job
        aborted = aborted_in(self._disk, job, self._chunks)
        offset_map = self._build_map(Judge(aborted, now_ms=self._clock.wall_ms()))
        judge = Judge(aborted, now_ms=self._clock.wall_ms(), retained=job.retained, fences=dict(job.fences))
        sources = [source for source in job.sources if source.base_offset < self._map_end]
        for each in group(
            [self._weigh(source) for source in sources],
            segment_bytes=job.config.segment_bytes,
            index_bytes=job.config.segment_index_bytes,
        ):
            judge.now_ms = self._clock.wall_ms()
            yield self._clean_group(each, judge, offset_map)

    # ---- the map

    def _build_map(self, judge: Judge) -> OffsetMap:
        job, start_offset = self._job, self._job.first_dirty_offset
        limits = job.limits
        offset_map = OffsetMap(
            limits.map_bytes,
            load_factor=limits.load_factor,
            secret=self._secret,
            keys_max=max(0, job.end_offset - start_offset),
        )
        for source in job.sources:
            if source.end_offset <= start_offset:
                continue
            for chunk in self._chunks(source, start_offset):
                without = rows_without_keys(chunk, judge.judge(chunk).verdicts)
                full_at = offset_map.add(chunk, start_offset=start_offset, without=without)
                if full_at is not None:
                    self._map_end, self._is_full = full_at, True
                    return offset_map
        return offset_map

    # ---- new segments

    def _weigh(self, source: Source) -> Weighed:
        sizes = []
        for kind in (files.INDEX, files.TIME_INDEX):
            path = files.segment_path(self._job.directory, source.base_offset, kind)
            # One that is missing will be written anew by whoever needs it.
            sizes.append(self._disk.file_size(path) if self._disk.exists(path) else 0)
        return Weighed(source, *sizes)

    def _clean_group(self, sources: Sequence[Source], judge: Judge, offset_map: OffsetMap) -> CleanedGroup:
        job = self._job
        size = sum(source.size for source in sources)
        self._check_room(size)
        self._pause(0.0)
        swapped_ms = judge.now_ms + self._expected_ms(size)
        rules = Rules(self._map_end, judge.now_ms, horizon_for(swapped_ms, job.config.delete_retention_ms))
        output = Output(
            self._disk,
            job.directory,
            job.config,
            base_offset=sources[0].base_offset,
            end_offset=sources[-1].end_offset,
            size_max=job.limits.output_bytes_max,
            now_ms=judge.now_ms,
        )
        try:
            for source in sources:
                for chunk in self._chunks(source):
                    self._clean_chunk(chunk, judge, offset_map, rules, output)
            output.finish()
        finally:
            output.abandon()
        return CleanedGroup(tuple(source.base_offset for source in sources), tuple(output.bases))

    def _expected_ms(self, size: int) -> int:
        """How long it may take until a group of this size is swapped: twice what reading so much has taken so far.

        Until then a consumer may read a value whose tombstone is in the group, and a throttled cleaner takes its time.
        """
        elapsed = self._clock.monotonic() - self._began
        return int(2000 * elapsed * size / self.bytes_read) if self.bytes_read else 0

    def _clean_chunk(
        self, chunk: Chunk, judge: Judge, offset_map: OffsetMap, rules: Rules, output: Output
    ) -> None:
        judged = judge.judge(chunk)
        filtered = filter_chunk(chunk, judged.verdicts, offset_map, rules)
        written_before = output.bytes_written
        output.add(chunk, filtered, judged.still_aborted)
        self._records_read += filtered.records_read
        self._records_kept += filtered.records_kept
        self._null_keys += filtered.null_keys
        self._opaque += int(chunk.opaque.sum())
        self._horizon_ms = max(self._horizon_ms, filtered.latest_horizon_ms)
        written = output.bytes_written - written_before
        self.bytes_written += written
        self._spend(written)

    def _check_room(self, size: int) -> None:
        total, free = self._disk.volume_bytes(self._job.directory)
        reserve = self._job.limits.reserve_bytes
        if reserve == AUTOMATIC:
            reserve = max(AUTOMATIC_BYTES_MIN, min(AUTOMATIC_BYTES_MAX, total // AUTOMATIC_SHARE))
        if total > 0 and free - size < reserve:
            raise NoRoomToClean(
                f"{size} bytes more are needed for a while in {self._job.directory}; {free} are free, and {reserve} of them are"
                " kept for deletions and metadata (log.dir.reserve.bytes)"
            )

    # ---- reading

    def _chunks(self, source: Source, start_offset: int = 0) -> Iterator[Chunk]:
        """The batches of a segment, all of them or from about `start_offset` on. CorruptDataError where they do not make sense."""
        file = self._disk.open(files.segment_path(self._job.directory, source.base_offset, files.LOG))
        try:
            position = self._position_of(file, source, start_offset)
            next_offset = source.base_offset
            wanted = self._buffer_bytes
            while position < source.size:
                data = file.read_at(min(wanted, source.size - position), position)
                try:
                    chunk = read_chunk(data)
                except CorruptDataError as error:
                    raise CorruptDataError(f"{file.path}, behind position {position}: {error}") from None
                if not chunk.consumed:
                    wanted = _size_of_large(data, wanted, file.path, position, source.size)
                    continue
                next_offset = _check_order(chunk, file.path, next_offset, source)
                self.bytes_read += chunk.consumed
                self._spend(chunk.consumed)
                yield chunk
                position += chunk.consumed
                wanted = self._buffer_bytes
        finally:
            file.close()

    def _position_of(self, file: File, source: Source, offset: int) -> int:
        """A batch at or before `offset`. An index that is missing or lies costs time only."""
        path = files.segment_path(self._job.directory, source.base_offset, files.INDEX)
        if offset <= source.base_offset or not self._disk.exists(path):
            return 0
        index_file = self._disk.open(path)
        try:
            index = OffsetIndex(index_file, source.base_offset, self._job.config.segment_index_bytes)
            indexed_offset, position = index.lookup(offset)
        finally:
            index_file.close()
        header = file.read_at(HEADER_SIZE, position) if 0 <= position < source.size else b""
        is_there = len(header) == HEADER_SIZE and read_header(header).last_offset == indexed_offset
        return position if is_there else 0

    def _spend(self, amount: int) -> None:
        rate = self.bytes_per_second
        self._pause(self._throttle.spend(amount, now=self._clock.monotonic(), per_second=rate))


def _size_of_large(data: bytes, asked: int, path: str, position: int, end: int) -> int:
    """Size of a batch that did not fit into the `asked` bytes."""
    size = 0
    if len(data) >= HEADER_SIZE:
        header = read_header(data)
        size = header.size if header.batch_length >= MIN_BATCH_LENGTH else 0
    if size <= asked or position + size > end:
        raise CorruptDataError(f"{path}: the file ends in the middle of the batch at position {position}")
    return size


def _check_order(chunk: Chunk, path: str, next_offset: int, source: Source) -> int:
    """Offsets rise, and stay within their segment (I1). Returns the offset behind the last batch."""
    bases: Any = chunk.column(columns.BASE_OFFSET)
    lasts: Any = chunk.column(columns.LAST_OFFSET)
    expected = np.concatenate(([next_offset], lasts[:-1] + 1))
    if (bases < expected).any() or lasts[-1] >= source.end_offset:
        raise CorruptDataError(
            f"{path}: offsets from {int(bases[0])} on do not rise from {next_offset} to {source.end_offset}"
        )
    return int(lasts[-1]) + 1
