"""Crashes of histories that nobody thought of: random steps, with the loop at work between the operations of threads.

Each seed is one history of everything that can happen to storage, and a sample of its crash states. `TIDELOG_TEST_EFFORT` multiplies the
seeds; a failure prints the seed and the steps that lead to it.
"""

from __future__ import annotations

import pytest

from tests.storage.crash_effort import EFFORT
from tidelog.testing.sim.crash_explorer import Depth, Explorer
from tidelog.testing.sim.storage_random import RandomHistory

STEPS = 20
DEPTH = Depth(subsets_up_to=3, reordered=30 if EFFORT == 1 else 300, every=40, recover_every=150, nested=5)


@pytest.mark.parametrize("seed", range(3 * EFFORT))
def test_a_random_history_keeps_the_promises(seed: int) -> None:
    history = RandomHistory(seed, dirs=("/a", "/b") if seed % 3 == 2 else ("/a",))
    try:
        explored = Explorer(history.run(STEPS), DEPTH).run()
    except Exception as error:
        error.add_note("\n".join([f"seed {seed}", *history.steps]))
        raise
    print(f"seed {seed}: {explored}")
    assert explored.total > 100
