"""What a crash or a cleaner left in a partition's directory, put away before the log is opened.

`.tmp` and `.cleaned` files were never finished and go. `.deleted` files were let go by retention and go. `.swap` files are the finished
output of a cleaner: the swap is completed, so that old or new segments stand there, never a mix (I32; the other half is `segment_swap`). An
index without its log goes: it can be derived, and may be of a segment whose creation or deletion was half done. The `.log` files
themselves are never judged here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidelog.storage import files
from tidelog.storage.batch_scan import scan_headers
from tidelog.storage.disk import Disk
from tidelog.storage.files import SegmentFile
from tidelog.storage.segment import SEGMENT_KINDS

_TEMPORARY = ".tmp"


def put_away(disk: Disk, directory: str) -> list[str]:
    """Clean the directory up; returns the names that are left. Changes are durable when it returns."""
    names = disk.list_dir(directory)
    changed = _settle_swaps(disk, directory, _parsed(names))
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


def _parsed(names: Sequence[str]) -> list[SegmentFile]:
    return [file for name in names if (file := files.parse_segment_name(name)) is not None]


def _is_leftover(file: SegmentFile, logs: set[int]) -> bool:
    if file.suffix:
        return True
    return file.kind in (files.INDEX, files.TIME_INDEX, files.TXN_INDEX) and file.base_offset not in logs


def discard_swaps(disk: Disk, directory: str, *, keep: Collection[int] = ()) -> None:
    """Remove what unfinished swaps have left, but for `.cleaned` files of the segments in `keep`."""
    found = _parsed(disk.list_dir(directory))
    _remove_unfinished(disk, directory, [file for file in found if file.suffix == files.SWAP])
    _remove_unfinished(
        disk,
        directory,
        [file for file in found if file.suffix == files.CLEANED and file.base_offset not in keep],
    )


def discard_cleaned(disk: Disk, directory: str) -> None:
    """Remove what a cleaner wrote that has ended, unless a swap has begun with it: the `.cleaned` names tell then how far it got."""
    if not disk.is_dir(directory):
        return
    found = _parsed(disk.list_dir(directory))
    if not any(file.suffix == files.SWAP for file in found):
        _remove_unfinished(disk, directory, [file for file in found if file.suffix == files.CLEANED])


def _remove_unfinished(disk: Disk, directory: str, unfinished: Sequence[SegmentFile]) -> bool:
    """Durably: a `.cleaned` is what tells that a `.swap` is unfinished, and must not go before it."""
    for file in unfinished:
        disk.remove(files.segment_path(directory, file.base_offset, file.kind) + file.suffix)
    if unfinished:
        disk.sync_dir(directory)
    return bool(unfinished)


def _settle_swaps(disk: Disk, directory: str, found: Sequence[SegmentFile]) -> bool:
    """Complete finished swaps and undo the others. True if anything was changed.

    A `.swap` at or above the lowest `.cleaned` belongs to a swap that was not finished: all parts are `.cleaned` before the first is renamed,
    from the highest to the lowest (KAFKA-6264). Such a one goes, the old ones stay.
    """
    lowest_cleaned = min((file.base_offset for file in found if file.suffix == files.CLEANED), default=None)
    swaps = [file for file in found if file.suffix == files.SWAP]
    if swaps:
        # A killed process may have named them a moment ago: nothing goes before that is durable.
        disk.sync_dir(directory)
    unfinished = [file for file in swaps if lowest_cleaned is not None and file.base_offset >= lowest_cleaned]
    changed = _remove_unfinished(disk, directory, unfinished)
    finished = sorted(file.base_offset for file in swaps if file.kind == files.LOG and file not in unfinished)
    if finished:
        _complete(disk, directory, finished, found)
    return changed or bool(finished)


def _complete(disk: Disk, directory: str, finished: Sequence[int], found: Sequence[SegmentFile]) -> None:
    """The new segments take the place of every old one between the first offset of the first and the last of the last.

    In the order that makes this repeatable: an old segment that is still there must not be taken for a new one, nor the other way round, nor
    an old index for one of the new log that has its name.
    """
    end_offset = max(_end_offset(disk, directory, base) for base in finished)
    for file in found:
        if (
            finished[0] <= file.base_offset < end_offset
            and not file.suffix
            and file.kind in SEGMENT_KINDS
            and (file.base_offset not in finished or file.kind != files.LOG)
        ):
            disk.remove(files.segment_path(directory, file.base_offset, file.kind))
    disk.sync_dir(directory)
    for base in finished:
        for kind in reversed(SEGMENT_KINDS):  # the log last: it is what counts
            path = files.segment_path(directory, base, kind)
            if disk.exists(path + files.SWAP):
                disk.rename(path + files.SWAP, path)
        disk.sync_dir(directory)


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
