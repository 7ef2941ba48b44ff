"""Writes a segment's offset and time index anew from its batches, when they are missing or contradict the log (I4).

Damaged stretches of the log are stepped over, not judged: recovery and scrub report them. The new indexes replace the old ones only when they
are whole and durable, because half an index looks like a whole one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader
from tidelog.storage.batch_scan import SCAN_CHUNK_BYTES, scan_headers
from tidelog.storage.damage import sound_stretches
from tidelog.storage.disk import Disk, File

if TYPE_CHECKING:
    from tidelog.storage.segment import Segment

_TEMPORARY: Final = ".tmp"  # as `write_file_atomically` names what is not finished; removed at the next start


def rebuild(segment: Segment, disk: Disk) -> None:
    for file in write(segment, _TEMPORARY):
        path = file.path.removesuffix(_TEMPORARY)
        disk.rename(file.path, path)
        file.moved_to(path)


def write(segment: Segment, suffix: str) -> tuple[File, File]:
    """Both indexes, whole and durable, under names with this suffix."""
    end = segment.size
    indexes = segment.reset_indexes(suffix=suffix)
    for start, stop in sound_stretches(segment.damage or (), 0, end):
        if start:
            segment.skip_damage(start)
        _note_batches(segment, start, stop)
    segment.size = end
    segment.seal()
    for index in indexes:
        index.sync()
    return indexes[0].file, indexes[1].file


def _note_batches(segment: Segment, position: int, end: int) -> None:
    while position < end:
        try:
            for at, header in scan_headers(segment.file, position, end, chunk_bytes=SCAN_CHUNK_BYTES):
                if _fits(segment, header):
                    segment.note_batch(at, header)
                else:
                    segment.size = (
                        at + header.size
                    )  # its offset is damaged: whoever checks the segment will say so
            return
        except CorruptDataError:
            found = segment.valid_batch_after(segment.size, end)
            if found is None:
                return
            position = found
            segment.skip_damage(found)


def _fits(segment: Segment, header: BatchHeader) -> bool:
    """Whether the batch ends behind everything that the new indexes know, and where one of this segment may."""
    index, relative = segment.offset_index, header.last_offset - segment.base_offset
    last = index.last_offset if index.entries else segment.base_offset - 1
    return last < header.last_offset >= segment.time_index.last_entry[1] and relative < 1 << 31
