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
CHUNK = 12
RARE = (
    "snapshot loaded",
    "append given up",
    "Resigned Resign",
    "Follower Truncated",
    "crash random",
    "disk error",
)


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + CHUNK * EFFORT, CHUNK))
def test_a_quorum_keeps_its_promises(first: int) -> None:
    seen: Counter[str] = Counter()
    leaders = faults = 0
    for seed in range(first, first + CHUNK):
        world = QuorumWorld(seed)
        world.run()
        seen.update(world.coverage)
        seen.update(world.faults)
        leaders += world.elections
        faults += world.faults.total()
    # The promises are worth what was done to break them.
    assert leaders > 2 * CHUNK
    assert faults > 5 * CHUNK
    if first == 1:
        assert [rare for rare in RARE if not seen[rare]] == []


def test_the_same_seed_is_the_same_world() -> None:
    first, again = QuorumWorld(8, keep_trace=True), QuorumWorld(8, keep_trace=True)
    assert first.run() == again.run()
    assert first.trace == again.trace
    assert QuorumWorld(10).run() != first.trace_hash
