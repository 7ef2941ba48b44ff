"""The real disk: `Disk` and `File` over the operating system's files.

Owns a bounded set of descriptors. Files are opened when first used, and closed again when more than `max_open_files` are open:
whichever has not been used since the clock hand last passed it (second chance, an LRU that costs one store per operation).
Two kinds are never closed behind their owner's back: pinned files (a sendfile is under way), and files written since their last
sync, because the kernel reports a failed write-back only through descriptors that were open when it happened (I7).

A file's operations hold its own lock, so that a thread that syncs or writes a checkpoint never pulls a descriptor away from the
loop; `sync` itself runs outside the lock. This adapter and `tidelog.ports` are the only places of the core that know `os`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import sys
from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Final

from tidelog.storage.disk import SYNC, SYNC_DIRECTORY, Buffer, DirLock, DiskError
from tidelog.storage.page_cache import begin_writing, cached_pages, pages_of

_IOV_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX"))
_RWF_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)  # without it nothing is ever found cold
_PROBE: Final = bytearray(1)
_PROBE_BYTES: Final = 256 * 1024  # the kernel reads ahead in larger steps than this
_WARM_BYTES: Final = 256 * 1024
_HAND_STEPS: Final = 64  # how many descriptors one eviction looks at before the limit gives way
_SYNCED_AT_ONCE: Final = 8  # when nothing else can be closed


class PosixFile:
    __slots__ = (
        "_broken",
        "_closed",
        "_disk",
        "_fd",
        "_lock",
        "_path",
        "_pins",
        "_synced",
        "_touched",
        "_written",
    )

    def __init__(self, disk: PosixDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._fd = -1
        self._lock = Lock()
        self._pins = 0
        self._closed = False
        self._touched = False
        # Writes are counted, not flagged: a sync only covers the writes counted before it began, so a write that happens
        # while another thread syncs leaves the file dirty.
        self._written = 0
        self._synced = 0
        self._broken = False

    @property
    def path(self) -> str:
        return self._path

    @property
    def dirty(self) -> bool:
        """Written since the last successful sync."""
        return self._written != self._synced

    def size(self) -> int:
        with self._lock:
            fd = self._fd if self._fd >= 0 else self._reopen()
            try:
                return os.fstat(fd).st_size
            except OSError as error:
                raise DiskError("stat", self._path, error) from error

    def read_at(self, count: int, position: int, /) -> bytes:
        with self._lock:
            fd = self._fd
            if fd < 0:
                fd = self._reopen()
            self._touched = True
            try:
                data = os.pread(fd, count, position)
                # One call suffices except for huge reads and signals: only then look again for the end of the file.
                if len(data) < count and data:
                    data = _read_rest(fd, data, count, position)
            except OSError as error:
                raise DiskError("read", self._path, error) from error
        return data

    def is_cached(self, count: int, position: int, /) -> bool:
        with self._lock:
            fd = self._fd if self._fd >= 0 else self._reopen()
            pages = cached_pages(fd, count, position)
            if pages is not None and pages >= pages_of(count, position):
                probes = range(0)  # all are there or on their way: the last one comes last
            else:  # an overlay holds no pages of its own and says none: only reads can tell
                probes = range(position, position + count, _PROBE_BYTES)
            try:
                for probe in (*probes, position + count - 1):
                    os.preadv(fd, (_PROBE,), probe, _RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:
                pass  # this file system cannot say, or it fails: the read itself will tell
        return True

    def warm(self, count: int, position: int, /) -> None:
        fd = self.pin()
        try:
            scratch = bytearray(min(count, _WARM_BYTES))
            end = position + count
            while position < end:
                read = os.preadv(fd, (memoryview(scratch)[: end - position],), position)
                if read == 0:
                    return
                position += read
        except OSError as error:
            raise DiskError("read", self._path, error) from error
        finally:
            self.unpin()

    def write_at(self, buffers: Sequence[Buffer], position: int, /) -> int:
        with self._lock:
            fd = self._fd
            if fd < 0:
                fd = self._reopen()
            self._touched = True
            self._written += 1  # before the write: a failed one may have changed the file too
            try:
                total = sum(map(len, buffers))
                if len(buffers) <= _IOV_MAX and os.pwritev(fd, buffers, position) == total:
                    return total
                # Short or too many at once. Writing the same bytes again at the same place is harmless, so begin anew.
                _write_all(fd, buffers, position)
            except OSError as error:
                raise DiskError("write", self._path, error) from error
        return total

    def truncate(self, size: int, /) -> None:
        with self._lock:
            fd = self._fd if self._fd >= 0 else self._reopen()
            self._touched = True
            self._written += 1
            try:
                os.ftruncate(fd, size)
            except OSError as error:
                raise DiskError("truncate", self._path, error) from error

    def sync(self) -> None:
        # Also for a file this object never wrote: after a crash the page cache holds what a predecessor wrote.
        with self._lock:
            if self._broken:
                cause = OSError(
                    errno.EIO,
                    "an earlier sync of this file failed; its unsynced data is lost (never retried)",
                )
                raise DiskError(SYNC, self._path, cause)
            fd = self._fd if self._fd >= 0 else self._reopen()
            self._pins += 1
            covered = self._written
        failure: OSError | None = None
        try:
            _sync_data(fd)
        except OSError as error:
            failure = error
        with self._lock:
            if failure is not None:
                self._broken = True
            elif covered > self._synced:
                self._synced = covered
            self._drop_pin()
        if failure is not None:
            raise DiskError(SYNC, self._path, failure) from failure
        self._disk._keep_limit()  # clean again, so it may be closed

    def begin_writing(self, count: int, position: int, /) -> None:
        with self._lock:
            if self._fd >= 0:
                begin_writing(self._fd, count, position)

    def forget_cached(self) -> None:
        with self._lock:
            fd = self._fd if self._fd >= 0 else self._reopen()
            try:
                _drop_clean_pages(fd)
            except OSError as error:
                raise DiskError("fadvise", self._path, error) from error

    def moved_to(self, path: str, /) -> None:
        with self._lock:
            self._path = path

    def pin(self) -> int:
        with self._lock:
            fd = self._fd if self._fd >= 0 else self._reopen()
            self._pins += 1
            self._touched = True
            return fd

    def pin_if_open(self) -> bool:
        with self._lock:
            if self._fd < 0:
                return False
            self._pins += 1
            return True

    def unpin(self) -> None:
        with self._lock:
            if self._pins <= 0:
                raise RuntimeError(f"unpin without pin on {self._path}")
            self._drop_pin()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._pins == 0:
                self._close_descriptor()

    # -- with the lock held ----------------------------------------------------------------------------------------

    def _drop_pin(self) -> None:
        self._pins -= 1
        if self._closed and self._pins == 0:
            self._close_descriptor()

    def _reopen(self) -> int:
        if self._closed:
            raise ValueError(f"{self._path} is closed")
        self._fd = self._disk._open_descriptor(self._path, os.O_RDWR)
        self._touched = True
        self._disk._admit(self)
        return self._fd

    def _sync_in_place(self) -> bool:
        """A failure is remembered: whoever syncs the file next hears of it (I7)."""
        if self._broken:
            return False
        try:
            _sync_data(self._fd)
        except OSError:
            self._broken = True
            return False
        self._synced = self._written
        return True

    def _close_descriptor(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._disk._forget()
            os.close(fd)


class PosixDirLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class PosixDisk:
    """`max_open_files` is a soft limit: dirty and pinned files stay open beyond it."""

    def __init__(self, max_open_files: int = 4096, *, read_only: bool = False) -> None:
        """`read_only`: no descriptor can write, so that a look at stored files never changes them."""
        if max_open_files < 1:
            raise ValueError(f"max_open_files must be at least 1, not {max_open_files}")
        self.max_open_files = max_open_files
        self._read_only = read_only
        self._guard = Lock()
        self._hand: deque[PosixFile] = deque()
        self._open_count = 0

    @property
    def open_files(self) -> int:
        """Descriptors held right now."""
        return self._open_count

    def open(self, path: str, /, *, create: bool = False) -> PosixFile:
        file = PosixFile(self, path)
        if create:
            with file._lock:
                file._fd = self._open_descriptor(path, os.O_RDWR | os.O_CREAT)
                file._touched = True
                self._admit(file)
        elif not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file

    def exists(self, path: str, /) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise DiskError("stat", path, error) from error
        return True

    def is_dir(self, path: str, /) -> bool:
        return os.path.isdir(path)

    def file_size(self, path: str, /) -> int:
        return self._stat(path).st_size

    def mtime_ms(self, path: str, /) -> int:
        return self._stat(path).st_mtime_ns // 1_000_000

    def list_dir(self, path: str, /) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DiskError("list", path, error) from error

    def make_dirs(self, path: str, /) -> None:
        missing = []
        while path and not self.is_dir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            try:
                os.mkdir(directory)
            except FileExistsError:
                if not self.is_dir(directory):
                    raise DiskError(
                        "mkdir", directory, OSError(errno.ENOTDIR, "a file is in the way")
                    ) from None
            except OSError as error:
                raise DiskError("mkdir", directory, error) from error
            self.sync_dir(os.path.dirname(directory) or ".")

    def make_dir(self, path: str, /) -> bool:
        try:
            os.mkdir(path)
        except FileExistsError:
            if not self.is_dir(path):
                raise DiskError("mkdir", path, OSError(errno.ENOTDIR, "a file is in the way")) from None
            return False
        except OSError as error:
            raise DiskError("mkdir", path, error) from error
        return True

    def make_file(self, path: str, /) -> None:
        os.close(self._open_descriptor(path, os.O_RDWR | os.O_CREAT))

    def rename(self, source: str, target: str, /) -> None:
        try:
            os.replace(source, target)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DiskError("rename", source, error) from error

    def remove(self, path: str, /) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DiskError("remove", path, error) from error

    def remove_tree(self, path: str, /) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if self.exists(path):
                raise
        except OSError as error:
            raise DiskError("remove", path, error) from error

    def sync_dir(self, path: str, /) -> None:
        fd = self._open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        except OSError as error:
            raise DiskError(SYNC_DIRECTORY, path, error) from error
        finally:
            os.close(fd)

    def lock(self, path: str, /) -> DirLock | None:
        fd = self._open_descriptor(path, os.O_RDWR | os.O_CREAT)
        try:
            _lock_exclusively(fd)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise DiskError("lock", path, error) from error
        return PosixDirLock(fd)

    def volume_bytes(self, path: str, /) -> tuple[int, int]:
        try:
            stats = os.statvfs(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DiskError("statvfs", path, error) from error
        return stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize

    # -- descriptors -----------------------------------------------------------------------------------------------

    def _stat(self, path: str) -> os.stat_result:
        try:
            return os.stat(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DiskError("stat", path, error) from error

    def _open_descriptor(self, path: str, flags: int) -> int:
        if self._read_only:
            flags = os.O_RDONLY
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        except FileNotFoundError as error:
            if flags & os.O_CREAT:  # its directory is gone: removed, or not mounted any more
                raise DiskError("open", path, error) from error
            raise
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._make_room(
                steps=2 * len(self._hand)
            ):
                raise DiskError("open", path, error) from error
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DiskError("open", path, error) from error

    def _admit(self, file: PosixFile) -> None:
        with self._guard:
            self._open_count += 1
            self._hand.append(file)
        self._keep_limit()

    def _keep_limit(self) -> None:
        if self._open_count > self.max_open_files:
            self._shrink(self.max_open_files)
            if self._open_count > self.max_open_files * 3 // 2:
                self._make_room(steps=4 * _HAND_STEPS)

    def _forget(self) -> None:
        # The file stays in the hand's queue until the hand passes it: finding it there would cost a search.
        with self._guard:
            self._open_count -= 1
            if len(self._hand) > 2 * self._open_count + _HAND_STEPS:
                self._hand = deque(file for file in self._hand if file._fd >= 0)

    def _make_room(self, *, steps: int) -> bool:
        """Descriptors are running out, or are all gone. If they are held by unsynced files, some of these are synced, here and now: that
        takes its time, but a directory must not go offline for want of a descriptor. True if any was closed.
        """
        if self._shrink(min(self._open_count, self.max_open_files) // 2, steps=steps):
            return True
        closed = 0
        for _ in range(min(steps, len(self._hand))):
            with self._guard:
                file = self._hand.popleft()
                self._hand.append(file)
            if not file._lock.acquire(blocking=False):
                continue
            try:
                if file._fd >= 0 and not file._pins and file._sync_in_place():
                    file._close_descriptor()
                    closed += 1
            finally:
                file._lock.release()
            if closed == _SYNCED_AT_ONCE:
                break
        return closed > 0

    def _shrink(self, limit: int, *, steps: int = _HAND_STEPS) -> bool:
        """Close files until `limit` are open or the hand has tried long enough. True if any was closed."""
        closed = 0
        with self._guard:
            while self._open_count > limit and steps > 0 and self._hand:
                steps -= 1
                file = self._hand.popleft()
                if not file._lock.acquire(blocking=False):
                    self._hand.append(file)  # in use this moment, maybe by the very caller
                    continue
                try:
                    if file._fd < 0:
                        continue  # closed by its owner meanwhile
                    if file._touched or file._pins or file.dirty:
                        file._touched = False
                        self._hand.append(file)
                        continue
                    os.close(file._fd)
                    file._fd = -1
                    self._open_count -= 1
                    closed += 1
                finally:
                    file._lock.release()
        return closed > 0


def _read_rest(fd: int, data: bytes, count: int, position: int) -> bytes:
    pieces = [data]
    have = len(data)
    while have < count:
        piece = os.pread(fd, count - have, position + have)
        if not piece:
            break
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)


def _write_all(fd: int, buffers: Sequence[Buffer], position: int) -> None:
    pending = deque(memoryview(buffer).cast("B") for buffer in buffers if len(buffer))
    while pending:
        written = os.pwritev(fd, [pending[i] for i in range(min(len(pending), _IOV_MAX))], position)
        position += written
        while pending and written >= len(pending[0]):
            written -= len(pending.popleft())
        if written:
            pending[0] = pending[0][written:]


if sys.platform == "darwin":

    def _drop_clean_pages(fd: int) -> None:
        pass  # there is no such call

    def _sync_data(fd: int) -> None:
        # fsync on macOS leaves the bytes in the drive's cache; this asks for more.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError:
            os.fsync(fd)  # a file system without it
else:

    def _drop_clean_pages(fd: int) -> None:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _sync_data(fd: int) -> None:
        os.fdatasync(fd)


def _lock_exclusively(fd: int) -> None:
    """Lock until the descriptor is closed. Raises EAGAIN or EACCES when it is held, also by this same process.

    On Linux an open-file-description lock is used: unlike flock it also excludes a real Kafka broker, whose JVM takes a POSIX
    lock on the same `.lock` file.
    """
    command = getattr(fcntl, "F_OFD_SETLK", None)
    if command is None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(fd, command, whole_file)
