"""Every crash of small histories: whatever of the unsynced operations survives, storage opens and keeps its promises.

Each history is a few steps through `LogManager` and `Log` on a simulated disk that records its operations. After every prefix of them the
process is killed or the power is cut, with unsynced operations lost, kept, torn and reordered, and the invariants I1 to I9 and I39 are
checked on what the next start finds (`tidelog.testing.sim.storage_checks`). `TIDELOG_TEST_EFFORT` multiplies the reordered states; run
with `-s` to see the counts.
"""

from __future__ import annotations

import pytest

from tests.storage.crash_effort import depth, report
from tests.storage.crash_histories import HISTORIES, History
from tidelog.testing.sim.crash_explorer import Explorer
from tidelog.testing.sim.storage_world import StorageWorld


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_every_crash_state_keeps_the_promises(history: History) -> None:
    world = StorageWorld()
    history(world)
    explored = Explorer(world, depth()).run()
    report(history.__name__, explored)
    assert explored.total > 120
    assert explored.states["recovery crashed"] > 10
