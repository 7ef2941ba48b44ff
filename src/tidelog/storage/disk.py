"""The disk port: every byte that Tidelog stores goes through `Disk` and `File`.

`PosixDisk` (storage/posix_disk.py) is the real one. `SimDisk` (testing/sim/disk.py) loses, tears and reorders
unsynced writes, and fails on demand. Storage code never touches `os` itself, so what the simulation shows about crashes holds
for the real files too.

Rules both adapters keep:

* Any failure of the operating system is raised as `DiskError`, which names path and operation. A missing file is
  `FileNotFoundError` and nothing else is; a new file whose directory is missing is a `DiskError`.
* Nothing is durable before `File.sync` (its bytes) and `Disk.sync_dir` (its name). A rename is atomic but not durable
  before `sync_dir`.
* `File.sync` and `Disk.sync_dir` may be called from another thread while the loop reads and writes the same file.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

SYNC: Final = "sync"
SYNC_DIRECTORY: Final = "sync directory"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class DiskError(Exception):
    """The disk refused. The log directory that holds `path` must go offline; a failed sync is never retried (I7).

    One case is milder: see `out_of_space`.
    """

    def __init__(self, operation: str, path: str, cause: OSError) -> None:
        super().__init__(f"{operation} failed on {path}: {cause.strerror or cause}")
        self.operation = operation
        self.path = path
        self.errno = cause.errno

    @property
    def out_of_space(self) -> bool:
        """Something new did not fit, and what was there before is untouched: whoever can put its files back as they were may go on.

        Never for a sync, whatever its error number: a thin or remote volume may find out only then that it is full, and the data
        that was to be synced is gone.
        """
        return self.errno in _FULL and self.operation not in (SYNC, SYNC_DIRECTORY)


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

    def is_cached(self, count: int, position: int, /) -> bool:
        """Whether reading these bytes would wait for the disk, as far as a few looks can tell. Never waits itself."""
        ...

    def warm(self, count: int, position: int, /) -> None:
        """Wait until these bytes are in memory. For threads: it holds nobody up who uses the same file."""
        ...

    def write_at(self, buffers: Sequence[Buffer], position: int, /) -> int:
        """Write all buffers one after another (gathered; short writes are continued). Returns the bytes written."""
        ...

    def truncate(self, size: int, /) -> None: ...

    def sync(self) -> None:
        """Make the file's bytes durable (fdatasync). Thread-safe."""
        ...

    def begin_writing(self, count: int, position: int, /) -> None:
        """A hint that these bytes will be synced soon: the disk may begin with them. Makes nothing durable, and does not wait."""
        ...

    def forget_cached(self) -> None:
        """Read from the medium from now on, not from what is cached and thought to be there too; unsynced writes stay."""
        ...

    def moved_to(self, path: str, /) -> None:
        """The file was renamed on disk: from now on it is re-opened under this path."""
        ...

    def pin(self) -> int:
        """Keep the descriptor open until `unpin`, and return it for sendfile. A simulated file returns -1: use `read_at`."""
        ...

    def pin_if_open(self) -> bool:
        """`pin`, unless that would take a descriptor. False: there is nothing to unpin; all that was written is synced."""
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

    def make_dir(self, path: str, /) -> bool:
        """Create one directory in one that is there. False: it was there. Its name is not durable before `sync_dir` of the parent."""
        ...

    def make_file(self, path: str, /) -> None:
        """An empty file where none is, without holding it open: it may not be used for long."""
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
    """Replace a small file so that a crash leaves the old or the new content, and the new one once this returns.

    The old content also stays if the new one does not fit on the disk (`DiskError.out_of_space`).
    """
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
