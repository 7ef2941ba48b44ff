"""Replays file operations of a trace on the simulation's model of a disk, which knows what was synced and what was not.

Owns what each system call does to names, bytes and their durability, and which descriptor means what. A sync covers what had ended before it
began, and counts when it has ended; a change counts when it has ended. Both is the worst case. What became of a change that its process
died within only the directory itself can tell, as the process left it.

Only calls below `root` count. One that changes something there in a way not known here is a `TraceError`, never ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from tidelog.testing.sim.inodes import DataOp, Directory, Inode, Machine, NameOp
from tidelog.testing.syscalls.strace import Call, TraceError

_OPENS: Final = frozenset({"open", "openat", "openat2", "creat"})
_POSITIONED_WRITES: Final = frozenset({"pwrite64", "pwritev", "pwritev2"})
_SYNCS: Final = frozenset({"fsync", "fdatasync"})
_NO_PROMISE: Final = frozenset({"sync_file_range"})  # starts the writing out, promises nothing
_UNKNOWN_CHANGES: Final = frozenset({"write", "writev", "copy_file_range", "dup2", "dup3"})
_UNKNOWN_NAME_CHANGES: Final = frozenset({"truncate", "link", "linkat"})
_UNKNOWN_EVERYWHERE: Final = frozenset({"sync", "syncfs"})


class TracedFiles:
    """The disk as the trace has left it so far. `machine` is what `crash_states` cuts off."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.machine = Machine()
        self.machine.make_dirs(os.path.dirname(self.root))
        self._open: dict[int, Inode | Directory] = {}
        # Found when the call began: by the time it ends another thread may have changed what the name or number means.
        self._targets: dict[Call, Inode | Directory] = {}
        self._covered: dict[Call, list[DataOp] | list[NameOp]] = {}
        self._in_flight: dict[Call, None] = {}

    def begin(self, call: Call) -> None:
        name = call.name
        if name in _UNKNOWN_EVERYWHERE and not call.failed:
            raise TraceError(f"the replay does not know what this makes durable: {call}")
        if name == "close":
            # The kernel may give the number to another thread before this one hears that it is free.
            self._open.pop(call.descriptor(), None)
            return
        if call.failed:
            return
        if name in _OPENS:
            found = self.machine.find(self._paths(call)[0])
            if found is not None:
                self._targets[call] = found
        elif name in _SYNCS or name in _POSITIONED_WRITES or name in ("ftruncate", "fallocate"):
            found = self._open.get(call.descriptor())
            if found is None:
                return
            self._targets[call] = found
            if name in _SYNCS:
                self._covered[call] = self._unsynced(found)
        elif name in _UNKNOWN_CHANGES and call.descriptor() in self._open:
            raise TraceError(f"the replay does not know this way to change a file: {call}")
        self._in_flight[call] = None

    def end(self, call: Call) -> None:
        self._in_flight.pop(call, None)
        self._apply(call)
        self._targets.pop(call, None)
        self._covered.pop(call, None)

    def process_ended(self, left: Path | None = None) -> None:
        """Killed or not: its descriptors are gone, the page cache is not.

        `left` is a copy of `root` as the process left it. It says which calls happened that the process died within; without it all have.
        """
        unfinished = [call for call in self._in_flight if call.name not in _SYNCS]
        unfinished.sort(key=lambda call: call in self._targets and call.name not in _OPENS)  # names first
        for call in unfinished:
            if left is None or self._happened(call, left):
                self._apply(call)
        self._in_flight.clear()
        self._targets.clear()
        self._covered.clear()
        self._open.clear()

    def _happened(self, call: Call, left: Path) -> bool:
        """For a write this also sets how much of it: a kill can come between two pages."""

        def real(path: str) -> Path | None:
            return left / path[len(self.root) + 1 :] if self._is_ours(path) else None

        node = self._targets.get(call)
        if isinstance(node, Inode) and call.name not in _OPENS:
            named = next((path for path, found in walk(self.machine.root) if found is node), None)
            file = real(named) if named else None
            if file is None or not file.exists():
                return False  # nobody will see it again
            bytes_left = file.read_bytes()
            if call.name not in _POSITIONED_WRITES:
                return len(bytes_left) != len(node.live)
            data, position = _written_by(call)
            there = zip(data, bytes_left[position:], strict=False)
            call.result = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], there))
            return call.result > 0
        files = [file for file in map(real, self._paths(call)) if file is not None]
        if not files:
            return True
        gone = call.name.startswith(("rename", "unlink", "rmdir"))
        return files[0].exists() != gone

    # ---- one call

    def _apply(self, call: Call) -> None:
        name = call.name
        if call.failed or name in _NO_PROMISE:
            return
        if name in _OPENS:
            self._opened(call)
        elif name in ("dup",):
            self._duplicated(call)
        elif name in _SYNCS:
            self._synced(call)
        elif name in _POSITIONED_WRITES:
            self._written(call)
        elif name in ("ftruncate", "fallocate"):
            self._resized(call)
        elif name in ("rename", "renameat", "renameat2"):
            self._renamed(call)
        elif name in ("unlink", "unlinkat", "rmdir"):
            self._changed_names([(path, None) for path in self._paths(call)])
        elif name in ("mkdir", "mkdirat"):
            self._changed_names([(path, Directory()) for path in self._paths(call)])
        elif name in _UNKNOWN_NAME_CHANGES and any(map(self._is_ours, self._paths(call))):
            raise TraceError(f"the replay does not know this way to change names: {call}")

    def _opened(self, call: Call) -> None:
        (path,) = self._paths(call)
        node = self._targets.get(call) or self.machine.find(path)
        if node is None:
            if not self._is_ours(path):
                return
            if "O_CREAT" not in call.arguments and call.name != "creat":
                raise TraceError(f"a file was opened that the replay does not know: {call}")
            node = Inode()
            self._changed_names([(path, node)])
        elif isinstance(node, Inode) and node.live and ("O_TRUNC" in call.arguments or call.name == "creat"):
            node.apply(DataOp(0, None), 0)
        if call.result is not None:
            self._open[call.result] = node

    def _duplicated(self, call: Call) -> None:
        node = self._open.get(call.descriptor())
        if node is not None and call.result is not None:
            self._open[call.result] = node

    def _written(self, call: Call) -> None:
        inode = self._targets.get(call)
        if not isinstance(inode, Inode):
            return
        data, position = _written_by(call)
        if call.result is not None:
            data = data[: call.result]
        inode.apply(DataOp(position, data), 0)

    def _resized(self, call: Call) -> None:
        inode = self._targets.get(call)
        if not isinstance(inode, Inode):
            return
        if call.name == "ftruncate":
            size = call.last_numbers(1)[0]
        else:
            _, mode, start, length = call.arguments.split(", ")
            if mode == "FALLOC_FL_KEEP_SIZE":
                return
            if mode != "0":
                raise TraceError(f"the replay does not know this mode: {call}")
            size = max(len(inode.live), int(start) + int(length))
        if size != len(inode.live):
            inode.apply(DataOp(size, None), 0)

    def _renamed(self, call: Call) -> None:
        source, target = self._paths(call)
        if not (self._is_ours(source) or self._is_ours(target)):
            return
        if call.name == "renameat2" and not call.arguments.endswith((", 0", "RENAME_NOREPLACE")):
            raise TraceError(f"the replay does not know this way to rename: {call}")
        node = self.machine.find(source)
        if node is None:
            raise TraceError(f"something was renamed that the replay does not know: {call}")
        if source != target:
            self._changed_names([(source, None), (target, node)])

    def _changed_names(self, changes: list[tuple[str, Inode | Directory | None]]) -> None:
        if any(self._is_ours(path) for path, _ in changes):
            self.machine.link(*changes)

    # ---- durability

    def _unsynced(self, node: Inode | Directory) -> list[DataOp] | list[NameOp]:
        if isinstance(node, Inode):
            return list(node.pending)
        return [op for op in self.machine.pending_names if any(where is node for where, _, _ in op.changes)]

    def _synced(self, call: Call) -> None:
        node, covered = self._targets.get(call), self._covered.get(call)
        if node is None or covered is None:
            return
        ids = set(map(id, covered))
        if isinstance(node, Directory):
            for change in self.machine.pending_names:
                if id(change) in ids:
                    change.apply_durably()
            self.machine.pending_names = [op for op in self.machine.pending_names if id(op) not in ids]
            return
        for op in node.pending:
            if id(op) in ids:
                op.apply_to(node.durable)
        node.pending = [op for op in node.pending if id(op) not in ids]

    # ---- names

    def _is_ours(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + "/")

    def _paths(self, call: Call) -> list[str]:
        """The absolute paths among the arguments; relative to a directory's descriptor where the call says so."""
        paths = []
        before = ""
        rest = call.arguments
        for name in call.strings():
            before, _, rest = rest.partition('"')
            _, _, rest = rest.partition('"')
            path = os.fsdecode(name)
            if not path.startswith("/"):
                directory = self._directory_before(before)
                path = os.path.join(directory, path)
            paths.append(path)
        return paths

    def _directory_before(self, arguments: str) -> str:
        words = [word for word in arguments.split(", ") if word]
        number = words[-1] if words else "AT_FDCWD"
        if not number.isdigit():
            return "(the working directory)"
        node = self._open.get(int(number))
        if node is None:
            return "(a directory elsewhere)"
        for path, found in walk(self.machine.root):
            if found is node:
                return path
        raise TraceError(f"descriptor {number} is of a directory that has no name any more")


def _written_by(call: Call) -> tuple[bytes, int]:
    """What a write was given, and where it goes."""
    if call.name == "pwrite64":
        data, position = call.strings()[0], call.last_numbers(1)[0]
    else:
        data, position = call.buffers(), call.last_numbers(2 if call.name == "pwritev2" else 1)[0]
    if position < 0:
        raise TraceError(f"the replay keeps no cursors: {call}")
    return data, position


def walk(directory: Directory, path: str = "") -> Iterator[tuple[str, Inode | Directory]]:
    """Everything below a directory as programs see it: path and node."""
    for name, node in sorted(directory.live.items()):
        yield f"{path}/{name}", node
        if isinstance(node, Directory):
            yield from walk(node, f"{path}/{name}")


def differences(machine: Machine, root: str) -> list[str]:
    """What the replayed directory and the real one at `root` do not agree on: nothing, or the trace has missed a change."""
    replayed = {path: node for path, node in walk(machine.root) if path.startswith(root + "/")}
    real = {str(path): path for path in Path(root).rglob("*")}
    found = [f"{path} is in one of them only" for path in sorted(replayed.keys() ^ real.keys())]
    for path in sorted(replayed.keys() & real.keys()):
        node = replayed[path]
        if isinstance(node, Directory) != real[path].is_dir():
            found.append(f"{path} is a directory in one of them only")
        elif isinstance(node, Inode) and bytes(node.live) != real[path].read_bytes():
            found.append(f"{path} has other bytes")
    return found


def write_out(machine: Machine, root: str, target: Path) -> None:
    """The directory `root` of a machine as real files below `target`."""
    target.mkdir(parents=True)
    for path, node in walk(machine.root):
        if path.startswith(root + "/"):
            real = target / path[len(root) + 1 :]
            if isinstance(node, Directory):
                real.mkdir()
            else:
                real.write_bytes(node.live)
