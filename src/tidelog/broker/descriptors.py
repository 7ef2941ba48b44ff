"""Who may have how many of the process's descriptors: connections take what the log's files leave.

A file that cannot be opened for want of a descriptor counts as a failing disk and takes its directory offline, so connections
must never come that far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

RESERVE_MIN = 64
RESERVE_MAX = 1024


class HasOpenFiles(Protocol):
    @property
    def open_files(self) -> int: ...


def descriptors_left(files: object) -> Callable[[int], int] | None:
    """How many more connections there may be beside so many; None where files do not take descriptors of this process.

    A tenth of the limit (but 64 to 1024) is kept for files still to be opened: new segments, checkpoints, directories being synced.
    """
    import resource

    if not hasattr(files, "open_files"):
        return None
    disk: HasOpenFiles = files
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = limit - min(max(limit // 10, RESERVE_MIN), RESERVE_MAX)
    return lambda connections: usable - disk.open_files - connections
