"""What a failed sync leaves behind for the next start: a note not to trust the page cache (I7).

After an fdatasync that failed, the kernel keeps the pages and calls them clean, although the disk never got them. A broker that is
started again on the same machine would read them, find every batch whole, sync them (which succeeds, there is nothing to write),
answer the producer's retry with "stored", and lose the records with the next power cut. So a partition whose sync failed gets a note, and
whoever opens it next forgets what is cached of its files first: what is read then is what the disk has, as after a power cut.

The note is not synced. It need not outlive the page cache, and a disk that fails may not take it: then nothing more can be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from tidelog.storage import files
from tidelog.storage.disk import Disk, DiskError, File


def sync_all(disk: Disk, directory: str, synced: Iterable[File]) -> None:
    """Sync files of a partition, with a note if one fails."""
    try:
        for file in synced:
            file.sync()
    except DiskError:
        leave_note(disk, directory)
        raise


def leave_note(disk: Disk, directory: str) -> None:
    # If that fails too, there is nothing to add to the failure of the sync.
    with suppress(DiskError, FileNotFoundError):
        disk.make_file(files.join(directory, files.SYNC_FAILED))


def forget_cache(disk: Disk, directory: str, names: Sequence[str]) -> bool:
    """If there is a note, let everything in the directory be read from the disk. True if there was one."""
    if files.SYNC_FAILED not in names:
        return False
    for name in names:
        path = files.join(directory, name)
        if not disk.is_dir(path):
            file = disk.open(path)
            try:
                file.forget_cached()
            finally:
                file.close()
    disk.remove(files.join(directory, files.SYNC_FAILED))
    return True
