"""How deep the crash tests look: a slice in `make test`, every crash state that is enumerated in `make sim`."""

from __future__ import annotations

import os

from tidelog.testing.sim.crash_explorer import Depth, Explored

EFFORT = int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))


def depth() -> Depth:
    if EFFORT == 1:
        return Depth(subsets_up_to=4, reordered=60, every=32, recover_every=130, nested=4)
    return Depth(
        subsets_up_to=6,
        reordered=400 * EFFORT if EFFORT < 10 else None,
        every=12,
        recover_every=max(25, 4 * EFFORT),
        nested=15,
        levels=2,
        cuts=3 if EFFORT < 10 else None,
    )


def report(name: str, explored: Explored) -> None:
    print(f"{name}: {explored}")
