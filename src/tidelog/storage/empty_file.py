"""A file that is not there yet and reads as an empty one: the indexes of a segment that has no entry for them."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.storage.disk import Buffer


class EmptyFile:
    """Implements `tidelog.storage.disk.File`. Whoever has something to write makes a real file first."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return 0

    def read_at(self, count: int, position: int, /) -> bytes:
        return b""

    def is_cached(self, count: int, position: int, /) -> bool:
        return True

    def warm(self, count: int, position: int, /) -> None: ...

    def write_at(self, buffers: Sequence[Buffer], position: int, /) -> int:
        raise RuntimeError(f"{self._path} is not there to be written to")

    def truncate(self, size: int, /) -> None:
        if size:
            raise RuntimeError(f"{self._path} is not there to be made {size} bytes long")

    def sync(self) -> None: ...

    def moved_to(self, path: str, /) -> None:
        self._path = path

    def pin(self) -> int:
        return -1

    def pin_if_open(self) -> bool:
        return False

    def unpin(self) -> None: ...

    def begin_writing(self, count: int, position: int, /) -> None: ...

    def forget_cached(self) -> None: ...

    def close(self) -> None: ...
