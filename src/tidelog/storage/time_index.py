"""The sparse map from timestamps to offsets of one segment (`.timeindex`).

Each entry is 12 bytes, big endian: int64 timestamp, int32 offset relative to the segment's base. It says: the largest timestamp of
all records up to and including this offset is that timestamp. Timestamps rise strictly, so out-of-order records leave no
entry. Never reads the log; may always be deleted and is then rebuilt from it (I4). Format: docs/formats/indexes.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from tidelog.errors import CorruptDataError
from tidelog.storage.disk import File
from tidelog.storage.sorted_index import SortedIndex

ENTRY_BYTES: Final = 12
NO_TIMESTAMP: Final = -1
_ENTRY: Final = Struct(">qi")
_TIMESTAMP: Final = 0
_OFFSET: Final = 1


class TimeIndex:
    __slots__ = ("_entries", "base_offset", "file")

    def __init__(self, file: File, base_offset: int, max_bytes: int) -> None:
        self.file = file
        self.base_offset = base_offset
        self._entries = SortedIndex(file, _ENTRY, max_bytes)

    @property
    def entries(self) -> int:
        return len(self._entries)

    @property
    def max_entries(self) -> int:
        return self._entries.max_entries

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) if there is none."""
        last = self._entries.last()
        return (last[0], self.base_offset + last[1]) if last else (NO_TIMESTAMP, self.base_offset)

    @property
    def is_full(self) -> bool:
        """One place is kept free for the entry that is written when the segment is closed."""
        return len(self._entries) >= self._entries.max_entries - 1

    @property
    def size_bytes(self) -> int:
        return self._entries.size_bytes

    def append_if_newer(self, timestamp: int, offset: int, *, closing: bool = False) -> bool:
        """Add an entry if the timestamp is above the last one's; True if it was. `closing` may use the reserved place."""
        last_timestamp, last_offset = self.last_entry
        if timestamp <= last_timestamp:
            return False
        relative = offset - self.base_offset
        if offset < last_offset or relative > 0x7FFFFFFF:
            raise ValueError(
                f"offset {offset} does not fit behind {last_offset} in {self.file.path} (base {self.base_offset})"
            )
        if len(self._entries) >= self._entries.max_entries - (0 if closing else 1):
            raise ValueError(f"{self.file.path} is full with {self.entries} entries: roll the segment")
        self._entries.add(timestamp, relative)
        return True

    def hold(self) -> None:
        """Entries of several batches are to be written with one call, by `let_go`."""
        self._entries.hold()

    def let_go(self) -> None:
        self._entries.let_go()

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """(timestamp, offset) of the last entry at or below `timestamp`; (-1, base offset) if there is none."""
        number = self._entries.floor(_TIMESTAMP, timestamp)
        if number < 0:
            return NO_TIMESTAMP, self.base_offset
        found, relative = self._entries.at(number)
        return found, self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Forget entries whose offset is at or above `offset`."""
        self.truncate_to_entries(self._entries.count_below(_OFFSET, offset - self.base_offset))

    def truncate_to_entries(self, count: int) -> None:
        self._entries.keep_first(count)

    def check(self, *, deep: bool = False) -> None:
        """Raise CorruptDataError if this cannot be the segment's index. `deep` reads every entry."""
        self._entries.check_shape()
        last = self._entries.last()
        if last is not None and (last[1] < 0 or last[0] < self._entries.at(0)[0]):
            raise CorruptDataError(
                f"{self.file.path} ends with timestamp {last[0]} at relative offset {last[1]}: remove it, it is rebuilt from the log"
            )
        if deep:
            self._entries.check_order()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Every (timestamp, offset), for dumps."""
        for timestamp, relative in self._entries:
            yield timestamp, self.base_offset + relative

    def moved_to(self, path: str) -> None:
        self._entries.moved_to(path)

    def sync(self) -> None:
        self.file.sync()

    def close(self) -> None:
        self._entries.close()
