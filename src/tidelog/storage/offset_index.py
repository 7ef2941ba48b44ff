"""The sparse map from offsets to byte positions of one segment (`.index`).

Each entry is 8 bytes, big endian: int32 offset relative to the segment's base, int32 position in the `.log` file. Owns that file's
contents; never reads the log. It may always be deleted and is then rebuilt from the log (I4). Format: docs/formats/indexes.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from tidelog.errors import CorruptDataError
from tidelog.storage.disk import File
from tidelog.storage.sorted_index import SortedIndex

ENTRY_BYTES: Final = 8
_ENTRY: Final = Struct(">ii")
_OFFSET: Final = 0
_POSITION: Final = 1


class OffsetIndex:
    __slots__ = ("_entries", "_last_relative", "base_offset", "file")

    def __init__(self, file: File, base_offset: int, max_bytes: int) -> None:
        self.file = file
        self.base_offset = base_offset
        self._entries = SortedIndex(file, _ENTRY, max_bytes)
        self._last_relative: int | None = None  # None: not looked yet. -1: no entries

    @property
    def entries(self) -> int:
        return len(self._entries)

    @property
    def max_entries(self) -> int:
        return self._entries.max_entries

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset if there is none."""
        last = self._entries.last()
        return self.base_offset + (last[0] if last else 0)

    @property
    def is_full(self) -> bool:
        return len(self._entries) >= self._entries.max_entries

    @property
    def size_bytes(self) -> int:
        return self._entries.size_bytes

    def append(self, offset: int, position: int) -> None:
        """Add an entry. Offsets must rise; a segment whose index `is_full` must have been rolled before."""
        relative = offset - self.base_offset
        last = self._last_relative
        if last is None:
            last = self._find_last()
        if relative <= last or relative > 0x7FFFFFFF:
            raise ValueError(
                f"offset {offset} does not fit behind {self.last_offset} in {self.file.path} (base {self.base_offset})"
            )
        if self.is_full:
            raise ValueError(f"{self.file.path} is full with {self.entries} entries: roll the segment")
        self._entries.add(relative, position)
        self._last_relative = relative

    def hold(self) -> None:
        """Entries of several batches are to be written with one call, by `let_go`."""
        self._entries.hold()

    def let_go(self) -> None:
        self._entries.let_go()

    def lookup(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or below `offset`: where a scan for it may start. (base, 0) if there is none."""
        number = self._entries.floor(_OFFSET, offset - self.base_offset)
        if number < 0:
            return self.base_offset, 0
        relative, position = self._entries.at(number)
        return self.base_offset + relative, position

    def first_at_or_after_position(self, position: int) -> tuple[int, int] | None:
        """(offset, position) of the first entry at or behind a position of the log; None if the index ends before it."""
        number = self._entries.count_below(_POSITION, position)
        if number >= len(self._entries):
            return None
        relative, found = self._entries.at(number)
        return self.base_offset + relative, found

    def truncate_to(self, offset: int) -> None:
        """Forget entries at or above `offset`."""
        self.truncate_to_entries(self._entries.count_below(_OFFSET, offset - self.base_offset))

    def truncate_to_entries(self, count: int) -> None:
        self._entries.keep_first(count)
        self._last_relative = None

    def check(self, *, deep: bool = False) -> None:
        """Raise CorruptDataError if this cannot be the segment's index. `deep` reads every entry."""
        self._entries.check_shape()
        last = self._entries.last()
        if last is not None and (last[0] < 0 or last[1] < 0):
            raise CorruptDataError(
                f"{self.file.path} ends with relative offset {last[0]} at position {last[1]}: remove it, it is rebuilt from the log"
            )
        if deep:
            self._entries.check_order()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Every (offset, position), for dumps."""
        for relative, position in self._entries:
            yield self.base_offset + relative, position

    def moved_to(self, path: str) -> None:
        self._entries.moved_to(path)

    def sync(self) -> None:
        self.file.sync()

    def close(self) -> None:
        self._entries.close()

    def _find_last(self) -> int:
        last = self._entries.last()
        self._last_relative = last[0] if last else -1
        return self._last_relative
