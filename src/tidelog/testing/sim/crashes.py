"""The ways in which unsynced operations may survive a power loss, for exhaustive enumeration of small workloads.

Owns the choice of which combinations are worth trying; `inodes` applies them, `SimDisk.crash_states` walks through them. The first few are
the plain ones that every crash is tried with: nothing survived, everything did, the newest write was torn or left as zeroes. The others
reorder: subsets of the operations, of which there may be too many to try them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from tidelog.testing.sim.inodes import DataOp, Fate, NameOp

SECTOR_BYTES: Final = 512
Ops = Sequence[DataOp | NameOp]


def survival_choices(ops: Ops, subsets_up_to: int) -> Iterator[list[Fate]]:
    """Fates for all operations, in their order. All subsets of at most `subsets_up_to` operations, some of more."""
    yield from plain_choices(ops)
    yield from reordered_choices(ops, subsets_up_to)


def plain_choices(ops: Ops) -> Iterator[list[Fate]]:
    """Nothing survived; everything did; everything, but the newest write is torn or zeroed."""
    yield [Fate.lost()] * len(ops)
    if ops:
        yield from _with_tears(ops, [True] * len(ops))


def reordered_choices(ops: Ops, subsets_up_to: int) -> Iterator[list[Fate]]:
    """Some operations survived and others did not, torn ones included; later ones may have reached the disk before earlier ones."""
    for choice in _choices(ops, subsets_up_to):
        yield from _with_tears(ops, choice)


def _choices(ops: Ops, subsets_up_to: int) -> Iterator[list[bool]]:
    numbers = range(len(ops))
    if len(ops) <= subsets_up_to:
        for choice in product((False, True), repeat=len(ops)):
            if any(choice) and not all(choice):
                yield list(choice)
        return
    by_time = sorted(numbers, key=lambda number: ops[number].order)
    for count in range(1, len(ops)):
        first = set(by_time[:count])
        yield [number in first for number in numbers]
    for alone in numbers:
        yield [number != alone for number in numbers]
        yield [number == alone for number in numbers]


def _with_tears(ops: Ops, choice: Sequence[bool]) -> Iterator[list[Fate]]:
    """The survivors as they are, and with their newest write torn in the middle, at a sector's boundary, and left as zeroes, wholly or from the middle on."""
    kept, lost = Fate.kept(), Fate.lost()
    fates = [kept if survives else lost for survives in choice]
    yield fates
    writes = [
        number for number, op in enumerate(ops) if choice[number] and isinstance(op, DataOp) and op.data
    ]
    if not writes:
        return
    newest = max(writes, key=lambda number: (ops[number].order, number))
    op = ops[newest]
    assert isinstance(op, DataOp) and op.data is not None
    size = len(op.data)
    for cut in sorted({size // 2, size // SECTOR_BYTES * SECTOR_BYTES} - {0, size}):
        yield [*fates[:newest], Fate.torn(cut), *fates[newest + 1 :]]
    for cut in (0, size // 2):
        yield [*fates[:newest], Fate.zeroed(cut), *fates[newest + 1 :]]
