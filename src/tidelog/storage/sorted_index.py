"""A file of fixed-size pairs, sorted by both columns: what offset index and time index have in common.

Owns the search and the in-memory tail. It knows nothing of offsets or timestamps. Appends go through `File.write_at`, never
through a writable mapping: on a full disk that is a SIGBUS and a dead process, this is an error. Everything here can be rebuilt
from the log (I4).

The last entries live in memory, so that appends and lookups near the end of the log read nothing. Older lookups find their
4 KiB block by probing first entries (remembered once read) and then search inside that block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final

from tidelog.errors import CorruptDataError
from tidelog.storage.disk import DiskError, File

_BLOCK_BYTES: Final = 4096


class SortedIndex:
    __slots__ = (
        "_block",
        "_block_number",
        "_columns",
        "_count",
        "_file_entries",
        "_firsts",
        "_held",
        "_layout",
        "_pack",
        "_per_block",
        "_size",
        "_tail_start",
        "file",
        "max_entries",
    )

    def __init__(self, file: File, layout: Struct, max_bytes: int) -> None:
        self.file = file
        self._layout = layout
        self._pack = layout.pack
        self._size = layout.size
        self._per_block = _BLOCK_BYTES // layout.size
        self.max_entries = max_bytes // layout.size
        # The file is looked at when the index is first used: a broker opens thousands of closed segments at start.
        self._count = -1
        self._file_entries = 0
        self._tail_start = 0
        self._columns: tuple[list[int], list[int]] = ([], [])
        self._firsts: dict[int, tuple[int, int]] = {}
        self._held: list[bytes] | None = None  # entries that are added and not written yet
        self._block_number = -1
        self._block = b""

    def __len__(self) -> int:
        return self._count if self._count >= 0 else self._load()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """All pairs in order, for dumps and checks."""
        count = len(self)
        for start in range(0, count, self._per_block):
            wanted = min(self._per_block, count - start)
            block = self.file.read_at(wanted * self._size, start * self._size)
            yield from self._layout.iter_unpack(block)

    @property
    def size_bytes(self) -> int:
        return len(self) * self._size

    def last(self) -> tuple[int, int] | None:
        if len(self) == 0:
            return None
        firsts, seconds = self._columns
        return firsts[-1], seconds[-1]

    def add(self, first: int, second: int) -> None:
        """Append a pair. The caller has checked that it is above the last one in both columns."""
        if self._count < 0:
            self._load()
        entry = self._pack(first, second)
        if self._held is None:
            self.file.write_at((entry,), self._count * self._size)
        else:
            self._held.append(entry)
        self._count += 1
        firsts, seconds = self._columns
        firsts.append(first)
        seconds.append(second)
        if len(firsts) > 2 * self._per_block:
            del firsts[: self._per_block]
            del seconds[: self._per_block]
            self._tail_start += self._per_block

    def hold(self) -> None:
        """What is added from now on is written with one call by `let_go`; nothing may be read, and nothing taken away, before that."""
        self._held = []

    def let_go(self) -> None:
        held, self._held = self._held, None
        if held:
            try:
                self.file.write_at((b"".join(held),), (self._count - len(held)) * self._size)
            except DiskError:
                self._count = -1  # what of it is there, the file knows
                raise

    def at(self, number: int) -> tuple[int, int]:
        """The pair with this number, counted from 0."""
        if not 0 <= number < len(self):
            raise IndexError(f"{self.file.path} has {len(self)} entries, there is no number {number}")
        if number >= self._tail_start:
            firsts, seconds = self._columns
            return firsts[number - self._tail_start], seconds[number - self._tail_start]
        block = number // self._per_block
        return self._unpack(self._read_block(block), number - block * self._per_block)

    def floor(self, column: int, target: int) -> int:
        """Number of the last entry whose `column` is at most `target`; -1 if there is none."""
        if len(self) == 0:
            return -1
        tail = self._columns[column]
        if tail[0] <= target or self._tail_start == 0:
            return self._tail_start + bisect_right(tail, target) - 1
        block = self._floor_block(column, target)
        if block < 0:
            return -1
        data = self._read_block(block)
        low, high = 0, len(data) // self._size
        while high - low > 1:  # entry `low` is at most the target, entry `high` is above it
            middle = (low + high) >> 1
            if self._unpack(data, middle)[column] <= target:
                low = middle
            else:
                high = middle
        return block * self._per_block + low

    def keep_first(self, count: int) -> None:
        """Forget every entry from number `count` on."""
        if count >= len(self) and self._file_entries <= self._count:
            return
        kept = min(count, self._count)
        self.file.truncate(kept * self._size)
        self._file_entries = 0
        if kept < self._count:
            self._count = kept
            self._read_tail()

    def count_below(self, column: int, target: int) -> int:
        """How many entries have a `column` strictly below `target`."""
        return self.floor(column, target - 1) + 1

    def check_shape(self) -> None:
        """Raise CorruptDataError if the file cannot be an index: cheap, done for every segment at start."""
        size = self.file.size()
        if size % self._size:
            raise CorruptDataError(
                f"{self.file.path} is {size} bytes long, not a multiple of {self._size}: remove it, it is rebuilt from the log"
            )

    def check_order(self) -> None:
        """Raise CorruptDataError unless the first column rises and the second never falls. Reads the whole file."""
        before: tuple[int, int] | None = None
        for number, entry in enumerate(self):
            if entry[1] < 0 or (before is not None and (entry[0] <= before[0] or entry[1] < before[1])):
                raise CorruptDataError(
                    f"{self.file.path}: entry {number} is {entry} after {before}: remove the file, it is rebuilt from the log"
                )
            before = entry

    def close(self) -> None:
        """Cut the zeroes that a preallocating writer left behind the last entry, and close the file."""
        if self._count >= 0 and self._file_entries > self._count:
            self.file.truncate(self._count * self._size)
        self.file.close()

    def moved_to(self, path: str) -> None:
        self.file.moved_to(path)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _load(self) -> int:
        self._file_entries = self.file.size() // self._size
        self._count = self._without_padding(self._file_entries)
        self._read_tail()
        return self._count

    def _without_padding(self, entries: int) -> int:
        """Kafka preallocates the active segment's indexes; after an unclean stop zeroes follow the last entry.

        A zero entry proper can only be the first, since both columns rise, and a file of one entry is never preallocated. If
        zeroes follow such a first entry it is taken for padding too: lookups then start at the base offset, as it says.
        """
        if entries <= 1 or self._raw(entries - 1).strip(b"\0"):
            return entries
        low, high = 0, entries - 1  # entry `high` is zero
        while low < high:
            middle = (low + high) >> 1
            if self._raw(middle).strip(b"\0"):
                low = middle + 1
            else:
                high = middle
        return low

    def _raw(self, number: int) -> bytes:
        return self.file.read_at(self._size, number * self._size)

    def _read_tail(self) -> None:
        self._firsts.clear()
        self._block_number = -1
        self._block = b""
        self._tail_start = max(0, (self._count - 1) // self._per_block * self._per_block)
        data = self.file.read_at((self._count - self._tail_start) * self._size, self._tail_start * self._size)
        pairs = list(self._layout.iter_unpack(data))
        self._columns = ([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    def _floor_block(self, column: int, target: int) -> int:
        firsts = self._firsts
        low, high = -1, self._tail_start // self._per_block
        while high - low > 1:
            middle = (low + high) >> 1
            entry = firsts.get(middle)
            if entry is None:
                entry = firsts[middle] = self._unpack(self._raw(middle * self._per_block), 0)
            if entry[column] <= target:
                low = middle
            else:
                high = middle
        return low

    def _read_block(self, block: int) -> bytes:
        if block != self._block_number:
            self._block = self.file.read_at(
                self._per_block * self._size, block * self._per_block * self._size
            )
            self._block_number = block
        return self._block

    def _unpack(self, data: bytes, number: int) -> tuple[int, int]:
        first, second = self._layout.unpack_from(data, number * self._size)
        return first, second
