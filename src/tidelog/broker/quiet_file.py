"""Reading a file once without pushing out of the page cache what others read again and again.

What was cached before stays cached: somebody uses it. What the kernel had to fetch from the disk for this read is let go at once, so that
the next round meets the disk again and not a copy. Nothing is promised: where the system cannot tell the two apart, reads are plain.
"""

from __future__ import annotations

import os

from tidelog.storage.disk import File
from tidelog.storage.page_cache import cached_pages

_CAN_TELL = hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")


class QuietFile:
    """`File` for one reader, from a file of its own: read-ahead is turned off for its descriptor. Closes it in the end."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._descriptor = file.pin()  # also keeps a deleted file readable, and -1 in a simulation
        self._can_tell = _CAN_TELL and self._descriptor >= 0
        self._scratch = bytearray()
        if self._can_tell:
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def path(self) -> str:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def read_at(self, count: int, position: int, /) -> bytes:
        cached = self._cached(count, position) if self._can_tell else count
        data = self._file.read_at(count, position)
        if cached < len(data):
            os.posix_fadvise(self._descriptor, position + cached, len(data) - cached, os.POSIX_FADV_DONTNEED)
        return data

    def close(self) -> None:
        self._file.unpin()
        self._file.close()

    def _cached(self, count: int, position: int) -> int:
        """How many of these bytes stay in the cache afterwards: those that others had read before."""
        pages = cached_pages(self._descriptor, count, position)
        if pages is not None:
            return count if pages else 0
        return self._cached_by_reading(count, position)

    def _cached_by_reading(self, count: int, position: int) -> int:
        """How many can be had without the disk. On a fast disk that is too many: a read that may not wait starts the disk all the same."""
        if len(self._scratch) < count:
            self._scratch = bytearray(count)
        try:
            return os.preadv(self._descriptor, [memoryview(self._scratch)[:count]], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            # The file system has no such read (tmpfs, overlays); or it failed, which the true read will tell.
            self._can_tell = False
            return count
