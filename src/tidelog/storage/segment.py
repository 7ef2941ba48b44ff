"""One segment: a `.log` file of batches, and the indexes that find offsets, timestamps and aborted transactions in it.

Owns those four files from creation to deletion. The `.log` file is the truth; every index is derived from it (I4) and none is
believed blindly: an entry is compared with the batch it points at whenever it is used, and a segment whose indexes are missing or
lie rebuilds them from its batches. It never decides when to roll, what is durable or which data may go: that is `Log`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.errors import CorruptDataError
from tidelog.records.batch import HEADER_SIZE, LOG_OVERHEAD, NO_TIMESTAMP, BatchHeader, read_header
from tidelog.storage import damage as damages
from tidelog.storage import files, index_rebuild
from tidelog.storage.batch_scan import find_valid_batch, scan_headers
from tidelog.storage.disk import Buffer, Disk, DiskError, File
from tidelog.storage.empty_file import EmptyFile
from tidelog.storage.failed_sync import sync_all
from tidelog.storage.log_config import LogConfig
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.recovery_report import Damage
from tidelog.storage.time_index import TimeIndex
from tidelog.storage.txn_index import AbortedTransaction, TxnIndex

MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
SEGMENT_KINDS: Final = (files.LOG, files.INDEX, files.TIME_INDEX, files.TXN_INDEX)
_FOREVER: Final = 1 << 62


class Segment:
    __slots__ = (
        "_bytes_since_index", "_disk", "_max_timestamp", "_max_timestamp_offset", "_offset_index",
        "_roll_timestamp", "_time_index", "_txn_index", "_txn_index_missing", "base_offset", "config", "created_ms",
        "damage", "directory", "file", "index_full", "jitter_ms", "seen_warm", "size", "suffix", "unindexed",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        config: LogConfig,
        file: File,
        size: int,
        *,
        created_ms: int,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.base_offset = base_offset
        self.config = config
        self.file = file
        self.size = size
        self.suffix = ""  # of its file names, while it is not part of the log (see `segment_swap`)
        self.created_ms = created_ms
        self.jitter_ms = 0
        self.index_full = False
        # It is so short that no index has an entry, and its index files are not there. Thousands of logs never get any further.
        self.unindexed = False
        # Stretches that recovery or scrub found to hold no sound batch, in the order of the file; None is the rule.
        self.damage: tuple[Damage, ...] | None = None
        self.seen_warm = (
            0,
            0,
            0.0,
        )  # from where to where, and until when that may be believed (see `cold_read`)
        self._bytes_since_index = 0
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TxnIndex | None = None
        self._txn_index_missing = False
        self._roll_timestamp: int | None = None  # None: not looked yet
        self._max_timestamp: int | None = None
        self._max_timestamp_offset = base_offset

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        now_ms: int,
        suffix: str = "",
    ) -> Segment:
        """A new, empty segment. Leftovers of a crash under its names are emptied. Not durable before a flush.

        When its files do not fit on the disk, none is left: the log may grow past the name, and it would seem to end there.
        """
        opened: list[File] = []
        try:
            for kind in SEGMENT_KINDS:
                path = files.segment_path(directory, base_offset, kind) + suffix
                opened.append(disk.open(path, create=True))
                if opened[-1].size():
                    opened[-1].truncate(0)
            if config.preallocate:
                opened[0].truncate(config.segment_bytes)
        except DiskError as error:
            for file in opened:
                file.close()
                if error.out_of_space:
                    disk.remove(file.path)
            raise
        segment = cls(disk, directory, base_offset, config, opened[0], 0, created_ms=now_ms)
        segment.suffix = suffix
        segment._offset_index = OffsetIndex(opened[1], base_offset, config.segment_index_bytes)
        segment._time_index = TimeIndex(opened[2], base_offset, config.segment_index_bytes)
        opened[3].close()  # most segments never hold an aborted transaction
        segment._roll_timestamp = NO_TIMESTAMP
        segment._max_timestamp = NO_TIMESTAMP
        return segment

    @classmethod
    def create_first(cls, disk: Disk, directory: str, config: LogConfig, *, now_ms: int) -> Segment:
        """The segment of a log that begins, in a directory that was empty. No file is held open: many logs wait long for a batch."""
        if config.preallocate:
            return cls.create(disk, directory, 0, config, now_ms=now_ms)
        path = files.segment_path(directory, 0, files.LOG)
        disk.make_file(path)
        segment = cls(disk, directory, 0, config, disk.open(path), 0, created_ms=now_ms)
        segment.unindexed = True
        segment._roll_timestamp = NO_TIMESTAMP
        segment._max_timestamp = NO_TIMESTAMP
        return segment

    @classmethod
    def open(
        cls, disk: Disk, directory: str, base_offset: int, config: LogConfig, *, names: frozenset[str]
    ) -> Segment:
        """An existing segment, as its files say; nothing is read yet. `names` is the directory's listing."""
        path = files.segment_path(directory, base_offset, files.LOG)
        segment = cls(
            disk,
            directory,
            base_offset,
            config,
            disk.open(path),
            disk.file_size(path),
            created_ms=disk.mtime_ms(path),
        )
        segment._txn_index_missing = files.segment_name(base_offset, files.TXN_INDEX) not in names
        return segment

    def may_be_unindexed(self, names: frozenset[str]) -> bool:
        """The last segment of a log that was just opened: has it no indexes because it never needed any?"""
        if self.size > self.config.index_interval_bytes or any(
            files.segment_name(self.base_offset, kind) in names for kind in (files.INDEX, files.TIME_INDEX)
        ):
            return False
        self.unindexed = True
        if self.size == 0:
            self._txn_index_missing = False
        return True

    def __repr__(self) -> str:
        return f"Segment({self.file.path}, {self.size} bytes)"

    # ---- appending

    def append(self, buffers: Sequence[Buffer], size: int, last_offset: int, max_timestamp: int) -> int:
        """Write one batch behind the others; returns its position. Nothing is remembered of a write that fails."""
        position = self.size
        self.file.write_at(buffers, position)
        if position == 0:
            self._roll_timestamp = max_timestamp
        self._note(position, size, last_offset, max_timestamp)
        self.size = position + size
        return position

    def append_run(self, run: Buffer, headers: Sequence[BatchHeader]) -> None:
        """Write several whole batches with one call, and what the indexes say of them with one each."""
        self.file.write_at((run,), self.size)
        offset_index, time_index = self._offset_index, self._time_index
        if len(headers) == 1 or self.unindexed or offset_index is None or time_index is None:
            self._note_batches(headers)
            return
        offset_index.hold()
        time_index.hold()
        try:
            self._note_batches(headers)
        finally:
            try:
                offset_index.let_go()
            finally:
                time_index.let_go()

    def _note_batches(self, headers: Sequence[BatchHeader]) -> None:
        for header in headers:
            self.note_batch(self.size, header)

    def note_batch(self, position: int, header: BatchHeader) -> None:
        """A batch stands at `position`, the next one of this segment: index it."""
        size, max_timestamp = header[1] + LOG_OVERHEAD, header[8]
        if position == 0:
            self._roll_timestamp = max_timestamp
        self._note(position, size, header[0] + header[6], max_timestamp)
        self.size = position + size

    def _note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        if max_timestamp > self.max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if self._bytes_since_index > self.config.index_interval_bytes:
            self._add_index_entry(position, last_offset)
        self._bytes_since_index += size

    def _add_index_entry(self, position: int, last_offset: int) -> None:
        self._begin_indexing()
        offset_index, time_index = self.offset_index, self.time_index
        if offset_index.is_full or time_index.is_full:
            self.index_full = (
                True  # found while rebuilding with smaller indexes than the segment was written with
            )
            return
        offset_index.append(last_offset, position)
        time_index.append_if_newer(self.max_timestamp, self._max_timestamp_offset)
        self._bytes_since_index = 0
        self.index_full = offset_index.is_full or time_index.is_full

    def seal(self) -> None:
        """No batch follows: the time index gets its last word, preallocated space goes back."""
        if self.size:
            self._begin_indexing()
            self.time_index.append_if_newer(self.max_timestamp, self._max_timestamp_offset, closing=True)
        if self.config.preallocate and self.file.size() > self.size:
            self.file.truncate(self.size)

    # ---- timestamps

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of any record here; -1 if none has one."""
        known = self._max_timestamp
        return known if known is not None else self._load_max_timestamp()

    @property
    def max_timestamp_is_known(self) -> bool:
        """Without a look at a file."""
        return self._max_timestamp is not None or self.size == 0

    @property
    def max_timestamp_offset(self) -> int:
        """Last offset of the batch that brought the largest timestamp."""
        if self._max_timestamp is None:
            self._load_max_timestamp()
        return self._max_timestamp_offset

    @property
    def largest_timestamp(self) -> int:
        """What time retention goes by: as in Kafka the file's own time where no record has any."""
        timestamp = self.max_timestamp
        return timestamp if timestamp >= 0 else self._disk.mtime_ms(self.file.path)

    @property
    def roll_timestamp(self) -> int:
        """The first batch's timestamp, from which `segment.ms` counts; -1 when it has none."""
        if self._roll_timestamp is None:
            raw = self.file.read_at(HEADER_SIZE, 0) if self.size >= HEADER_SIZE else b""
            self._roll_timestamp = read_header(raw).max_timestamp if len(raw) == HEADER_SIZE else NO_TIMESTAMP
        return self._roll_timestamp

    def _load_max_timestamp(self) -> int:
        self._check_time_index()
        timestamp, offset = self.time_index.last_entry
        if timestamp >= 0:
            try:
                found = self.find(offset)
            except CorruptDataError:
                pass  # that batch is damaged: the index is all there is, and retention must go on
            else:
                if found is None or found[1].last_offset != offset or found[1].max_timestamp != timestamp:
                    self.rebuild_indexes()
                    timestamp, offset = self.time_index.last_entry
        self._max_timestamp, self._max_timestamp_offset = timestamp, offset
        return timestamp

    def _check_time_index(self) -> None:
        """An empty time index is right only where records have no timestamps: otherwise it was lost, and with it what time it is."""
        if self.size and self.time_index.entries == 0 and self.roll_timestamp >= 0:
            self.rebuild_indexes()

    # ---- indexes

    @property
    def offset_index(self) -> OffsetIndex:
        return self._offset_index or self._open_indexes()[0]

    @property
    def time_index(self) -> TimeIndex:
        return self._time_index or self._open_indexes()[1]

    @property
    def indexes_are_open(self) -> bool:
        return self._offset_index is not None

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def txn_index(self) -> TxnIndex:
        if self._txn_index is None:
            self._txn_index = TxnIndex(self._disk, self._path(files.TXN_INDEX), self.base_offset)
            try:
                self._txn_index.check()
            except CorruptDataError:
                self._txn_index_missing = True
        return self._txn_index

    @property
    def txn_index_missing(self) -> bool:
        """The file was not there when the segment was opened, or is broken: its entries must be found again (`replay`)."""
        index = self.txn_index  # opening it may be what finds it broken
        return self._txn_index_missing or index is None

    def found_aborted(self, transactions: Sequence[AbortedTransaction]) -> None:
        """What a transaction index would hold, from somebody who has read every batch: one that is missing need not be looked for if
        it would be empty.
        """
        self._txn_index_missing = self._txn_index_missing and bool(transactions)

    def replace_txn_index(self) -> TxnIndex:
        """An empty transaction index, to be filled by whoever replays the segment."""
        if self._txn_index is not None:
            self._txn_index.close()
        if not self.unindexed:
            self._disk.make_file(self._path(files.TXN_INDEX))
        self._txn_index = TxnIndex(self._disk, self._path(files.TXN_INDEX), self.base_offset)
        self._txn_index.clear()
        self._txn_index_missing = False
        return self._txn_index

    def _begin_indexing(self) -> None:
        """There is something to put into an index: all of them are made, so that one that is missing is known to be missing."""
        if self.unindexed:
            for kind in (files.INDEX, files.TIME_INDEX, files.TXN_INDEX):
                self._disk.make_file(self._path(kind))
            self.unindexed = False
            self.forget_indexes()

    def _open_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        if self.unindexed:
            return self._index_objects()
        try:
            offset_index, time_index = self._index_objects()
            offset_index.check()
            time_index.check()
            self._check_last_entry(offset_index)
        except (FileNotFoundError, CorruptDataError):
            return self.rebuild_indexes()
        self.index_full = offset_index.is_full or time_index.is_full
        return offset_index, time_index

    def _index_objects(self, *, create: bool = False, suffix: str = "") -> tuple[OffsetIndex, TimeIndex]:
        limit = self.config.segment_index_bytes
        file = self._index_file(files.INDEX, suffix, create)
        offset_index = self._offset_index = OffsetIndex(file, self.base_offset, limit)
        file = self._index_file(files.TIME_INDEX, suffix, create)
        time_index = self._time_index = TimeIndex(file, self.base_offset, limit)
        return offset_index, time_index

    def _index_file(self, kind: str, suffix: str, create: bool) -> File:
        path = self._path(kind) + suffix
        return EmptyFile(path) if self.unindexed else self._disk.open(path, create=create)

    def _check_last_entry(self, index: OffsetIndex) -> None:
        offset, position = index.lookup(self.base_offset + MAX_RELATIVE_OFFSET)
        if index.entries and not self.is_batch_at(position, offset):
            raise CorruptDataError(
                f"{index.file.path}: no batch that ends at offset {offset} stands at position {position}"
            )

    def is_batch_at(self, position: int, last_offset: int, *, end: int | None = None) -> bool:
        """Whether a batch with this last offset stands there, and ends at or before `end`, which is the file's if not given."""
        raw = self.file.read_at(HEADER_SIZE, position) if position + HEADER_SIZE <= self.size else b""
        if len(raw) < HEADER_SIZE:
            return False
        header = read_header(raw)
        return header.last_offset == last_offset and position + header.size <= (end or self.size)

    def reset_indexes(self, *, suffix: str = "") -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes empty, the segment's size 0: `note_batch` is then told of every batch again."""
        self._close_indexes()
        self.unindexed = self.unindexed and not suffix
        for kind in () if self.unindexed else (files.INDEX, files.TIME_INDEX):
            file = self._disk.open(self._path(kind) + suffix, create=True)
            file.truncate(0)
            file.close()
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self._bytes_since_index = 0
        self.index_full = False
        self.size = 0
        return self._index_objects(suffix=suffix)

    def rebuild_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Write both indexes anew from the batches."""
        index_rebuild.rebuild(self, self._disk)
        return self.offset_index, self.time_index

    def forget_indexes(self) -> None:
        """Their files were replaced: the new ones are opened when they are next needed."""
        self._close_indexes()
        self._offset_index = self._time_index = None

    def _close_indexes(self) -> None:
        if self._offset_index is not None:
            self._offset_index.file.close()
        if self._time_index is not None:
            self._time_index.file.close()

    def skip_damage(self, position: int) -> None:
        """The next batch stands at `position`, behind bytes that are none. It gets an index entry, so that searches land there."""
        self.size = position
        self._bytes_since_index = _FOREVER

    def valid_batch_after(self, position: int, end: int) -> int | None:
        return find_valid_batch(
            self.file,
            position + 1,
            end,
            first_offset=self.base_offset,
            last_offset=self.base_offset + MAX_RELATIVE_OFFSET,
        )

    # ---- finding

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """(position, header) of the first batch that ends at or behind `offset`; None if they all end before it.

        CorruptDataError when damaged bytes stand where it should be.
        """
        if self.damage is not None:
            return damages.find(self, self.damage, offset)
        entry_offset, start = (0, 0) if self.unindexed else self.offset_index.lookup(offset)
        if start and not self.is_batch_at(start, entry_offset):
            self.rebuild_indexes()
            start = self.offset_index.lookup(offset)[1]
        while True:
            try:
                for position, header in scan_headers(self.file, start, self.size):
                    if header.last_offset >= offset:
                        return position, header
                    start = position + header.size
                return None
            except CorruptDataError:
                behind = self.valid_batch_after(start, self.size)
                if behind is None or self.base_offset_at(behind) > offset:
                    raise
                start = behind

    def estimate_position(self, offset: int) -> int:
        """Where `offset` stands, give or take an index interval: no batch is read."""
        if offset <= self.base_offset:
            return 0
        return min(self.offset_index.lookup(offset)[1], self.size)

    def batch_boundary(self, position: int, limit: int) -> int | None:
        """The last batch start in (position, limit] that the index knows, within reach of a few probes."""
        window = 2 * self.config.index_interval_bytes + HEADER_SIZE
        while True:
            low = max(position + 1, limit - window)
            entry = self.offset_index.first_at_or_after_position(low)
            if entry is not None and entry[1] <= limit:
                return entry[1]
            if low == position + 1:
                return None
            window *= 8

    def base_offset_at(self, position: int) -> int:
        """Base offset of the batch that starts at `position`."""
        return int.from_bytes(self.file.read_at(8, position), "big")

    def cut_position(self, offset: int) -> tuple[int, int]:
        """Where to cut so that nothing at or above `offset` remains: the position, and the offset at which the log then ends.

        A batch that holds `offset` in its middle goes altogether; damaged bytes go too. The log ends where its last batch does,
        as it would if it were opened again: not in the middle of a gap.
        """
        if offset <= self.base_offset:
            return 0, self.base_offset
        if self.damage is not None:
            return damages.cut_position(self, self.damage, offset)
        end, end_offset = 0, self.base_offset
        try:
            for position, header in scan_headers(
                self.file, self.offset_index.lookup(offset - 1)[1], self.size
            ):
                if header.last_offset >= offset:
                    break
                end, end_offset = position + header.size, header.next_offset
        except CorruptDataError:
            return end, end_offset
        return end, end_offset

    # ---- leaving

    def truncate(self, position: int, offset: int) -> None:
        """Cut the log at `position`, where the batch that holds `offset` began, and everything derived from what is gone.

        Synced before it returns: an index entry or batch that came back after a crash would speak of data that was replaced.
        """
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self.file.truncate(position)
        self.size = position
        self.damage = tuple(damage for damage in self.damage or () if damage.position < position) or None
        sync_all(self._disk, self.directory, self.all_files())
        self._max_timestamp = None
        self._roll_timestamp = None if position else NO_TIMESTAMP
        self.index_full = False
        self.load_tail()

    def drop_unfinished(self, end_offset: int) -> None:
        """A batch at `end_offset` was half written on a full disk: files and memory are again as they were before it.

        Not synced: nobody was told of the batch, and what is appended in its place is synced together with the cut.
        """
        self.file.truncate(self.size)
        self.offset_index.truncate_to(end_offset)
        self.time_index.truncate_to(end_offset)
        for index in (self.offset_index, self.time_index):
            index.file.truncate(index.size_bytes)  # half an entry
        self.index_full = self.offset_index.is_full or self.time_index.is_full
        self.load_tail()

    def load_tail(self) -> int:
        """Read what follows the last index entry; returns the offset after the last batch (the base offset if there is none).

        CorruptDataError when the batches do not end exactly where the file does.
        """
        position = 0
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        if not self.unindexed:
            if self.offset_index.entries:
                self._check_time_index()
            position = self.offset_index.lookup(self.base_offset + MAX_RELATIVE_OFFSET)[1]
            self._max_timestamp, self._max_timestamp_offset = self.time_index.last_entry
        self._bytes_since_index = self.size - position
        next_offset = self.base_offset
        for start, end in damages.sound_stretches(self.damage or (), position, self.size):
            for _, header in scan_headers(self.file, start, end):
                next_offset = header.next_offset
                if header.max_timestamp > self._max_timestamp:
                    self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, header.last_offset
        return next_offset

    def all_files(self) -> list[File]:
        """The open files of this segment, the log first."""
        opened: list[File] = [self.file]
        if self._offset_index is not None:
            opened.append(self._offset_index.file)
        if self._time_index is not None:
            opened.append(self._time_index.file)
        if self._txn_index is not None and self._txn_index.file is not None:
            opened.append(self._txn_index.file)
        return opened

    def mark_deleted(self) -> list[str]:
        """Rename every file out of the way, the log first, and close; returns the new paths. A reader keeps what it has pinned."""
        marked = self.rename_files(files.DELETED)
        self.files_left(files.DELETED)
        return marked

    def rename_files(self, suffix: str) -> list[str]:
        """The part that waits for the disk: it touches nothing of this object, so it may run in any thread."""
        renamed = []
        for kind in SEGMENT_KINDS:
            path = self._path(kind)
            try:
                self._disk.rename(path, path + suffix)
            except FileNotFoundError:
                continue
            renamed.append(path + suffix)
        return renamed

    def files_left(self, suffix: str) -> None:
        for file in self.all_files():
            file.moved_to(file.path + suffix)
        self.close()

    def remove(self) -> None:
        """Remove every file at once: for data that must not come back, not for retention."""
        for kind in SEGMENT_KINDS:
            self._disk.remove(self._path(kind))
        self.close()

    def moved_to(self, directory: str) -> None:
        self.directory = directory
        for file in self.all_files():
            file.moved_to(files.join(directory, files.base_name(file.path)))
        if self._txn_index is not None:
            self._txn_index.moved_to(self._path(files.TXN_INDEX))

    def change_suffix(self, suffix: str) -> None:
        """Rename every file; the log last, for its name is what counts."""
        before = self.suffix
        for kind in reversed(SEGMENT_KINDS):
            path = files.segment_path(self.directory, self.base_offset, kind)
            if kind == files.LOG or self._disk.exists(path + before):
                self._disk.rename(path + before, path + suffix)
        self.suffix = suffix
        for file in self.all_files():
            file.moved_to(file.path.removesuffix(before) + suffix)
        if self._txn_index is not None:
            self._txn_index.moved_to(self._path(files.TXN_INDEX))

    def close(self) -> None:
        for file in self.all_files():
            file.close()

    def _path(self, kind: str) -> str:
        return files.segment_path(self.directory, self.base_offset, kind) + self.suffix
