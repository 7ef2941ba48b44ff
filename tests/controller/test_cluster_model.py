"""Anything in any order, on five brokers and three controllers: the metadata keeps its promises, and the model would notice if not."""

from __future__ import annotations

import pytest

from tests.controller.cluster_invariants import Violation
from tests.controller.cluster_model import ClusterModel
from tidelog.testing.controller_mutants import CONTROLLER_MUTANTS
from tidelog.testing.mutants import Mutant

SEEDS = 50
STEPS = 300
MUTANT_SEEDS = 60


def test_the_metadata_keeps_its_promises_and_the_model_gets_everywhere() -> None:
    """A model in which the rare never happens would prove nothing."""
    reached: set[str] = set()
    for seed in range(SEEDS):
        model = ClusterModel(seed)
        model.run(STEPS)
        reached |= model.reached
    assert reached >= {
        "write", "clean stop", "unclean", "last known", "withdrawn",
        "NONE", "INELIGIBLE_REPLICA", "FENCED_LEADER_EPOCH", "INVALID_UPDATE_VERSION",
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(10, 30))
def test_the_metadata_keeps_its_promises_for_long(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        ClusterModel(seed).run(2 * STEPS)


@pytest.mark.parametrize("mutant", CONTROLLER_MUTANTS, ids=str)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises((Violation, ValueError), match=r"\([IH]\d+\)"):
        for seed in range(MUTANT_SEEDS):
            ClusterModel(seed).run(STEPS)
