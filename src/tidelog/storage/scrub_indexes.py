"""The indexes of a segment beside its log, walking along while the scrub goes from batch to batch.

Each entry must describe a batch exactly as the segment itself would write it; entries of batches that are damaged are not blamed. Reads a few
entries at a time. It only says whether the indexes are right: they are derived, and whoever asks writes them anew (I4).
"""

from __future__ import annotations

from struct import error as struct_error
from typing import Final, Protocol

from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.time_index import TimeIndex

_NOWHERE: Final = 1 << 63


class Checked(Protocol):
    """The check of the log, as far as it has come."""

    def is_damaged(self, position: int) -> bool: ...

    def is_lost(self, offset: int) -> bool: ...


class IndexWalk:
    """`check` with every sound batch that stands at `next_position` or reaches `next_offset`, then `finish`."""

    def __init__(self, log: Checked, offset_index: OffsetIndex | None, time_index: TimeIndex | None) -> None:
        self.problem: str | None = None
        self.next_position = self.next_offset = _NOWHERE
        self._log = log
        self._offset_index = offset_index
        self._offsets = iter(offset_index if offset_index is not None else ())
        self._times = iter(time_index if time_index is not None else ())
        self._last_offset = self._timestamp = -1
        if offset_index is None or time_index is None:
            self._wrong("a file is missing")
            return
        try:
            offset_index.check()
            time_index.check()
            self._next_position()
            self._next_time()
        except (CorruptDataError, struct_error) as error:
            self._wrong(str(error))

    def check(self, position: int, header: BatchHeader) -> None:
        try:
            while position >= self.next_position:
                right = self.next_position == position and self._last_offset == header.last_offset
                if not right and not self._log.is_damaged(self.next_position):
                    self._wrong(
                        f"no batch that ends at offset {self._last_offset} stands at {self.next_position}"
                    )
                    return
                self._next_position()
            while header.last_offset >= self.next_offset:
                right = self.next_offset == header.last_offset and self._timestamp == header.max_timestamp
                if not right and not self._log.is_lost(self.next_offset):
                    self._wrong(f"no batch that ends at offset {self.next_offset} has time {self._timestamp}")
                    return
                self._next_time()
        except struct_error as error:  # the file became shorter meanwhile
            self._wrong(str(error))

    def confirms(self, position: int, last_offset: int) -> bool:
        """Whether an entry says that the batch at this position ends with this offset; False also where there is none."""
        if self._offset_index is None or self.problem is not None:
            return False
        try:
            return self._offset_index.first_at_or_after_position(position) == (last_offset, position)
        except (CorruptDataError, struct_error):
            return False  # `check` comes upon it, too, and says so

    def finish(self) -> None:
        """Entries that are left speak of what is not there."""
        while self.next_position < _NOWHERE and self._log.is_damaged(self.next_position):
            self._next_position()
        while self.next_offset < _NOWHERE and self._log.is_lost(self.next_offset):
            self._next_time()
        if self.next_position < _NOWHERE or self.next_offset < _NOWHERE:
            self._wrong("entries stand behind the last batch")

    def _next_position(self) -> None:
        self._last_offset, self.next_position = next(self._offsets, (-1, _NOWHERE))

    def _next_time(self) -> None:
        self._timestamp, self.next_offset = next(self._times, (-1, _NOWHERE))

    def _wrong(self, problem: str) -> None:
        self.problem = problem
        self.next_position = self.next_offset = _NOWHERE
