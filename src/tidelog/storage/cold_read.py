"""Which bytes a read would have to wait for: data that is not in the page cache any more.

A read on the event loop that meets a cold page holds up every client of the broker. So a fetch asks here first, has the cold bytes
brought in by a thread, and reads then. Readers at the log's end, where nearly all readers are, are told apart by two comparisons.

This is a courtesy and no guarantee: what was found in memory may be gone a moment later, and then the loop waits for the disk once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.errors import CorruptDataError
from tidelog.storage import files
from tidelog.storage.disk import Disk, DiskError, File

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.segment import Segment

HOT_TAIL_BYTES: Final = 32 << 20
"""What was written last is in memory."""
WARM_BYTES_MAX: Final = 8 << 20
"""At most so much is brought in for one fetch of one partition, and looked ahead for the fetches that follow it."""
SEEN_WARM_SECONDS = 0.02
"""So long what was seen in memory is taken to be still there: a reader asks again a thousand times a second."""


class ColdBytes(NamedTuple):
    """`warm` them in a thread, then ask again: an index comes before the batches it leads to."""

    disk: Disk
    path: str
    file: File | None  # None: the whole file at `path`, which nobody has opened yet
    position: int
    size: int

    def warm(self) -> None:
        if self.file is not None:
            self.file.warm(self.size, self.position)
            return
        try:
            file = self.disk.open(self.path)
        except FileNotFoundError:
            return  # deleted meanwhile, or to be rebuilt
        try:
            file.warm(file.size(), 0)
        finally:
            file.close()


def find_cold(
    log: Log, offset: int, max_bytes: int, now: float, *, index_was_warmed: bool = False
) -> ColdBytes | None:
    """The first thing that a read of `max_bytes` from `offset` would wait for; None when all of it is in memory.

    `now` is in seconds of any clock that does not go back. Also None when the look fails: the read itself meets the same trouble, and has an answer for it. `index_was_warmed`: this was asked
    a moment ago, and an index that nobody has opened yet was read into memory.
    """
    try:
        return _find_cold(log, offset, max_bytes, now, index_was_warmed=index_was_warmed)
    except (CorruptDataError, DiskError, FileNotFoundError):
        return None


def _find_cold(
    log: Log, offset: int, max_bytes: int, now: float, *, index_was_warmed: bool
) -> ColdBytes | None:
    if not log.log_start_offset <= offset < log.log_end_offset:
        return None
    place = log.positions.get(offset)
    active = log.active
    if place is not None:
        segment, position = place
    else:
        segment = log.segments[log.segment_number(offset)]
        position = 0 if offset <= segment.base_offset else -1  # -1: the index knows
    if segment is active and active.size - position <= HOT_TAIL_BYTES:
        return None
    if segment.damage is not None:
        return None  # perhaps there is no file to look at
    needs_index = position < 0 or segment.size - position > max_bytes  # for the beginning, or for the end
    if needs_index and segment is not active and not segment.indexes_are_open and not index_was_warmed:
        path = files.segment_path(segment.directory, segment.base_offset, files.INDEX)
        return ColdBytes(segment.disk, path, None, 0, 0)
    if position < 0:
        position = segment.estimate_position(offset)
    # The end of an answer is looked for in the index interval behind its size.
    wanted = min(max_bytes + 2 * segment.config.index_interval_bytes, WARM_BYTES_MAX, segment.size - position)
    if wanted <= 0 or _is_warm(segment, position, wanted, now):
        return None
    return ColdBytes(segment.disk, segment.file.path, segment.file, position, wanted)


def _is_warm(segment: Segment, position: int, wanted: int, now: float) -> bool:
    begin, end, until = segment.seen_warm
    if begin <= position and position + wanted <= end and now < until:
        return True
    ahead = min(WARM_BYTES_MAX, segment.size - position)
    if ahead > wanted and segment.file.is_cached(ahead, position):
        wanted = ahead
    elif not segment.file.is_cached(wanted, position):
        return False
    segment.seen_warm = position, position + wanted, now + SEEN_WARM_SECONDS
    return True


def warm_all(cold: Sequence[ColdBytes]) -> None:
    for each in cold:
        each.warm()
