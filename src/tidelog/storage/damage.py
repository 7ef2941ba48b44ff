"""How readers go around the stretches of a segment that hold no sound batch.

Recovery and the scrub find such stretches; a segment remembers them in `Segment.damage`, in the order of the file. From then on
nothing in them is served or believed, header fields included: a length or an offset that lies leads past sound batches, or to the
wrong ones. What stands before and behind stays readable (I2, I6). This file never finds damage and never changes a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader
from tidelog.storage.batch_scan import scan_headers
from tidelog.storage.recovery_report import Damage

if TYPE_CHECKING:
    from tidelog.storage.segment import Segment


def first_behind(damages: Sequence[Damage], position: int) -> Damage | None:
    """The damage at `position`, or the next one behind it."""
    for damage in damages:
        if damage.end_position > position:
            return damage
    return None


def sound_stretches(damages: Sequence[Damage], position: int, end: int) -> Iterator[tuple[int, int]]:
    """What lies between the damages in [position, end)."""
    for damage in damages:
        if position < damage.position:
            yield position, min(end, damage.position)
        position = max(position, damage.end_position)
        if position >= end:
            return
    if position < end:
        yield position, end


def readable_end(damages: Sequence[Damage], position: int, limit: int, limit_offset: int) -> tuple[int, int]:
    """How far a reader at `position` gets, as position and as offset, of what it may see. CorruptDataError: not at all."""
    damage = first_behind(damages, position)
    if damage is None or damage.position > limit:
        return limit, limit_offset
    if damage.position <= position:
        raise CorruptDataError(f"{damage}; offset {damage.end_offset} is the next that can be read")
    return damage.position, min(limit_offset, damage.first_offset)


def find(segment: Segment, damages: Sequence[Damage], offset: int) -> tuple[int, BatchHeader] | None:
    """`Segment.find` for a segment with damage: searches only the sound stretch that must hold `offset`."""
    start, end = 0, segment.size
    for damage in damages:
        if offset < damage.first_offset:
            end = damage.position
            break
        if offset < damage.end_offset:
            raise CorruptDataError(f"{damage}; offset {damage.end_offset} is the next that can be read")
        start = damage.end_position
    indexed_offset, indexed = segment.offset_index.lookup(offset)
    if start < indexed < end and segment.is_batch_at(indexed, indexed_offset, end=end):
        start = indexed
    for position, header in scan_headers(segment.file, start, end):
        if header.last_offset >= offset:
            return position, header
    return None


def cut_position(segment: Segment, damages: Sequence[Damage], offset: int) -> tuple[int, int]:
    """`Segment.cut_position` for a segment with damage. A damage that reaches `offset` goes altogether."""
    end, end_offset, limit = 0, segment.base_offset, segment.size
    for damage in damages:
        if damage.end_offset > offset:
            limit = damage.position
            break
        end, end_offset = damage.end_position, damage.end_offset
    try:
        for position, header in scan_headers(segment.file, end, limit):
            if header.last_offset >= offset:
                break
            end, end_offset = position + header.size, header.next_offset
    except CorruptDataError:
        return end, end_offset
    return end, end_offset
