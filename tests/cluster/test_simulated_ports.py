"""The ports of simulated nodes: what a node learns that knocks at another's, as it would of a kernel (`cluster.missing_nodes.Listens`)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tidelog.testing.sim.cluster_net import CONNECT_TIMEOUT_S, Connection, Knock, Network
from tidelog.testing.sim.cluster_run import run_seed
from tidelog.testing.sim.events import EventHeap, Process


class Host:
    """Implements `cluster_net.Host`."""

    def __init__(self, heap: EventHeap) -> None:
        self.process = Process(heap)
        self.is_listening = True

    def listens(self, lane: str, /) -> bool:
        return self.is_listening

    def handle(self, connection: Connection, request: Any, respond: Callable[[Any], None], /) -> None:
        raise AssertionError("nothing is asked here")


class World:
    def __init__(self, seed: int = 0) -> None:
        self.heap = EventHeap()
        self.network = Network(self.heap, Random(seed))
        self.client = Process(self.heap)
        self.host = self.network.hosts[2] = Host(self.heap)

    def knock(self) -> tuple[bool | None, float]:
        """What is answered, and after how long."""
        answers: list[tuple[bool | None, float]] = []
        begun = self.heap.now
        Knock(
            self.network,
            self.client,
            1,
            2,
            "broker",
            lambda taken: answers.append((taken, self.heap.now - begun)),
        )
        while self.heap.step(begun + 2 * CONNECT_TIMEOUT_S):
            pass
        assert len(answers) == 1
        return answers[0]


def test_a_node_that_listens_takes_connections() -> None:
    taken, seconds = World().knock()
    assert taken is True
    assert seconds < 0.1


def test_the_port_of_a_killed_process_refuses_at_once() -> None:
    world = World()
    world.host.process.kill()
    taken, seconds = world.knock()
    assert taken is False
    assert seconds < 0.1


def test_a_process_that_has_just_started_refuses_until_it_listens() -> None:
    world = World()
    world.host.is_listening = False
    assert world.knock()[0] is False


@pytest.mark.parametrize("link", [(1, 2), (2, 1)])
def test_a_node_that_is_cut_off_says_nothing(link: tuple[int, int]) -> None:
    world = World()
    world.host.process.kill()
    world.network.cut.add(link)
    assert world.knock() == (None, CONNECT_TIMEOUT_S)


def test_a_machine_without_power_says_nothing() -> None:
    world = World()
    world.host.process.kill()
    world.network.dark.add(2)
    assert world.knock() == (None, CONNECT_TIMEOUT_S)


def test_the_kernel_takes_connections_for_a_paused_process_unless_the_machine_is_paused() -> None:
    answers = []
    for seed in range(20):
        world = World(seed)
        world.host.process.paused_until = 100.0
        answers.append(world.knock()[0])
    assert set(answers) == {True, None}, "never refused: nobody may take it for dead"


def test_seeds_notice_dead_nodes_by_their_ports() -> None:
    reached = run_seed(0).coverage
    assert reached["port refuses"]
    assert reached["port takes"]
