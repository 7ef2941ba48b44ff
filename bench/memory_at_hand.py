"""Memory that is at hand while a measurement fills it with page cache, whatever the host of a virtual machine does.

Such a machine gives its free pages back to the host within seconds, and the first touch of each of them costs several times the write itself: the
same broker then writes 150 MB/s in one minute and 800 in the next. That belongs to no peer. So before the clock starts as many bytes are touched
as will be written, and they are held; while it runs a thread lets go of a little at a time, just ahead of what is taken. The kernel
gives away first what came back last, so the writers get pages that the host has not seen.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_MEMINFO: Final = Path("/proc/meminfo")
_PIECE_BYTES: Final = 16 << 20
_LEAD_BYTES: Final = 96 << 20
"""So much more is free than at the beginning: what is taken within a few looks."""
_LOOK_SECONDS: Final = 0.01
_HUGE_PAGE_BYTES: Final = 2 << 20
_SHARE_MAX: Final = 0.6
"""Of the free memory, at most."""
_CLIENT_BYTES: Final = 300_000_000
"""What the client process of a measurement takes for itself."""


@contextmanager
def at_hand(size: int) -> Iterator[None]:
    """`size` bytes of page cache will be written within. Does nothing where the system does not say how much is free."""
    if not _MEMINFO.exists() or not size:
        yield
        return
    size = min(size + _CLIENT_BYTES, int(free_bytes() * _SHARE_MAX))
    with _Held(size):
        yield


class _Held:
    def __init__(self, size: int) -> None:
        self._pieces = [_touched(_PIECE_BYTES) for _ in range(size // _PIECE_BYTES)]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._let_go_slowly, name="memory")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        for piece in self._pieces:
            piece.close()

    def _let_go_slowly(self) -> None:
        wanted = free_bytes() + _LEAD_BYTES
        while self._pieces and not self._done.is_set():
            missing = wanted - free_bytes()
            while missing > 0 and self._pieces:
                self._pieces.pop().close()
                missing -= _PIECE_BYTES
            self._done.wait(_LOOK_SECONDS)


def _touched(size: int) -> mmap.mmap:
    piece = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    piece.madvise(mmap.MADV_HUGEPAGE)  # a few large pages are touched and given back in no time
    for position in range(0, size, mmap.PAGESIZE):
        piece[position] = 1
    return piece


def free_bytes() -> int:
    for line in _MEMINFO.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemFree":
            return int(rest.split()[0]) * 1024
    raise ValueError(f"{_MEMINFO} does not say how much memory is free")
