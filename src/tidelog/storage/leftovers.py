"""What a crash or a cleaner left in a partition's directory, put away before the log is opened.

`.tmp` and `.cleaned` files were never finished and go. `.deleted` files were let go by retention and go. `.swap` files are the finished
output of a cleaner: the swap is completed, so that old or new segments stand there, never a mix (I32). An index without its log goes: it
can be derived, and may be of a segment whose creation or deletion was half done. The `.log` files themselves are never judged here.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.storage import files
from tidelog.storage.batch_scan import scan_headers
from tidelog.storage.disk import Disk
from tidelog.storage.files import SegmentFile

_TEMPORARY = ".tmp"


def put_away(disk: Disk, directory: str) -> list[str]:
    """Clean the directory up; returns the names that are left. Changes are durable when it returns."""
    names = disk.list_dir(directory)
    parsed = {name: file for name in names if (file := files.parse_segment_name(name)) is not None}
    changed = _complete_swaps(disk, directory, parsed.values())
    if changed:
        names = disk.list_dir(directory)
        parsed = {name: file for name in names if (file := files.parse_segment_name(name)) is not None}
    logs = {file.base_offset for file in parsed.values() if file.kind == files.LOG and not file.suffix}
    kept = []
    for name in names:
        file = parsed.get(name)
        if name.endswith(_TEMPORARY) or (file is not None and _is_leftover(file, logs)):
            disk.remove(files.join(directory, name))
            changed = True
        else:
            kept.append(name)
    if changed:
        disk.sync_dir(directory)
    return kept


def _is_leftover(file: SegmentFile, logs: set[int]) -> bool:
    if file.suffix:
        return True
    return file.kind in (files.INDEX, files.TIME_INDEX, files.TXN_INDEX) and file.base_offset not in logs


def _complete_swaps(disk: Disk, directory: str, parsed: Iterable[SegmentFile]) -> bool:
    """Let every finished `.swap` segment take the place of the segments whose offsets it covers.

    A `.swap` at or above the lowest `.cleaned` belongs to a split that was not finished: the cleaner writes all parts as
    `.cleaned` before it renames the first, from the highest to the lowest (KAFKA-6264). Such a one goes, the old ones stay.
    """
    found = list(parsed)
    lowest_cleaned = min((file.base_offset for file in found if file.suffix == files.CLEANED), default=None)
    swaps = sorted(file.base_offset for file in found if file.suffix == files.SWAP and file.kind == files.LOG)
    finished = [base for base in swaps if lowest_cleaned is None or base < lowest_cleaned]
    if not finished:
        return False
    old = [file.base_offset for file in found if file.kind == files.LOG and not file.suffix]
    replaced = {
        base for swap in finished for base in old if swap <= base < _end_offset(disk, directory, swap)
    }
    for base in sorted(replaced):
        for kind in (files.LOG, files.INDEX, files.TIME_INDEX, files.TXN_INDEX):
            if base not in finished:
                disk.remove(files.segment_path(directory, base, kind))
    disk.sync_dir(directory)
    for swap in finished:
        for kind in (
            files.INDEX,
            files.TIME_INDEX,
            files.TXN_INDEX,
            files.LOG,
        ):  # the log last: it is what counts
            path = files.segment_path(directory, swap, kind)
            if disk.exists(path + files.SWAP):
                disk.rename(path + files.SWAP, path)
            elif kind != files.LOG:
                disk.remove(path)
    disk.sync_dir(directory)
    return True


def _end_offset(disk: Disk, directory: str, base_offset: int) -> int:
    path = files.segment_path(directory, base_offset, files.LOG) + files.SWAP
    end_offset = base_offset + 1
    file = disk.open(path)
    try:
        for _, header in scan_headers(file, 0, file.size()):
            end_offset = header.next_offset
    finally:
        file.close()
    return end_offset
