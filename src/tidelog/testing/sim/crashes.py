"""The ways in which unsynced operations may survive a power loss, for exhaustive enumeration of small workloads.

Owns the choice of which combinations are worth trying; `inodes` applies them, `SimDisk.crash_states` walks through them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from tidelog.testing.sim.inodes import DataOp, Fate, NameOp

SECTOR_BYTES: Final = 512


def survival_choices(ops: list[DataOp | NameOp], subsets_up_to: int) -> Iterator[list[Fate]]:
    kept, lost = Fate.kept(), Fate.lost()
    choices: list[list[bool]]
    if len(ops) <= subsets_up_to:
        choices = [list(choice) for choice in product((False, True), repeat=len(ops))]
    else:
        numbers = range(len(ops))
        choices = [[number < end for number in numbers] for end in range(len(ops) + 1)]
        choices += [[number != alone for number in numbers] for alone in numbers]
        choices += [[number == alone for number in numbers] for alone in numbers]
    for choice in choices:
        fates = [kept if survives else lost for survives in choice]
        yield fates
        for number in range(len(ops) - 1, -1, -1):
            op = ops[number]
            if choice[number] and isinstance(op, DataOp) and op.data:
                for cut in sorted(
                    {len(op.data) // 2, len(op.data) // SECTOR_BYTES * SECTOR_BYTES} - {0, len(op.data)}
                ):
                    yield [*fates[:number], Fate.torn(cut), *fates[number + 1 :]]
                yield [*fates[:number], Fate.zeroed(), *fates[number + 1 :]]
                break
