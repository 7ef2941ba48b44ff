"""Scenes from the life of a simulated cluster, each of which once went wrong: found by seeds, told here by hand."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from tidelog.cluster.lifecycle import Phase
from tidelog.storage import files
from tidelog.testing.sim.cluster_faults import Plan
from tidelog.testing.sim.cluster_net import Weather
from tidelog.testing.sim.cluster_shape import Shape, TopicShape
from tidelog.testing.sim.cluster_world import ClusterWorld


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def _cluster(*, min_isr: int, nodes: int = 3) -> ClusterWorld:
    """One partition on all nodes, nothing that goes wrong by itself."""
    shape = Shape(
        voters=tuple(range(nodes)),
        brokers=tuple(range(nodes)),
        topics=(TopicShape("orders", 1, nodes),),
        offsets=TopicShape("__consumer_offsets", 2, nodes),
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


def test_a_broker_whose_disk_fails_while_it_starts_does_not_register() -> None:
    """It would be refused, for a registration without a directory, with words that say nothing of the disk."""
    world = _cluster(min_isr=2)
    (controller,) = world.leaders()
    victim = next(node for node in world.shape.nodes if node != controller.id)
    world.kill(victim)
    world.run_until(9.0)
    world.start(victim)
    node = world.running(victim)
    assert node is not None
    node.disk.fail("write", errno.EIO, matches=lambda path: files.BROKER_RUN in path)
    world.run_until(15.0)
    assert world.running(victim) is not node, "it ended"
    assert node.cluster.lifecycle.phase is Phase.WAITING


def test_an_only_voter_that_resigns_while_its_broker_comes_back() -> None:
    world = _cluster(min_isr=1, nodes=1)
    world.kill(0)
    world.start(0)
    node = world.running(0)
    assert node is not None
    controller = node.cluster.controller
    assert controller is not None
    submit, submitted = controller.submit, []

    def submit_and_resign(*arguments: Any) -> None:
        submit(*arguments)
        submitted.append(node.cluster.lifecycle.epoch)
        if len(submitted) == 1:
            node.quorum.resign()  # what was decided is written, and not committed

    controller.submit = submit_and_resign  # type: ignore[assignment,method-assign]
    world.run_until(10.0)
    assert len(submitted) > 2
    assert node.is_started
