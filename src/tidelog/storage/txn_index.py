"""The aborted transactions of one segment (`.txnindex`), which `read_committed` consumers must skip (I42).

Each entry is 34 bytes, big endian: int16 version (0), int64 producer id, int64 first offset, int64 last offset (the abort marker's), int64
last stable offset at the moment the marker was written. The file exists only once a transaction was aborted. Entries are in the
order of their markers. May always be deleted and is then rebuilt from the log (I4). Format: docs/formats/indexes.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from tidelog.errors import CorruptDataError
from tidelog.storage.disk import Disk, File

ENTRY_BYTES: Final = 34
_VERSION: Final = 0
_ENTRY: Final = Struct(">hqqqq")
_BLOCK_ENTRIES: Final = 120


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex:
    """`path` need not exist: the file is created by the first `append`."""

    __slots__ = ("_disk", "_entries", "_file", "_last_offset", "_path", "base_offset")

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        self._disk = disk
        self._path = path
        self.base_offset = base_offset
        self._file: File | None = disk.open(path) if disk.exists(path) else None
        self._entries = -1 if self._file else 0
        self._last_offset = -1

    @property
    def path(self) -> str:
        return self._path

    @property
    def file(self) -> File | None:
        """None as long as no transaction was aborted in this segment."""
        return self._file

    @property
    def entries(self) -> int:
        return self._entries if self._entries >= 0 else self._load()

    @property
    def last_offset(self) -> int:
        """Of the last marker; -1 if there is none."""
        return self._last_offset if self.entries else -1

    def append(self, aborted: AbortedTransaction) -> bool:
        """Add an entry. True if that created the file, whose directory then needs a sync."""
        if self.entries and aborted.last_offset <= self._last_offset:
            raise ValueError(
                f"marker at offset {aborted.last_offset} is not behind the last one at {self._last_offset} in {self._path}"
            )
        created = self._file is None
        if self._file is None:
            self._file = self._disk.open(self._path, create=True)
        self._file.write_at((_ENTRY.pack(_VERSION, *aborted),), self._entries * ENTRY_BYTES)
        self._entries += 1
        self._last_offset = aborted.last_offset
        return created

    def collect(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Transactions that overlap [start, end), and whether later segments can hold no more of them.

        When an entry's last stable offset has reached `end_offset`, everything below was decided at that moment.
        """
        if self._file is None:
            return [], False
        found = []
        for aborted in self:
            if aborted.last_offset >= start_offset and aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Forget entries whose marker is at or above `offset`."""
        keep = 0
        last = -1
        for aborted in self:
            if aborted.last_offset >= offset:
                break
            keep += 1
            last = aborted.last_offset
        if keep < self.entries and self._file is not None:
            self._file.truncate(keep * ENTRY_BYTES)
            self._entries = keep
            self._last_offset = last

    def clear(self) -> None:
        self.truncate_to(-1)

    def check(self) -> None:
        """Raise CorruptDataError if this cannot be the segment's index. Reads every entry: there are few."""
        if self._file is not None and self._file.size() % ENTRY_BYTES:
            raise CorruptDataError(
                f"{self._path} is {self._file.size()} bytes long, not a multiple of {ENTRY_BYTES}: remove it, it is rebuilt from the log"
            )
        before = self.base_offset - 1
        for number, aborted in enumerate(self):
            if not before < aborted.last_offset or aborted.first_offset > aborted.last_offset:
                raise CorruptDataError(
                    f"{self._path}: entry {number} is {aborted} after a marker at {before}: remove the file, it is rebuilt from the log"
                )
            before = aborted.last_offset

    def __iter__(self) -> Iterator[AbortedTransaction]:
        file = self._file
        total = self.entries
        for start in range(0, total if file else 0, _BLOCK_ENTRIES):
            assert file is not None
            wanted = min(_BLOCK_ENTRIES, total - start)
            data = file.read_at(wanted * ENTRY_BYTES, start * ENTRY_BYTES)
            for number, (version, *fields) in enumerate(_ENTRY.iter_unpack(data), start):
                if version != _VERSION:
                    raise CorruptDataError(
                        f"{self._path}: entry {number} has version {version}, known is {_VERSION}: remove the file, it is rebuilt from the log"
                    )
                yield AbortedTransaction(*fields)

    def moved_to(self, path: str) -> None:
        self._path = path
        if self._file is not None:
            self._file.moved_to(path)

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _load(self) -> int:
        assert self._file is not None
        self._entries = self._file.size() // ENTRY_BYTES
        if self._entries:
            data = self._file.read_at(ENTRY_BYTES, (self._entries - 1) * ENTRY_BYTES)
            self._last_offset = _ENTRY.unpack(data)[3]
        return self._entries
