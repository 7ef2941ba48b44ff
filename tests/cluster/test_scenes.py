"""Scenes from the life of a simulated cluster, each of which once went wrong: found by seeds, told here by hand."""

from __future__ import annotations

import logging

import pytest

from tidelog.testing.sim.cluster_faults import Plan
from tidelog.testing.sim.cluster_net import Weather
from tidelog.testing.sim.cluster_shape import Shape, TopicShape
from tidelog.testing.sim.cluster_world import ClusterWorld


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def _cluster(*, min_isr: int) -> ClusterWorld:
    """Three nodes, one partition, nothing that goes wrong by itself."""
    shape = Shape(
        topics=(TopicShape("orders", 1, 3),),
        min_isr=min_isr,
        producers=1,
        weak_producers=0,
        readers=1,
        members=0,
    )
    world = ClusterWorld(1, shape=shape, plan=Plan(Weather(), ()))
    world.run_until(5.0)
    return world


def _places(world: ClusterWorld, since: int) -> list[str]:
    """What became of the partition, line by line."""
    return [line for line in world.lines[since:] if " orders-0: " in line]


def test_a_broker_registers_with_metadata_that_knows_its_last_run() -> None:
    """It dies after it has registered and before it hears of it. The next run's metadata must be newer than that before it registers, or the
    controller takes it for one that has lost what it had.
    """
    world = _cluster(min_isr=3)
    (controller,) = world.leaders()
    victim = next(node for node in world.shape.nodes if node != controller.id)
    world.kill(victim)
    world.run_until(9.0)
    world.network.cut.add((controller.id, victim))
    world.start(victim)
    world.run_until(9.8)
    world.kill(victim)
    world.network.heal({(controller.id, victim)})
    since = len(world.lines)
    world.start(victim)
    world.run_until(15.0)
    states = _places(world, since)
    assert states
    for line in states:
        isr, elr = line.partition("isr ")[2].split(" elr ")
        assert str(victim) in isr or str(victim) in elr, line
