"""What the simulated disk is made of: files and directories, each as readers see it and as the medium holds it.

Owns the rules of survival: which bytes and names a power loss leaves, given the fate of every operation that was not synced. It
makes no choices and draws no chance; `SimDisk` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias


class DataOp(NamedTuple):
    """A write of `data` at `position`, or a truncation to `position` bytes if `data` is None. `order`: when, among all operations."""

    position: int
    data: bytes | None
    order: int = 0

    def apply_to(self, image: bytearray) -> None:
        position, data, _ = self
        if data is None:
            _resize(image, position)
            return
        if len(image) < position:
            _resize(image, position)
        image[position : position + len(data)] = data


@dataclass(frozen=True, slots=True)
class Fate:
    """What a power loss made of one unsynced operation. `mask` says which sectors of a write survived."""

    label: str
    cut: int | None = None
    mask: tuple[bool, ...] = ()
    sector: int = 0

    @staticmethod
    def kept() -> Fate:
        return Fate("kept")

    @staticmethod
    def lost() -> Fate:
        return Fate("lost", cut=0)

    @staticmethod
    def torn(cut: int) -> Fate:
        return Fate(f"torn@{cut}", cut=cut)

    @staticmethod
    def sectors(mask: tuple[bool, ...], sector: int) -> Fate:
        return Fate("sectors:" + "".join("01"[bit] for bit in mask), mask=mask, sector=sector)

    @staticmethod
    def zeroed(cut: int = 0) -> Fate:
        """The file's new length reached the medium, its bytes did not, but for the first `cut`: journalling file systems do this."""
        return Fate(f"zeroed@{cut}", cut=cut)

    @property
    def survives(self) -> bool:
        """For operations that cannot be torn."""
        return self.label == "kept"

    def __str__(self) -> str:
        return self.label

    def pieces(self, op: DataOp) -> list[DataOp]:
        """What is left of the operation."""
        if self.mask and op.data is not None:
            return [
                DataOp(op.position + start, op.data[start : start + self.sector])
                for start, survived in zip(range(0, len(op.data), self.sector), self.mask, strict=True)
                if survived
            ]
        if self.cut is None:
            return [op]
        if op.data is None or self.cut == 0:
            return []
        return [DataOp(op.position, op.data[: self.cut])]


LOST: Final = Fate.lost()


class Inode:
    """A file: `live` is what readers see, `durable` what the medium holds, `pending` the difference in order."""

    __slots__ = ("__weakref__", "durable", "live", "mtime_ms", "number", "pending")

    def __init__(self, mtime_ms: int = 0, number: int = 0) -> None:
        self.number = number
        self.live = bytearray()
        self.durable = bytearray()
        self.pending: list[DataOp] = []
        self.mtime_ms = mtime_ms

    def apply(self, op: DataOp, now_ms: int) -> None:
        op.apply_to(self.live)
        self.pending.append(op)
        self.mtime_ms = now_ms

    def sync(self) -> None:
        pending, self.pending = self.pending, []
        for op in pending:
            op.apply_to(self.durable)

    def forget_cached(self) -> None:
        """What a failed sync lost is not seen any more."""
        self.live = bytearray(self.durable)
        for op in self.pending:
            op.apply_to(self.live)

    def corrupt(self, position: int, data: bytes) -> None:
        for image in (self.live, self.durable):
            known = data[: max(0, len(image) - position)]
            image[position : position + len(known)] = known

    def copy(self) -> Inode:
        other = Inode(self.mtime_ms, self.number)
        other.live = bytearray(self.live)
        other.durable = bytearray(self.durable)
        other.pending = list(self.pending)
        return other

    def surviving(self, fates: list[Fate]) -> Inode:
        other = Inode(self.mtime_ms, self.number)
        other.durable = bytearray(self.durable)
        for op, fate in zip(self.pending, fates, strict=True):
            if fate is LOST:
                continue
            for piece in fate.pieces(op):
                piece.apply_to(other.durable)
            if (
                fate.label.startswith("zeroed")
                and op.data is not None
                and len(other.durable) < op.position + len(op.data)
            ):
                _resize(other.durable, op.position + len(op.data))
        other.live = bytearray(other.durable)
        return other


class Directory:
    """A directory: names to nodes, as seen and as durable."""

    __slots__ = ("durable", "live", "number")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.live: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node: TypeAlias = Inode | Directory


class NameOp(NamedTuple):
    """One atomic change of names: a creation or removal has one part, a rename two."""

    changes: tuple[tuple[Directory, str, Node | None], ...]
    order: int = 0

    def apply_durably(self) -> None:
        for directory, name, node in self.changes:
            if node is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = node


class Machine:
    """The whole tree of one disk. Paths are split at "/"; absolute and relative ones are the same tree."""

    __slots__ = ("_next_number", "inodes", "order", "pending_names", "root")

    def __init__(self) -> None:
        self.root = Directory()
        self.pending_names: list[NameOp] = []
        # By number, where operations on files are replayed that were recorded on another machine.
        self.inodes: dict[int, Inode] | None = None
        self._next_number = 1
        self.order = 0  # of the operation at hand: whoever performs operations counts them

    def find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in _names(path):
            if not isinstance(node, Directory):
                return None
            node = node.live.get(name)
        return node

    def make_dirs(self, path: str) -> None:
        """Durable at once, parents included."""
        directory = self.root
        for name in _names(path):
            node = directory.live.get(name)
            if isinstance(node, Inode):
                raise NotADirectoryError(path)
            if node is None:
                node = Directory(self._number())
                directory.live[name] = node
                self.sync_name(directory, name, node)
            elif directory.durable.get(name) is not node:
                self.sync_name(directory, name, node)
            directory = node

    def make_dir(self, path: str) -> None:
        """One directory whose name is pending like any other."""
        self.link((path, Directory(self._number())))

    def sync_name(self, directory: Directory, name: str, node: Directory) -> None:
        self.sync_directory(directory)
        directory.durable[name] = node

    def link(self, *changes: tuple[str, Node | None]) -> None:
        """Change names together; None removes. FileNotFoundError if a parent directory is missing."""
        resolved = []
        for path, node in changes:
            names = _names(path)
            directory: Node | None = self.root
            for parent in names[:-1]:
                directory = directory.live.get(parent) if isinstance(directory, Directory) else None
            if not isinstance(directory, Directory):
                raise FileNotFoundError(2, "No such file or directory", path)
            resolved.append((directory, names[-1], node))
        for directory, name, node in resolved:
            if isinstance(node, Inode) and not node.number:
                node.number = self._number()
                if self.inodes is not None:
                    self.inodes[node.number] = node
            if node is None:
                directory.live.pop(name, None)
            else:
                directory.live[name] = node
        self.pending_names.append(NameOp(tuple(resolved), self.order))

    def sync_directory(self, directory: Directory) -> None:
        """Make every change that touches this directory durable, a rename in both its directories at once."""
        waiting = []
        for op in self.pending_names:
            for touched, _, _ in op.changes:
                if touched is directory:
                    op.apply_durably()
                    break
            else:
                waiting.append(op)
        self.pending_names = waiting

    def pending_ops(self) -> list[DataOp | NameOp]:
        """All unsynced operations, in the order in which `after_power_loss` takes their fates."""
        ops: list[DataOp | NameOp] = []
        for inode in self._reachable(self._directories()):
            ops.extend(inode.pending)
        ops.extend(self.pending_names)
        return ops

    def after_power_loss(self, fates: list[Fate]) -> Machine:
        rest = iter(fates)
        directories = self._directories()
        files = {
            inode.number: inode.surviving([next(rest) for _ in inode.pending])
            for inode in self._reachable(directories)
        }
        survivors = [op for op in self.pending_names if next(rest).survives]
        tables: dict[int, dict[str, Node]] = {}
        for directory in directories:
            tables[id(directory)] = dict(directory.durable)
        for op in survivors:
            for directory, name, node in op.changes:
                table = tables.setdefault(id(directory), dict(directory.durable))
                if node is None:
                    table.pop(name, None)
                else:
                    table[name] = node
        machine = Machine()
        machine._next_number = self._next_number
        machine.root = _rebuild(self.root, tables, files, set(), machine)
        return machine

    def copy(self) -> Machine:
        """An independent machine in the same state, unsynced operations included."""
        machine = Machine()
        machine._next_number = self._next_number
        directories = self._directories()
        copies = {inode.number: inode.copy() for inode in self._reachable(directories)}
        twins: dict[int, Directory] = {id(old): Directory(old.number) for old in directories}

        def twin(node: Node) -> Node:
            return copies[node.number] if isinstance(node, Inode) else twins[id(node)]

        for old in directories:
            new = twins[id(old)]
            new.live = {name: twin(node) for name, node in old.live.items()}
            new.durable = {name: twin(node) for name, node in old.durable.items()}
        machine.root = twins[id(self.root)]
        machine.pending_names = [
            NameOp(
                tuple((twins[id(where)], name, node and twin(node)) for where, name, node in op.changes),
                op.order,
            )
            for op in self.pending_names
        ]
        return machine

    def follow_files(self) -> None:
        """Operations that were recorded are to be replayed here: files are found by their numbers from now on."""
        self.inodes = {inode.number: inode for inode in self._reachable(self._directories())}

    def used_bytes(self) -> int:
        return sum(len(node.live) for node in _walk(self.root) if isinstance(node, Inode))

    def fingerprint(self) -> int:
        """Equal for equal trees."""
        return hash(_frozen(self.root))

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number

    def _directories(self) -> list[Directory]:
        """Every directory that is, was or may again be part of the tree."""
        found: dict[int, Directory] = {}
        waiting: list[Node] = [self.root]
        for op in self.pending_names:
            for where, _, node in op.changes:
                waiting.append(where)
                if node is not None:
                    waiting.append(node)
        while waiting:
            node = waiting.pop()
            if isinstance(node, Directory) and id(node) not in found:
                found[id(node)] = node
                waiting.extend(node.live.values())
                waiting.extend(node.durable.values())
        return list(found.values())

    def _reachable(self, directories: list[Directory]) -> list[Inode]:
        """Every file that has, had durably or may again have a name, in the order of creation."""
        nodes: list[Node | None] = []
        for directory in directories:
            nodes += directory.live.values()
            nodes += directory.durable.values()
        for op in self.pending_names:
            nodes += [node for _, _, node in op.changes]
        found = {node.number: node for node in nodes if isinstance(node, Inode)}
        return [found[number] for number in sorted(found)]


def _rebuild(
    old: Directory,
    tables: dict[int, dict[str, Node]],
    files: dict[int, Inode],
    named: set[int],
    machine: Machine,
) -> Directory:
    new = Directory(old.number)
    for name, node in tables[id(old)].items():
        fresh: Node
        if isinstance(node, Directory):
            fresh = _rebuild(node, tables, files, named, machine)
        else:
            fresh = files[node.number]
            if fresh.number in named:
                # Of two renames only the second survived, so the file has two names: make it two files, as a repair does.
                fresh = fresh.copy()
                fresh.number = machine._number()
            named.add(fresh.number)
        new.durable[name] = fresh
        new.live[name] = fresh
    return new


def _walk(directory: Directory) -> Iterator[Node]:
    for node in directory.live.values():
        yield node
        if isinstance(node, Directory):
            yield from _walk(node)


def _frozen(node: Node) -> object:
    if isinstance(node, Inode):
        return bytes(node.durable)
    return tuple(sorted((name, _frozen(child)) for name, child in node.durable.items()))


@lru_cache(maxsize=4096)
def _names(path: str) -> tuple[str, ...]:
    return tuple(name for name in path.split("/") if name and name != ".")


def _resize(image: bytearray, size: int) -> None:
    if size < len(image):
        del image[size:]
    else:
        image.extend(bytes(size - len(image)))
