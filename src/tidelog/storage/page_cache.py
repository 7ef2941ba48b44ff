"""Asks the kernel what it holds of a file in memory, without touching it: cachestat(2), Linux 6.5 and newer; and to begin writing some of it, sync_file_range(2)."""

from __future__ import annotations

import ctypes
import mmap
import sys

_CACHESTAT = 451  # under this number on every architecture but alpha
_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None
_BEGIN_WRITING = 2  # SYNC_FILE_RANGE_WRITE


class _Range(ctypes.Structure):
    _fields_ = (("position", ctypes.c_uint64), ("count", ctypes.c_uint64))


class _CacheStatistics(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


def cached_pages(descriptor: int, count: int, position: int) -> int | None:
    """How many pages of these bytes are in the page cache, those that are just being read included. None: this kernel does not say."""
    if _LIBRARY is None:
        return None
    found = _CacheStatistics()
    asked = _Range(position, count)
    failed = _LIBRARY.syscall(_CACHESTAT, descriptor, ctypes.byref(asked), ctypes.byref(found), 0)
    return None if failed else int(found.cached)


def begin_writing(descriptor: int, count: int, position: int) -> None:
    """Let the disk begin with these bytes. Says nothing of errors, which the next sync tells, and makes nothing durable; does nothing where there is no such call."""
    if _LIBRARY is not None:
        _LIBRARY.sync_file_range(
            descriptor, ctypes.c_int64(position), ctypes.c_int64(count), ctypes.c_uint(_BEGIN_WRITING)
        )


def pages_of(count: int, position: int) -> int:
    """How many pages these bytes lie on."""
    return (position + count - 1) // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
