"""The disk port: every byte that Tidelog stores goes through `Disk` and `File`.

`PosixDisk` (storage/posix_disk.py) is the real one. `SimDisk` (testing/sim/disk.py) loses, tears and reorders
unsynced writes, and fails on demand. Storage code never touches `os` itself, so what the simulation shows about crashes holds
for the real files too.

Rules both adapters keep:

* Any failure of the operating system is raised as `DiskError`, which names path and operation. A missing file is
  `FileNotFoundError` and nothing else is.
* Nothing is durable before `File.sync` (its bytes) and `Disk.sync_dir` (its name). A rename is atomic but not durable
  before `sync_dir`.
* `File.sync` and `Disk.sync_dir` may be called from another thread while the loop reads and writes the same file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class DiskError(Exception):
    """The disk refused. The log directory that holds `path` must go offline; a failed sync is never retried (I7)."""

    def __init__(self, operation: str, path: str, cause: OSError) -> None:
        super().__init__(f"{operation} failed on {path}: {cause.strerror or cause}")
        self.operation = operation
        self.path = path
        self.errno = cause.errno


class File(Protocol):
    """One open file. Positions are absolute: there is no cursor to share."""

    @property
    def path(self) -> str:
        """Follows `Disk.rename` only through `moved_to`."""
        ...

    def size(self) -> int: ...

    def read_at(self, count: int, position: int, /) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""
        ...

    def write_at(self, buffers: Sequence[Buffer], position: int, /) -> int:
        """Write all buffers one after another (gathered; short writes are continued). Returns the bytes written."""
        ...

    def truncate(self, size: int, /) -> None: ...

    def sync(self) -> None:
        """Make the file's bytes durable (fdatasync). Thread-safe."""
        ...

    def moved_to(self, path: str, /) -> None:
        """The file was renamed on disk: from now on it is re-opened under this path."""
        ...

    def pin(self) -> int:
        """Keep the descriptor open until `unpin`, and return it for sendfile. A simulated file returns -1: use `read_at`."""
        ...

    def unpin(self) -> None: ...

    def close(self) -> None:
        """Idempotent. A pinned descriptor is closed by the last `unpin`."""
        ...


class DirLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, /, *, create: bool = False) -> File:
        """Open for reading and writing. `create` makes an empty file if there is none; otherwise FileNotFoundError."""
        ...

    def exists(self, path: str, /) -> bool: ...

    def is_dir(self, path: str, /) -> bool: ...

    def file_size(self, path: str, /) -> int: ...

    def mtime_ms(self, path: str, /) -> int: ...

    def list_dir(self, path: str, /) -> list[str]:
        """Names (not paths), sorted."""
        ...

    def make_dirs(self, path: str, /) -> None:
        """Create the directory and its parents; no error if it is there. Durable when it returns."""
        ...

    def rename(self, source: str, target: str, /) -> None:
        """Atomic; replaces a file at `target`. Not durable before `sync_dir` of the parent."""
        ...

    def remove(self, path: str, /) -> None:
        """Remove one file; no error if it is not there."""
        ...

    def remove_tree(self, path: str, /) -> None: ...

    def sync_dir(self, path: str, /) -> None: ...

    def lock(self, path: str, /) -> DirLock | None:
        """Take an exclusive lock on a lock file, held until released or the process dies. None when someone else has it."""
        ...

    def volume_bytes(self, path: str, /) -> tuple[int, int]:
        """Total and free bytes of the volume that holds `path`."""
        ...


class FileRange:
    """Bytes of a file on their way to a socket, never read into Python: the records of a fetch answer.

    Pins the file on creation, so that neither retention nor the descriptor cache takes it away while it waits in an output queue.
    The owner calls `release` exactly once, when the bytes are sent or the connection is gone.
    """

    __slots__ = ("count", "descriptor", "file", "position")

    def __init__(self, file: File, position: int, count: int) -> None:
        self.file = file
        self.position = position
        self.count = count
        self.descriptor = file.pin()

    def __len__(self) -> int:
        return self.count

    def read(self) -> bytes:
        """The bytes themselves, for TLS, simulation and tests."""
        return self.file.read_at(self.count, self.position)

    def release(self) -> None:
        self.file.unpin()


def read_file(disk: Disk, path: str) -> bytes:
    """A whole small file. FileNotFoundError if there is none."""
    file = disk.open(path)
    try:
        return file.read_at(file.size(), 0)
    finally:
        file.close()


def write_file_atomically(disk: Disk, path: str, content: bytes) -> None:
    """Replace a small file so that a crash leaves the old or the new content, and the new one once this returns."""
    temporary = path + ".tmp"
    disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.write_at([content], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_dir(path.rpartition("/")[0] or ".")
