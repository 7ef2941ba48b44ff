"""A simulated quorum keeps its promises whatever happens to it: each seed is one world of crashes, cuts, pauses and failing disks (I10 to I16, I59).

`TIDELOG_TEST_EFFORT` multiplies the seeds, `TIDELOG_SIM_SEED` names the first. A failure prints its seed and its world:
`TIDELOG_SIM_SEED=n pytest tests/quorum/test_simulation.py -k keeps` begins with it.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tidelog.testing.sim.quorum_world import QuorumWorld

EFFORT = int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))
FIRST_SEED = int(os.environ.get("TIDELOG_SIM_SEED", "1"))
CHUNK = 6


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + CHUNK * EFFORT * 2, CHUNK))
def test_a_quorum_keeps_its_promises(first: int) -> None:
    faults: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        world = QuorumWorld(seed)
        world.run()
        faults.update(world.faults)
    assert faults.total() > CHUNK, "hardly anything went wrong: these worlds show nothing"


def test_the_same_seed_is_the_same_world() -> None:
    first, again = QuorumWorld(8, keep_trace=True), QuorumWorld(8, keep_trace=True)
    assert first.run() == again.run()
    assert first.trace == again.trace
    assert QuorumWorld(9).run() != first.trace_hash


def test_rare_things_happen_in_the_first_worlds() -> None:
    """The promises are worth what was done to break them."""
    seen: Counter[str] = Counter()
    for seed in (5, 8, 12, 14, 17):
        world = QuorumWorld(seed)
        world.run()
        seen.update(world.coverage)
        seen.update(world.faults)
    for rare in (
        "snapshot loaded",
        "append given up",
        "Resigned Resign",
        "Follower Truncated",
        "crash random",
    ):
        assert seen[rare], f"{rare} never happened"
