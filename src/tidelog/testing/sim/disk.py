"""A disk in memory that forgets what was not synced: the simulation's `Disk`.

Every file is a durable image plus the ordered writes since its last sync; every directory is a durable table of names plus the
creations, renames and removals since its last `sync_dir`. While the machine runs, readers see everything. `crash` decides what of
the unsynced part survives; `crash_states` walks through every prefix of the recorded operations and through the ways each of
them may survive, so that recovery can be tried on all of them (RELIABILITY §6).

Harsher than most file systems on purpose: unsynced names survive independently of one another and of the data they name. What
works here works on all of them. It never promises more than the rules in `tidelog.storage.disk`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Literal, NamedTuple

from tidelog.ports import Clock, Rng
from tidelog.storage.disk import Buffer, DiskError
from tidelog.testing.sim.crashes import SECTOR_BYTES, plain_choices, reordered_choices
from tidelog.testing.sim.inodes import LOST, DataOp, Directory, Fate, Inode, Machine, NameOp

CrashMode = Literal["keep_all", "lose_unsynced", "random"]
PathPredicate = Callable[[str], bool]
ANY_CHANGE = "any change"
_READING = ("read", "list")
_ENDLESS_BYTES = 1 << 40


@dataclass(slots=True)
class Fault:
    """One planned failure. `skip` matching operations pass first; `partial_bytes` of a failing write reach the file before the error."""

    operation: str
    errno: int
    matches: PathPredicate
    times: int
    partial_bytes: int = 0
    skip: int = 0

    def strikes(self, operation: str, path: str) -> bool:
        if self.times <= 0 or not self.matches(path):
            return False
        if self.operation != operation and (self.operation != ANY_CHANGE or operation in _READING):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Attempt(NamedTuple):
    """A changing operation that the disk was asked for, and whether it failed."""

    operation: str
    path: str
    failed: bool


class CrashState(NamedTuple):
    """A disk as a crash may leave it: after `operations` of the recorded operations, unsynced ones treated as `label` says."""

    operations: int
    label: str
    disk: SimDisk

    @property
    def killed(self) -> bool:
        """Only the process died: nothing is lost, nothing more is durable."""
        return self.label == KILLED


KILLED = "killed"


class SimFile:
    __slots__ = ("_closed", "_disk", "_inode", "_path", "_pins")

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._pins = 0
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    @property
    def dirty(self) -> bool:
        return bool(self._inode.pending)

    def size(self) -> int:
        self._usable()
        return len(self._inode.live)

    def read_at(self, count: int, position: int, /) -> bytes:
        if self._closed:
            self._usable()
        self._disk._maybe_fail("read", self._path)
        return bytes(self._inode.live[position : position + count])

    def is_cached(self, count: int, position: int, /) -> bool:
        return True

    def warm(self, count: int, position: int, /) -> None:
        self.read_at(count, position)

    def write_at(self, buffers: Sequence[Buffer], position: int, /) -> int:
        if self._closed:
            self._usable()
        data = b"".join(buffers)
        self._disk._write(self._path, self._inode, data, position)
        return len(data)

    def truncate(self, size: int, /) -> None:
        self._usable()
        self._disk._truncate(self._path, self._inode, size)

    def sync(self) -> None:
        self._usable()
        self._disk._sync(self._path, self._inode)

    def begin_writing(self, count: int, position: int, /) -> None:
        pass  # unsynced writes may or may not be there after a crash, whoever has asked for them

    def forget_cached(self) -> None:
        self._usable()
        self._inode.forget_cached()
        self._disk._record_on(self._inode, Inode.forget_cached)

    def moved_to(self, path: str, /) -> None:
        self._path = path

    def pin(self) -> int:
        self._usable()
        self._pins += 1
        return -1

    def pin_if_open(self) -> bool:
        self.pin()
        return True

    def unpin(self) -> None:
        if self._pins <= 0:
            raise RuntimeError(f"unpin without pin on {self._path}")
        self._pins -= 1

    def close(self) -> None:
        self._closed = True

    def _usable(self) -> None:
        if self._closed and not self._pins:
            raise ValueError(f"{self._path} is closed")


class SimDirLock:
    __slots__ = ("_locks", "_path")

    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


class SimDisk:
    def __init__(
        self,
        rng: Rng,
        *,
        clock: Clock | None = None,
        capacity_bytes: int = _ENDLESS_BYTES,
        record: bool = False,
    ) -> None:
        self.rng = rng
        self.clock = clock
        self.capacity_bytes = capacity_bytes
        self.machine = Machine()
        self.faults: list[Fault] = []
        self.attempts: list[Attempt] = []  # while recording
        self.syncs = 0
        self.before_change: Callable[[], None] | None = None  # what another thread does at this moment
        self._locks: set[str] = set()
        self._guard = RLock()
        self._recording = False
        self._first_order = 0
        self._log: list[Callable[[SimDisk], object]] = []
        self._start: Machine | None = None
        if record:
            self.start_recording()

    # -- Disk ------------------------------------------------------------------------------------------------------

    def open(self, path: str, /, *, create: bool = False) -> SimFile:
        with self._guard:
            node = self.machine.find(path)
            if isinstance(node, Directory):
                raise DiskError("open", path, _os_error(errno.EISDIR))
            if node is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
                self._maybe_fail("create", path)
                node = self._create(path)
                self._record(lambda disk: disk._create(path))
            return SimFile(self, path, node)

    def exists(self, path: str, /) -> bool:
        return self.machine.find(path) is not None

    def is_dir(self, path: str, /) -> bool:
        return isinstance(self.machine.find(path), Directory)

    def file_size(self, path: str, /) -> int:
        return len(self._file(path).live)

    def mtime_ms(self, path: str, /) -> int:
        return self._file(path).mtime_ms

    def list_dir(self, path: str, /) -> list[str]:
        self._maybe_fail("list", path)
        return sorted(self._directory(path).live)

    def make_dirs(self, path: str, /) -> None:
        with self._guard:
            if self.is_dir(path):
                return
            self._maybe_fail("mkdir", path)
            try:
                self.machine.make_dirs(path)
            except NotADirectoryError:
                raise DiskError("mkdir", path, _os_error(errno.ENOTDIR)) from None
            self._record(lambda disk: disk.machine.make_dirs(path))

    def make_dir(self, path: str, /) -> bool:
        with self._guard:
            node = self.machine.find(path)
            if node is not None:
                if isinstance(node, Directory):
                    return False
                raise DiskError("mkdir", path, _os_error(errno.ENOTDIR))
            self._maybe_fail("mkdir", path)
            self.machine.make_dir(path)
            self._record(lambda disk: disk.machine.make_dir(path))
            return True

    def make_file(self, path: str, /) -> None:
        self.open(path, create=True).close()

    def rename(self, source: str, target: str, /) -> None:
        with self._guard:
            self._maybe_fail("rename", source)
            self._rename(source, target)
            self._record(lambda disk: disk._rename(source, target))

    def remove(self, path: str, /) -> None:
        with self._guard:
            self._maybe_fail("remove", path)
            node = self.machine.find(path)
            if node is None:
                return
            if isinstance(node, Directory):
                raise DiskError("remove", path, _os_error(errno.EISDIR))
            self._unlink(path)
            self._record(lambda disk: disk._unlink(path))

    def remove_tree(self, path: str, /) -> None:
        with self._guard:
            node = self.machine.find(path)
            if node is None:
                return
            if isinstance(node, Directory):
                for name in sorted(node.live):
                    self.remove_tree(f"{path}/{name}")
            self._maybe_fail("remove", path)
            self._unlink(path)
            self._record(lambda disk: disk._unlink(path))

    def sync_dir(self, path: str, /) -> None:
        with self._guard:
            self._directory(path)
            self._maybe_fail("sync directory", path)
            self._sync_dir(path)
            self._record(lambda disk: disk._sync_dir(path))

    def lock(self, path: str, /) -> SimDirLock | None:
        if path in self._locks:
            return None
        self.open(path, create=True).close()
        self._locks.add(path)
        return SimDirLock(self._locks, path)

    def volume_bytes(self, path: str, /) -> tuple[int, int]:
        self._directory(path)
        return self.capacity_bytes, max(0, self.capacity_bytes - self.machine.used_bytes())

    # -- faults ----------------------------------------------------------------------------------------------------

    def fail(
        self,
        operation: str,
        code: int = errno.EIO,
        *,
        matches: PathPredicate = lambda path: True,
        times: int = 1,
        partial_bytes: int = 0,
        skip: int = 0,
    ) -> None:
        """Let the next `times` operations of this name on a matching path fail, after `skip` of them.

        Names: read, write, truncate, sync, create, mkdir, rename, remove, list, "sync directory"; ANY_CHANGE is all but reading. After
        a failed sync the unsynced bytes stay readable but never become durable, and a later sync succeeds all the same: as Linux does it.
        """
        self.faults.append(Fault(operation, code, matches, times, partial_bytes, skip))

    def corrupt(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes in the cache and on the medium, as a failing drive does: no write, no sync, no error."""
        inode = self._file(path)
        inode.corrupt(position, data)
        self._record_on(inode, lambda twin: twin.corrupt(position, data))

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        self.corrupt(path, position, bytes([self._file(path).live[position] ^ (1 << bit)]))

    # -- crashes ---------------------------------------------------------------------------------------------------

    def crash(self, mode: CrashMode = "random") -> SimDisk:
        """The disk as the next start finds it. This one stays as it is, for another crash.

        keep_all: the process was killed; the page cache survives and is still unsynced. lose_unsynced: power was lost and with it
        everything unsynced. random: power was lost, and each unsynced operation was kept, lost, torn or zeroed as the rng says.
        """
        with self._guard:
            if mode == "keep_all":
                return self._rebooted(self.machine.copy())
            ops = self.machine.pending_ops()
            fates = [self._draw(op) for op in ops] if mode == "random" else [LOST] * len(ops)
            return self._rebooted(self.machine.after_power_loss(fates))

    def _draw(self, op: DataOp | NameOp) -> Fate:
        choice = self.rng.random()
        if choice < 0.4:
            return Fate.kept()
        if choice < 0.7 or not isinstance(op, DataOp) or not op.data:
            return LOST
        if choice < 0.75:
            return Fate.zeroed()
        if choice < 0.85:
            return Fate.torn(self.rng.randrange(len(op.data) + 1))
        sectors = (len(op.data) + SECTOR_BYTES - 1) // SECTOR_BYTES
        return Fate.sectors(tuple(self.rng.random() < 0.5 for _ in range(sectors)), SECTOR_BYTES)

    def _rebooted(self, machine: Machine) -> SimDisk:
        disk = SimDisk(self.rng, clock=self.clock, capacity_bytes=self.capacity_bytes)
        disk.machine = machine
        return disk

    def start_recording(self) -> None:
        """Forget what was recorded and begin anew from the present state; also on a disk that `crash` returned."""
        self._log = []
        self._first_order = self.machine.order
        self.attempts = []
        self._start = self.machine.copy()
        self._recording = True

    @property
    def operations(self) -> int:
        """How many changing operations were recorded: compare with `CrashState.operations` to know what was acknowledged."""
        return len(self._log)

    def crash_states(
        self,
        *,
        subsets_up_to: int = 5,
        limit: int | None = None,
        since: int = 0,
        judged_by: Callable[[int], Hashable] = lambda operations: operations,
    ) -> Iterator[CrashState]:
        """Every distinct disk that a crash may leave, after every prefix of the recorded operations from `since` on.

        For each prefix: the process was killed; everything unsynced was lost; everything survived; and power losses in which some
        unsynced operations survived. With at most `subsets_up_to` unsynced operations all subsets are tried, else each one alone is lost or
        kept and the first of them survive. The newest surviving write is also torn, in the middle and at a sector's boundary, and left as
        zeroes. With a `limit`, about so many of the reordered ones are tried, chosen by chance, and all of the plain ones.

        `judged_by` tells two prefixes apart for whoever judges the disks: a disk that was seen with the same answer is not seen again.
        """
        if self._start is None:
            raise RuntimeError(
                "nothing was recorded: make the SimDisk with record=True or call start_recording()"
            )
        share = 1.0
        if limit is not None:
            total = sum(
                1
                for count, replica in self._replay_prefixes()
                if count >= since
                for _ in reordered_choices(replica.machine.pending_ops(), subsets_up_to)
            )
            share = min(1.0, limit / max(1, total))
        seen: set[Hashable] = set()
        for count, replica in self._replay_prefixes():
            if count < since:
                continue
            yield CrashState(count, KILLED, replica.crash("keep_all"))
            ops = replica.machine.pending_ops()
            plain = list(plain_choices(ops))
            chosen = (
                fates
                for fates in reordered_choices(ops, subsets_up_to)
                if share == 1.0 or self.rng.random() < share
            )
            for fates in (*plain, *chosen):
                machine = replica.machine.after_power_loss(fates)
                mark = (judged_by(count), machine.fingerprint())
                if mark not in seen:
                    seen.add(mark)
                    label = "power lost: " + (" ".join(str(fate) for fate in fates) or "all was synced")
                    yield CrashState(count, label, self._rebooted(machine))

    def crash_after(self, operations: int, mode: CrashMode) -> SimDisk:
        """The disk that a crash after so many of the recorded operations leaves."""
        for count, replica in self._replay_prefixes():
            if count == operations:
                return replica.crash(mode)
        raise ValueError(f"{operations} operations were not recorded, only {self.operations}")

    def _replay_prefixes(self) -> Iterator[tuple[int, SimDisk]]:
        """A second disk on which the recorded operations happen again, before the first and after each."""
        assert self._start is not None
        replica = self._rebooted(self._start.copy())
        replica.machine.follow_files()
        for count in range(len(self._log) + 1):
            if count:
                replica.machine.order = self._first_order + count
                self._log[count - 1](replica)
            yield count, replica

    # -- what the recorded operations do (no faults, no recording: replayed by crash_states) ---------------------------

    def _create(self, path: str) -> Inode:
        inode = Inode(self._now_ms())
        self.machine.link((path, inode))
        return inode

    def _rename(self, source: str, target: str) -> None:
        node = self.machine.find(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)
        victim = self.machine.find(target)
        if isinstance(victim, Directory) and (victim.live or not isinstance(node, Directory)):
            raise DiskError("rename", source, _os_error(errno.ENOTEMPTY))
        if source != target:
            self.machine.link((source, None), (target, node))

    def _unlink(self, path: str) -> None:
        self.machine.link((path, None))

    def _sync_dir(self, path: str) -> None:
        self.machine.sync_directory(self._directory(path))

    # -- file operations -------------------------------------------------------------------------------------------

    def _write(self, path: str, inode: Inode, data: bytes, position: int) -> None:
        with self._guard:
            failure: OSError | None = None
            fault = self._next_fault("write", path)
            if fault is not None:
                failure = _os_error(fault.errno)
                data = data[: fault.partial_bytes]
            if failure is None and self.capacity_bytes < _ENDLESS_BYTES:
                grown = max(0, position + len(data) - len(inode.live))
                room = self.capacity_bytes - self.machine.used_bytes()
                if grown > room:
                    failure = _os_error(errno.ENOSPC)
                    data = data[: max(0, len(data) - (grown - room))]
            if data:
                self._change(inode, DataOp(position, data, self._next_order()))
            if failure is not None:
                raise DiskError("write", path, failure)

    def _truncate(self, path: str, inode: Inode, size: int) -> None:
        with self._guard:
            self._maybe_fail("truncate", path)
            if size != len(inode.live):
                self._change(inode, DataOp(size, None, self._next_order()))

    def _change(self, inode: Inode, op: DataOp) -> None:
        now_ms = self.clock.wall_ms() if self.clock is not None else 0
        inode.apply(op, now_ms)
        if self._recording:
            self._record_on(inode, lambda twin: twin.apply(op, now_ms))

    def _sync(self, path: str, inode: Inode) -> None:
        with self._guard:
            self.syncs += 1
            fault = self._next_fault("sync", path)
            if fault is not None:
                inode.pending.clear()
                self._record_on(inode, lambda twin: twin.pending.clear())
                raise DiskError("sync", path, _os_error(fault.errno))
            inode.sync()
            self._record_on(inode, Inode.sync)

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _record(self, operation: Callable[[SimDisk], object]) -> None:
        if self._recording:
            self._log.append(operation)

    def _record_on(self, inode: Inode, operation: Callable[[Inode], object]) -> None:
        if self._recording:
            number = inode.number
            self._log.append(lambda disk: disk._replay(number, operation))

    def _replay(self, number: int, operation: Callable[[Inode], object]) -> None:
        assert self.machine.inodes is not None
        inode = self.machine.inodes.get(number)
        if inode is not None:  # else it was removed before: nobody can see what happens to it since
            operation(inode)

    def _now_ms(self) -> int:
        return self.clock.wall_ms() if self.clock is not None else 0

    def _file(self, path: str) -> Inode:
        node = self.machine.find(path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def _directory(self, path: str) -> Directory:
        node = self.machine.find(path)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def _next_order(self) -> int:
        """The number that the next operation has in the recording."""
        self.machine.order = self._first_order + len(self._log) + 1
        return self.machine.order

    def _next_fault(self, operation: str, path: str) -> Fault | None:
        if not self.faults and not self._recording and self.before_change is None:
            self.machine.order = self._first_order + len(self._log) + 1
            return None
        if operation not in _READING and self.before_change is not None:
            meanwhile, self.before_change = self.before_change, None
            meanwhile()
            self.before_change = meanwhile
        self._next_order()
        struck = next((fault for fault in self.faults if fault.strikes(operation, path)), None)
        if self._recording and operation not in _READING:
            self.attempts.append(Attempt(operation, path, struck is not None))
        return struck

    def _maybe_fail(self, operation: str, path: str) -> None:
        if not self.faults and operation in _READING:
            return
        fault = self._next_fault(operation, path)
        if fault is not None:
            raise DiskError(operation, path, _os_error(fault.errno))


def _os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
