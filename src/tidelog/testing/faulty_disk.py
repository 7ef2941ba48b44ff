"""Real files that fail on demand: a disk between a broker and the operating system, for tests of what a bad disk does.

Where `SimDisk` shows what a crash may leave, this shows what a running broker does about a disk that fails under it: the files are
real, so sendfile, restarts and other processes see them. It must never make a disk look better than it is: after a failed sync
what was not synced before is marked as lost, and `lose` takes it away, as a restart of the machine would.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.storage.disk import SYNC, SYNC_DIRECTORY, Buffer, DirLock, Disk, DiskError, File
from tidelog.storage.posix_disk import PosixDisk

OPERATIONS: Final = (
    "open", "create", "read", "write", "truncate", SYNC, SYNC_DIRECTORY, "list", "mkdir", "rename", "remove", "statvfs",
)  # fmt: skip
"""`create` is an `open` of a file that is not there yet: a fault of `open` strikes both."""
HELD_SECONDS_MAX: Final = 30.0


@dataclass(slots=True)
class Fault:
    """`times` operations fail with `errno`, after `skip` that pass. `partial_bytes` of a failing write reach the file."""

    operations: tuple[str, ...]
    errno: int
    matches: Callable[[str], bool]
    skip: int
    times: int
    partial_bytes: int
    struck: int = 0

    def strikes(self, operation: str, path: str) -> bool:
        named = operation in self.operations or (operation == "create" and "open" in self.operations)
        if not named or self.times <= 0 or not self.matches(path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        self.struck += 1
        return True


class Failure(NamedTuple):
    operation: str
    path: str


class FaultyDisk:
    """Implements `Disk` over a `PosixDisk`.

    `fail` plans failures, `heal` ends them all. `fails` is a plainer way: asked before every operation with its name and path, True
    is EIO. A sync of a path that `holds` waits until `release`. `failures` are the operations that failed, `synced` the paths of all
    syncs begun, `syncs` their number by path; `free_bytes` pretends that the volume has that much room, `is_cold` that a file is not in
    the page cache.
    """

    def __init__(self, disk: PosixDisk | None = None) -> None:
        self._disk = disk if disk is not None else PosixDisk()
        self._faults: list[Fault] = []
        self._guard = threading.Lock()
        self._released = threading.Event()
        self._synced_bytes: dict[str, int] = {}
        self._lost: set[str] = set()
        self.fails: Callable[[str, str], bool] = _never
        self.holds: Callable[[str], bool] = lambda path: False
        self.is_cold: Callable[[str], bool] = lambda path: False
        self.synced: list[str] = []
        self.failures: list[Failure] = []
        self.free_bytes: int | None = None

    # ---- faults

    def fail(
        self,
        *operations: str,
        code: int = errno.EIO,
        matches: Callable[[str], bool] = lambda path: True,
        skip: int = 0,
        times: int = 1 << 60,
        partial_bytes: int = 0,
    ) -> Fault:
        """Let operations (see `OPERATIONS`) on matching paths fail from now on."""
        unknown = set(operations) - set(OPERATIONS)
        if unknown or not operations:
            raise ValueError(f"operations are {', '.join(OPERATIONS)}, not {sorted(unknown)}")
        fault = Fault(operations, code, matches, skip, times, partial_bytes)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """From now on nothing fails."""
        self._faults.clear()
        self.fails = _never
        self.free_bytes = None

    def release(self) -> None:
        """Syncs that are held go on."""
        self.holds = lambda path: False
        self._released.set()

    def lose(self) -> list[str]:
        """Take away what failed syncs did not make durable; returns the files. Between a broker's stop and its next start."""
        lost = sorted(path for path in self._lost if os.path.exists(path))
        for path in lost:
            os.truncate(path, min(os.path.getsize(path), self._synced_bytes.get(path, 0)))
        self._lost.clear()
        return lost

    @property
    def syncs(self) -> Counter[str]:
        return Counter(self.synced)

    def meet(self, operation: str, path: str) -> None:
        """DiskError if this operation is to fail."""
        fault = self._struck_by(operation, path)
        if fault is not None:
            raise _error(operation, path, fault.errno)

    def _struck_by(self, operation: str, path: str) -> Fault | None:
        with self._guard:
            struck = next((fault for fault in self._faults if fault.strikes(operation, path)), None)
            if struck is None and self.fails("open" if operation == "create" else operation, path):
                struck = Fault((), errno.EIO, lambda path: True, 0, 0, 0)
            if struck is not None:
                self.failures.append(Failure(operation, path))
            return struck

    def wait(self, path: str) -> None:
        if self.holds(path) and not self._released.wait(HELD_SECONDS_MAX):
            raise AssertionError(f"nobody released the sync of {path}")

    # ---- Disk

    def open(self, path: str, /, *, create: bool = False) -> File:
        is_there = self._disk.exists(path)
        self.meet("create" if create and not is_there else "open", path)
        file = self._disk.open(path, create=create)
        if is_there:
            self._synced_bytes.setdefault(path, file.size())
        return FaultyFile(self, file)

    def exists(self, path: str, /) -> bool:
        return self._disk.exists(path)

    def is_dir(self, path: str, /) -> bool:
        return self._disk.is_dir(path)

    def file_size(self, path: str, /) -> int:
        return self._disk.file_size(path)

    def mtime_ms(self, path: str, /) -> int:
        return self._disk.mtime_ms(path)

    def list_dir(self, path: str, /) -> list[str]:
        self.meet("list", path)
        return self._disk.list_dir(path)

    def make_dirs(self, path: str, /) -> None:
        if not self._disk.is_dir(path):
            self.meet("mkdir", path)
        self._disk.make_dirs(path)

    def make_dir(self, path: str, /) -> bool:
        self.meet("mkdir", path)
        return self._disk.make_dir(path)

    def make_file(self, path: str, /) -> None:
        self.meet("create", path)
        self._disk.make_file(path)

    def rename(self, source: str, target: str, /) -> None:
        self.meet("rename", source)
        self._disk.rename(source, target)

    def remove(self, path: str, /) -> None:
        self.meet("remove", path)
        self._disk.remove(path)

    def remove_tree(self, path: str, /) -> None:
        self.meet("remove", path)
        self._disk.remove_tree(path)

    def sync_dir(self, path: str, /) -> None:
        self.synced.append(path)
        self.meet(SYNC_DIRECTORY, path)
        self._disk.sync_dir(path)

    def lock(self, path: str, /) -> DirLock | None:
        self.meet("create" if not self._disk.exists(path) else "open", path)
        return self._disk.lock(path)

    def volume_bytes(self, path: str, /) -> tuple[int, int]:
        self.meet("statvfs", path)
        total, free = self._disk.volume_bytes(path)
        return total, free if self.free_bytes is None else self.free_bytes

    # ---- for its files

    def sync_file(self, file: File) -> None:
        path = file.path
        self.synced.append(path)
        self.wait(path)
        size = file.size()
        fault = self._struck_by(SYNC, path)
        if fault is not None:
            self._lost.add(path)
            raise _error(SYNC, path, fault.errno)
        file.sync()
        self._synced_bytes[path] = size

    def write_file(self, file: File, buffers: Sequence[Buffer], position: int) -> int:
        fault = self._struck_by("write", file.path)
        if fault is None:
            return file.write_at(buffers, position)
        if fault.partial_bytes:
            file.write_at([b"".join(buffers)[: fault.partial_bytes]], position)
        raise _error("write", file.path, fault.errno)


class FaultyFile:
    """Implements `File`."""

    __slots__ = ("_disk", "_file")

    def __init__(self, disk: FaultyDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    @property
    def path(self) -> str:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def read_at(self, count: int, position: int, /) -> bytes:
        self._disk.meet("read", self._file.path)
        return self._file.read_at(count, position)

    def is_cached(self, count: int, position: int, /) -> bool:
        return not self._disk.is_cold(self._file.path) and self._file.is_cached(count, position)

    def warm(self, count: int, position: int, /) -> None:
        self._disk.meet("read", self.path)
        self._file.warm(count, position)

    def write_at(self, buffers: Sequence[Buffer], position: int, /) -> int:
        return self._disk.write_file(self._file, buffers, position)

    def truncate(self, size: int, /) -> None:
        self._disk.meet("truncate", self._file.path)
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.sync_file(self._file)

    def begin_writing(self, count: int, position: int, /) -> None:
        self._file.begin_writing(count, position)

    def forget_cached(self) -> None:
        self._file.forget_cached()

    def moved_to(self, path: str, /) -> None:
        self._file.moved_to(path)

    def pin(self) -> int:
        return self._file.pin()

    def pin_if_open(self) -> bool:
        return self._file.pin_if_open()

    def unpin(self) -> None:
        self._file.unpin()

    def close(self) -> None:
        self._file.close()


if TYPE_CHECKING:
    _as_disk: Disk = FaultyDisk()


def _never(operation: str, path: str) -> bool:
    return False


def _error(operation: str, path: str, code: int) -> DiskError:
    # PosixDisk has one name for both.
    return DiskError("open" if operation == "create" else operation, path, OSError(code, os.strerror(code)))
