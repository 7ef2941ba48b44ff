"""The new segments of a cleaning, under `.cleaned` names: what remains is appended, indexed and made durable here.

Owns these files until a `SegmentSwap` takes them over. The swap and every start count on each new segment ending where the next one begins, so
batches without records stand for the offsets of what is gone at an end: one for each leader epoch, from the first batch of it that is gone, with the
latest timestamp of what they stand for, so that neither epochs nor retention change by a cleaning. Gaps within a segment stay gaps.

Bytes go to the disk in small pieces as they are written, and are synced once, at the end of a segment: a sync that a client waits for comes behind the piece that the disk
is at, and each sync is one more commit of the file system's journal, for which all others wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tidelog.records import columnar_kernels as columns
from tidelog.records import compaction_kernels as kernels
from tidelog.records.batch import NO_LEADER_EPOCH, NO_TIMESTAMP
from tidelog.records.compaction import Chunk, Filtered
from tidelog.storage import files
from tidelog.storage.disk import Disk
from tidelog.storage.failed_sync import sync_all
from tidelog.storage.log_config import LogConfig
from tidelog.storage.segment import Segment
from tidelog.storage.segment_swap import empty_batch
from tidelog.storage.txn_index import AbortedTransaction

PIECE_BYTES: Final = 512 << 10


class _Gone:
    """Batches of one leader epoch that are gone since something was last written."""

    __slots__ = ("epoch", "first_offset", "last_offset", "max_timestamp")

    def __init__(self, epoch: int, first_offset: int, last_offset: int, max_timestamp: int) -> None:
        self.epoch = epoch
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp


class Output:
    """What remains of a run of segments, from `base_offset` to `end_offset`, in one new segment or several."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        base_offset: int,
        end_offset: int,
        size_max: int,
        now_ms: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = replace(config, preallocate=False)
        self._end_offset = end_offset
        self._size_max = size_max
        self._now_ms = now_ms
        self.bases: list[int] = []
        self.bytes_written = 0
        self._gone: list[_Gone] = []
        self._begin(base_offset)

    def _begin(self, base_offset: int) -> None:
        self._segment = Segment.create(
            self._disk, self._directory, base_offset, self._config, now_ms=self._now_ms, suffix=files.CLEANED
        )
        self.bases.append(base_offset)
        self._next_offset = base_offset
        self._size = self._begun = 0
        self._state = np.zeros(kernels.STATE_WIDTH, np.int64)
        self._state[kernels.LATEST] = NO_TIMESTAMP
        self._state[kernels.LATEST_OFFSET] = base_offset

    def add(
        self, chunk: Chunk, filtered: Filtered, aborted: Sequence[tuple[int, AbortedTransaction]] = ()
    ) -> None:
        """The next batches that remain of the run, and the entries of the transaction index that go with markers among them."""
        rows = filtered.rows
        if len(rows):
            first_offset = int(chunk.table[rows[0], columns.BASE_OFFSET])
            if self._size and self._size + int(filtered.sizes.sum()) > self._size_max:
                self._note_gone(chunk.table[: rows[0]])
                self._finish_segment(first_offset)
                self._begin(first_offset)
            self._write(filtered.pieces, filtered.sizes, filtered.last_offsets, filtered.max_timestamps)
            self._gone.clear()
        for _, transaction in aborted:
            self._segment.txn_index.append(transaction)
        self._note_gone(chunk.table[rows[-1] + 1 :] if len(rows) else chunk.table)

    def finish(self) -> None:
        """Whole, sealed and durable; only the names are not yet."""
        self._finish_segment(self._end_offset)

    def abandon(self) -> None:
        self._segment.close()

    # ---- bytes and indexes

    def _write(self, pieces: Sequence[Any], sizes: Any, last_offsets: Any, max_timestamps: Any) -> None:
        segment = self._segment
        written = segment.file.write_at(pieces, self._size)
        entries = np.empty((len(sizes), 4), np.int64)
        count = kernels.index_entries(
            sizes, last_offsets, max_timestamps, self._config.index_interval_bytes, self._state, entries
        )
        offset_index, time_index = segment.offset_index, segment.time_index
        for last_offset, position, timestamp, timestamp_offset in entries[:count].tolist():
            if not offset_index.is_full and not time_index.is_full:
                offset_index.append(last_offset, position)
                time_index.append_if_newer(timestamp, timestamp_offset)
        self._size += written
        self.bytes_written += written
        self._next_offset = int(last_offsets[-1]) + 1
        if self._size - self._begun >= PIECE_BYTES:
            segment.file.begin_writing(self._size - self._begun, self._begun)
            self._begun = self._size

    def _finish_segment(self, end_offset: int) -> None:
        self._fill(end_offset)
        segment = self._segment
        timestamp, offset = int(self._state[kernels.LATEST]), int(self._state[kernels.LATEST_OFFSET])
        segment.time_index.append_if_newer(timestamp, offset, closing=True)
        all_files = segment.all_files()
        for file in all_files:
            file.begin_writing(file.size(), 0)  # the first of the syncs then commits what the others need
        sync_all(self._disk, self._directory, all_files)
        segment.close()

    # ---- what is gone

    def _note_gone(self, table: Any) -> None:
        if not len(table):
            return
        epochs = table[:, columns.LEADER_EPOCH]
        starts = np.flatnonzero(np.diff(epochs, prepend=epochs[0] - 1))
        latest = np.maximum.reduceat(table[:, columns.MAX_TIMESTAMP], starts)
        ends = np.append(starts[1:], len(table)) - 1
        for epoch, first_offset, last_offset, timestamp in zip(
            epochs[starts].tolist(),
            table[starts, columns.BASE_OFFSET].tolist(),
            table[ends, columns.LAST_OFFSET].tolist(),
            latest.tolist(),
            strict=True,
        ):
            if self._gone and self._gone[-1].epoch == epoch:
                gone = self._gone[-1]
                gone.last_offset, gone.max_timestamp = last_offset, max(gone.max_timestamp, timestamp)
            else:
                self._gone.append(_Gone(epoch, first_offset, last_offset, timestamp))

    def _fill(self, end_offset: int) -> None:
        if self._next_offset >= end_offset:
            self._gone.clear()
            return
        # Without any that is gone there was a gap before: whose it is nobody knows.
        gone = self._gone or [_Gone(NO_LEADER_EPOCH, end_offset - 1, end_offset - 1, NO_TIMESTAMP)]
        gone[-1].last_offset = end_offset - 1
        batches = [
            empty_batch(part.first_offset, part.last_offset, part.epoch, max_timestamp=part.max_timestamp)
            for part in gone
        ]
        self._write(
            batches,
            np.array([len(batch) for batch in batches], np.int64),
            np.array([part.last_offset for part in gone], np.int64),
            np.array([part.max_timestamp for part in gone], np.int64),
        )
        self._gone.clear()
