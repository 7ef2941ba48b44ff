"""The latest time of every segment, found before somebody asks: so that a question about time never waits for thousands of files.

A log that was just opened knows its active segment only. The first look-up by time needs the latest timestamp of each sealed one, three
small reads from three files, and a log may have ten thousand of them. `Unknown` hands them out in slices: a thread brings the bytes
into memory, the loop reads them. Nothing else of a segment is kept open for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.errors import CorruptDataError
from tidelog.storage import files
from tidelog.storage.disk import Disk, DiskError

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.segment import Segment

FEW: Final = 32
"""So many are looked up on the spot."""
_TAIL_BYTES: Final = 4096


class Slice:
    """Some segments of a log. `warm` in a thread, then `load` on the loop."""

    def __init__(self, log: Log, segments: Sequence[Segment]) -> None:
        self._log = log
        self._segments = segments

    def warm(self) -> None:
        for segment in self._segments:
            for kind in (files.INDEX, files.TIME_INDEX, files.LOG):
                _read_tail(segment.disk, files.segment_path(segment.directory, segment.base_offset, kind))

    def load(self) -> None:
        """What cannot be read is left for the look-up itself, which has an answer for it."""
        log = self._log
        for segment in self._segments:
            if log.segments[log.segment_number(segment.base_offset)] is not segment:
                continue  # retention or a truncation has taken it meanwhile
            were_open = segment.indexes_are_open
            try:
                _ = segment.max_timestamp
            except (CorruptDataError, DiskError):
                continue
            if not were_open:
                segment.forget_indexes()


def unknown_times(log: Log) -> list[Slice]:
    """Slices of the segments whose latest time is not known; none if there are but a few of them."""
    if log.times_are_known:
        return []
    unknown = [segment for segment in log.segments if not segment.max_timestamp_is_known]
    log.times_are_known = not unknown
    if len(unknown) <= FEW:
        return []
    return [Slice(log, unknown[first : first + FEW]) for first in range(0, len(unknown), FEW)]


def _read_tail(disk: Disk, path: str) -> None:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return
    try:
        size = file.size()
        file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    except (DiskError, FileNotFoundError):
        return
    finally:
        file.close()
