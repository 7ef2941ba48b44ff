"""Writes a segment's offset and time index anew from its batches, when they are missing or contradict the log (I4).

Damaged stretches of the log are stepped over, not judged: recovery has reported them. The new indexes replace the old ones only when they
are whole and durable, because half an index looks like a whole one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.errors import CorruptDataError
from tidelog.storage.batch_scan import SCAN_CHUNK_BYTES, scan_headers
from tidelog.storage.disk import Disk

if TYPE_CHECKING:
    from tidelog.storage.segment import Segment

_TEMPORARY: Final = ".tmp"  # as `write_file_atomically` names what is not finished; removed at the next start


def rebuild(segment: Segment, disk: Disk) -> None:
    end = segment.size
    indexes = segment.reset_indexes(suffix=_TEMPORARY)
    _note_batches(segment, end)
    segment.size = end
    segment.seal()
    for file in (indexes[0].file, indexes[1].file):
        file.sync()
        path = file.path.removesuffix(_TEMPORARY)
        disk.rename(file.path, path)
        file.moved_to(path)


def _note_batches(segment: Segment, end: int) -> None:
    position = 0
    while position < end:
        try:
            for at, header in scan_headers(segment.file, position, end, chunk_bytes=SCAN_CHUNK_BYTES):
                segment.note_batch(at, header)
            return
        except CorruptDataError:
            found = segment.valid_batch_after(segment.size, end)
            if found is None:
                return
            position = found
            segment.skip_damage(found)
