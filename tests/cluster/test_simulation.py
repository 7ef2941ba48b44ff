"""A whole cluster, its clients and everything that may go wrong: from a seed, on the product's code, on one heap of events.

`TIDELOG_TEST_EFFORT` multiplies the seeds; `make sim SEED=n` shows one with its trace, `python -m tidelog.testing.sim.cluster_run` runs many.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tidelog.testing.sim.cluster_faults import Plan
from tidelog.testing.sim.cluster_mutants import zoo
from tidelog.testing.sim.cluster_net import Weather
from tidelog.testing.sim.cluster_run import hunt, run_seed
from tidelog.testing.sim.cluster_shape import Shape, TopicShape, shape_of
from tidelog.testing.sim.cluster_shrink import shrink
from tidelog.testing.sim.cluster_world import ClusterWorld

EFFORT = int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))
SEEDS_MAX = 2000


@pytest.mark.parametrize("seed", range(12 * EFFORT))
def test_a_seed_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.problem
    assert outcome.seconds >= 60
    assert outcome.faults >= 5


def test_nothing_goes_wrong_where_nothing_is_broken() -> None:
    """Without faults leaders stay where they are, and everybody is answered at once."""
    shape = Shape(seconds=20.0, topics=(TopicShape("orders", 2, 3),), members=2)
    world = ClusterWorld(7, shape=shape, plan=Plan(Weather(), ()))
    world.run()
    assert world.coverage["no leader"] == 0
    assert world.coverage["truncated"] == 0
    assert world.coverage["member NETWORK_EXCEPTION"] == 0
    assert world.watch.elections == len(world.truth.partitions)


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    """I59: one seed decides everything; not the order of a set, not the process, not what ran before."""
    seeds = (3, 8)
    here = [run_seed(seed).trace_hash for seed in seeds]
    assert here == [run_seed(seed).trace_hash for seed in seeds]
    script = (
        "from tidelog.testing.sim.cluster_run import run_seed\n"
        f"print(*(run_seed(seed).trace_hash for seed in {seeds}))"
    )
    for hash_seed in ("1", "20"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        assert done.stdout.split() == here


def test_seeds_are_of_many_kinds() -> None:
    """The swarm: every kind of cluster that is promised anything is among the first thousand seeds."""
    shapes = [shape_of(seed) for seed in range(1000)]
    assert {len(shape.voters) for shape in shapes} == {1, 3, 5}
    assert {len(shape.brokers) for shape in shapes} >= {1, 3, 4, 5, 7}
    assert {shape.topics[0].replication for shape in shapes} == {1, 2, 3, 4, 5}
    assert {shape.min_isr for shape in shapes} == {1, 2, 3}
    assert {shape.durable for shape in shapes} == {True, False}
    assert any(not set(shape.voters) & set(shape.brokers) for shape in shapes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["M10", "M11", "M13", "M33"])
def test_the_default_swarm_finds_a_mutant(name: str) -> None:
    """One of replication, of the controller, of the quorum and of storage; `make sim` hunts the whole zoo."""
    assert hunt(name, 0, SEEDS_MAX, workers=1).seeds > 0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [each.name for each in zoo()])
def test_the_default_swarm_finds_the_whole_zoo(name: str) -> None:
    assert hunt(name, 0, SEEDS_MAX, workers=2).seeds > 0


@pytest.mark.long
def test_a_seed_that_fails_is_made_smaller() -> None:
    found = hunt("M10", 0, SEEDS_MAX, workers=1)
    assert found.seeds > 0
    told = shrink(found.seeds - 1, mutated="M10")
    left, _, rest = told.partition("breaks with ")[2].partition(" of ")
    assert int(left) < int(rest.partition(" ")[0])
    assert "--without" in told
