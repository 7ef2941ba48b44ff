"""Finds the bytes that answer a fetch, and remembers where readers left off.

Owns the way from an offset to a file range. A range never reaches past the end offset the caller names (high watermark or last stable
offset), starts with a whole batch and, where the index makes it cheap, ends with one. It never reads records: the bytes go to the
socket from the file (D2). Reading changes nothing but the memory of positions.

Bytes that recovery or scrub found damaged are never in a range (I2): a read ends before them, and one that begins at them fails. What is
damaged and not yet known as such is sent, and fails its CRC at the client; a length or an offset that lies must not do worse here.

Budget: 2.6 µs where a reader left off, 32 µs for any other offset (`bench/budgets.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.errors import CorruptDataError, RequestError
from tidelog.records.batch import CURRENT_MAGIC, HEADER_SIZE, MAGIC_OFFSET, read_header
from tidelog.storage.batch_scan import scan_headers
from tidelog.storage.damage import readable_end
from tidelog.storage.disk import FileRange
from tidelog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.segment import Segment

_REMEMBERED_POSITIONS: Final = 64
_MAGIC: Final = bytes((CURRENT_MAGIC,))
_WALK_BYTES: Final = 64 << 10  # up to here walking over headers is as cheap as asking the index


class LogRead(NamedTuple):
    """What a read found. `range` is None when there is nothing to read; its owner releases it."""

    range: FileRange | None
    start_offset: int
    next_offset: int | None  # where the next sequential read begins; None if the last batch had to be cut
    upper_offset: int  # no record in the range has this offset or a higher one
    segment_base_offset: int = -1
    position: int = -1

    @property
    def size(self) -> int:
        return 0 if self.range is None else self.range.count


class Positions:
    """Where offsets stand that someone will ask for again: ends of reads and flushes. Bounded; the oldest goes first."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[int, tuple[Segment, int]] = {}

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        places = self._places
        if len(places) >= _REMEMBERED_POSITIONS and offset not in places:
            del places[next(iter(places))]
        places[offset] = (segment, position)

    def get(self, offset: int) -> tuple[Segment, int] | None:
        return self._places.get(offset)

    def clear(self) -> None:
        self._places.clear()


def read(log: Log, start_offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool) -> LogRead:
    check_range(log, start_offset)
    log_end_offset = log.log_end_offset
    if end_offset > log_end_offset:
        end_offset = log_end_offset
    if start_offset >= end_offset:
        return LogRead(None, start_offset, start_offset, start_offset)
    place = log.positions.get(start_offset) or locate(log, start_offset)
    if place is None:
        return LogRead(None, start_offset, start_offset, start_offset)
    segment, position = place
    limit, limit_offset = _readable_end(log, segment, end_offset)
    if segment.damage is not None:
        limit, limit_offset = readable_end(segment.damage, position, limit, limit_offset)
    if position >= limit:
        return LogRead(None, start_offset, start_offset, start_offset)
    if limit - position <= max_bytes:
        if segment.damage is None:  # otherwise the next offset may stand behind what is damaged
            _remember_end(log, segment, limit, limit_offset)
        found = FileRange(segment.file, position, limit - position)
        return LogRead(found, start_offset, limit_offset, limit_offset, segment.base_offset, position)
    return _cut_read(log, segment, position, limit, limit_offset, start_offset, max_bytes, min_one_batch)


def check_range(log: Log, offset: int) -> None:
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise RequestError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {log.name} was asked for; the log holds"
            f" {log.log_start_offset} to {log.log_end_offset} (exclusive)",
        )


def locate(log: Log, offset: int) -> tuple[Segment, int] | None:
    """Where the first batch stands that ends at or behind `offset`. None: no batch does. Gaps lead to the next batch."""
    segments = log.segments
    for number in range(log.segment_number(offset), len(segments)):
        segment = segments[number]
        if offset <= segment.base_offset:
            if segment.size:
                return segment, 0
            continue
        found = segment.find(offset)
        if found is not None:
            return segment, found[0]
    return None


def position_of(log: Log, offset: int) -> tuple[Segment, int]:
    """Where the first byte stands that a reader below `offset` may not see."""
    if offset >= log.log_end_offset:
        return log.active, log.active.size
    place = log.positions.get(offset)
    if place is None:
        try:
            place = locate(log, offset) or (log.active, log.active.size)
        except CorruptDataError:  # damaged bytes stand there; what is before them can be read
            segment = log.segments[log.segment_number(offset)]
            place = segment, segment.cut_position(offset)[0]
        log.positions.remember(offset, *place)
    return place


def _readable_end(log: Log, segment: Segment, end_offset: int) -> tuple[int, int]:
    """How far this segment may be read, as position and as offset."""
    if segment is log.active:
        if end_offset == log.log_end_offset:
            return segment.size, end_offset
    else:
        next_base = log.segments[log.segment_number(segment.base_offset) + 1].base_offset
        if end_offset >= next_base:
            return segment.size, next_base
    if end_offset == log.high_watermark:
        place = log.high_watermark_place()
    else:
        place = position_of(log, end_offset)
    if place[0] is segment:
        return place[1], end_offset
    # The end stands in a later segment behind a gap, or (a segment's end seen as the next one's start) in an earlier one.
    return (segment.size if place[0].base_offset > segment.base_offset else 0), end_offset


def _remember_end(log: Log, segment: Segment, position: int, offset: int) -> None:
    if segment is not log.active and position == segment.size:
        segment, position = log.segments[log.segment_number(segment.base_offset) + 1], 0
    log.positions.remember(offset, segment, position)


def _cut_read(
    log: Log,
    segment: Segment,
    position: int,
    limit: int,
    limit_offset: int,
    start_offset: int,
    max_bytes: int,
    min_one_batch: bool,
) -> LogRead:
    """More is there than may be sent: end at a batch boundary if one can be found cheaply, never inside the first batch."""
    end: int | None = None
    if max_bytes > _WALK_BYTES:
        end = segment.batch_boundary(position, position + max_bytes)
    if end is None:  # the index knows of no other batch so near
        first_size = _size_at(segment, position, limit)
        if first_size > max_bytes:
            if not min_one_batch:
                return LogRead(None, start_offset, start_offset, start_offset)
            end = position + first_size
        elif max_bytes <= _WALK_BYTES:
            end = _walk_to_boundary(segment, position, position + max_bytes)
    next_offset = None if end is None else limit_offset
    if end is not None and end < limit:
        next_offset = _offset_at(segment, end, start_offset, limit_offset)
        if next_offset is not None:
            log.positions.remember(next_offset, segment, end)
    if end is None:
        end = position + max_bytes
    found = FileRange(segment.file, position, end - position)
    upper_offset = limit_offset if next_offset is None else next_offset
    return LogRead(found, start_offset, next_offset, upper_offset, segment.base_offset, position)


def _size_at(segment: Segment, position: int, limit: int) -> int:
    """Size of the batch at `position`. One that claims more than a reader may see is damaged: sent, it would show what is not committed."""
    raw = segment.file.read_at(HEADER_SIZE, position)
    size = read_header(raw).size if len(raw) == HEADER_SIZE else 0
    if not HEADER_SIZE <= size <= limit - position:
        raise CorruptDataError(
            f"{segment.file.path}: the batch at position {position} claims {size} bytes, {limit - position} may be read"
        )
    return size


def _offset_at(segment: Segment, position: int, start_offset: int, limit_offset: int) -> int | None:
    """Base offset of the batch that the index says begins at `position`. None: it lies, and must not be remembered."""
    raw = segment.file.read_at(MAGIC_OFFSET + 1, position)
    offset = int.from_bytes(raw[:8], "big")
    is_batch = raw[MAGIC_OFFSET:] == _MAGIC and start_offset < offset <= limit_offset
    return offset if is_batch else None


def _walk_to_boundary(segment: Segment, position: int, limit: int) -> int:
    end = position
    try:
        for at, header in scan_headers(
            segment.file, position, segment.size, chunk_bytes=limit - position + HEADER_SIZE
        ):
            if at + header.size > limit:
                break
            end = at + header.size
    except CorruptDataError:
        if end == position:
            raise
    return end


def bytes_between(log: Log, start_offset: int, end_offset: int) -> int:
    """About how many bytes stand between two offsets: exact at the places readers and writers are, else to an index interval.

    At least 1 when `start_offset < end_offset`: a fetch that waits for one byte must not wait for the estimate.
    """
    if start_offset >= end_offset:
        return 0
    first = log.segment_number(start_offset)
    start = log.positions.get(start_offset)
    if start is None:
        segment = log.segments[first]
        start = segment, segment.estimate_position(start_offset)
    if end_offset >= log.log_end_offset:
        end = log.active, log.active.size
    elif end_offset == log.high_watermark:
        end = log.high_watermark_place()
    else:
        segment = log.segments[log.segment_number(end_offset)]
        end = log.positions.get(end_offset) or (segment, segment.estimate_position(end_offset))
    if start[0] is end[0]:
        return max(1, end[1] - start[1])
    last = log.segment_number(end[0].base_offset)
    first = log.segment_number(start[0].base_offset)
    between = sum(segment.size for segment in log.segments[first:last])
    return max(1, between - start[1] + end[1])
