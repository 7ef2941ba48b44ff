"""Is somebody at work in the directory that a command is about to look at?"""

from __future__ import annotations

import os

from tidelog.storage import files
from tidelog.storage.posix_disk import PosixDisk


def in_use(directory: str) -> bool:
    """Whether a broker holds the lock of this data directory (or of the one above a partition's)."""
    for candidate in (directory, os.path.dirname(os.path.abspath(directory))):
        lock_file = files.join(candidate, files.LOCK)
        if os.path.exists(lock_file) and os.access(lock_file, os.W_OK):
            lock = PosixDisk().lock(lock_file)
            if lock is None:
                return True
            lock.release()
    return False
