"""Would the simulated quorum notice? Every mutant of the quorum must be found by the first seeds of the same swarm that is silent on the product.

The seed at which each is found stands in docs/TESTING.md. In `make test` the first seed known to find it is enough; `make sim` looks for it from seed 1 on.
"""

from __future__ import annotations

import os

import pytest

from tidelog.testing.quorum_mutants import MUTANTS, mutant
from tidelog.testing.sim.quorum_ledger import Violation
from tidelog.testing.sim.quorum_world import QuorumWorld

EFFORT = int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))
FOUND_AT = {"M12": 1, "M13": 1, "M14": 1, "M15": 2, "M16": 8, "Q1": 1, "Q2": 2, "Q3": 1, "Q4": 6}
SEEDS_MAX = 2000


def test_every_mutant_is_looked_for() -> None:
    assert [known.name for known in MUTANTS] == list(FOUND_AT)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND_AT)
def test_the_swarm_finds_the_mutant(name: str) -> None:
    seeds = range(1, SEEDS_MAX) if EFFORT > 1 else (FOUND_AT[name], *range(1, SEEDS_MAX))
    with mutant(name).applied(), pytest.raises(Violation) as found:
        for seed in seeds:
            QuorumWorld(seed).run()
    print(f"{mutant(name)}: {str(found.value)[:160]}")
