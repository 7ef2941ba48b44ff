"""Who has just left stays in the list of brokers for a while, if clients have noticed that it left; who has only become silent does not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster.world import ManualLoop
from tidelog.broker.cluster_view import ClusterView
from tidelog.cluster.departures import TOLD_FOR_S, Departures
from tidelog.cluster.missing_nodes import MissingNodes
from tidelog.controller.image import BrokerImage, Endpoint

LEAVING = 2


class Scene:
    """Three brokers, of which one leaves, as another one sees it."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.knocks: list[Callable[[bool | None], None]] = []
        self.missing = MissingNodes(
            lambda _node_id, answered: self.knocks.append(answered),
            clock=self.loop,
            scheduler=self.loop,
            gone=lambda _node_id: None,
        )
        self.departures = Departures(self.missing, clock=self.loop)
        self.image: Any = SimpleNamespace(brokers={number: broker(number) for number in (1, 2, 3)})
        self.departures.changed({1, 2, 3}, self.image, is_news=False)
        partitions: Any = None
        self.view = ClusterView(1, lambda: self.image, partitions, self.departures.is_told)

    def becomes(self, found: BrokerImage | None, *, is_news: bool = True) -> None:
        brokers = {number: known for number, known in self.image.brokers.items() if number != LEAVING}
        self.image = SimpleNamespace(brokers=brokers if found is None else brokers | {LEAVING: found})
        self.departures.changed({LEAVING}, self.image, is_news=is_news)

    def answer(self, *, listens: bool | None) -> None:
        (answered,) = self.knocks
        self.knocks.clear()
        answered(listens)

    @property
    def is_told(self) -> bool:
        found = self.view.endpoints("PLAINTEXT", departed_too=True)
        return LEAVING in {endpoint.node_id for endpoint in found}


def broker(number: int, *, fenced: bool = False, stopping: bool = False) -> BrokerImage:
    return BrokerImage(
        broker_id=number,
        incarnation_id=bytes(16),
        epoch=number,
        endpoints=(Endpoint("PLAINTEXT", "127.0.0.1", 9000 + number, 0),),
        features=(),
        rack=None,
        fenced=fenced,
        in_controlled_shutdown=stopping,
        log_dirs=(),
    )


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_one_that_was_killed_is_named_as_long_as_a_kafka_would_name_it(scene: Scene) -> None:
    scene.missing.lost(LEAVING)
    scene.answer(listens=False)
    scene.becomes(broker(LEAVING, fenced=True))
    scene.answer(listens=False)  # asked again, because it was fenced
    assert scene.is_told
    scene.loop.pass_time(TOLD_FOR_S - 0.1)
    assert scene.is_told
    scene.loop.pass_time(0.2)
    assert not scene.is_told


def test_only_those_who_ask_for_it_hear_of_it(scene: Scene) -> None:
    scene.becomes(broker(LEAVING, fenced=True))
    assert [found.node_id for found in scene.view.endpoints("PLAINTEXT")] == [1, 3]


def test_a_node_without_a_connection_to_it_finds_out(scene: Scene) -> None:
    """The answer that moves its partitions leaves at the same moment."""
    scene.becomes(broker(LEAVING, fenced=True))
    assert scene.is_told
    scene.answer(listens=False)
    assert scene.is_told


def test_a_port_that_was_open_before_it_was_fenced_may_be_closed_by_now(scene: Scene) -> None:
    """A dying process closes one socket after the other."""
    scene.missing.lost(LEAVING)
    scene.answer(listens=True)
    scene.becomes(broker(LEAVING, fenced=True))
    assert scene.is_told
    scene.loop.pass_time(0.05)
    scene.answer(listens=False)
    assert scene.is_told


@pytest.mark.parametrize("listens", [True, None])
def test_one_that_is_silent_is_not_named(scene: Scene, *, listens: bool | None) -> None:
    """Its kernel takes connections, or nobody is there to refuse them: clients that wait for it should stop."""
    scene.becomes(broker(LEAVING, fenced=True))
    scene.answer(listens=listens)
    assert not scene.is_told


def test_one_that_stops_in_order_is_named_while_its_port_is_still_open(scene: Scene) -> None:
    scene.becomes(broker(LEAVING, stopping=True))
    scene.becomes(broker(LEAVING, stopping=True, fenced=True))
    assert scene.is_told
    assert scene.knocks == []
    scene.loop.pass_time(TOLD_FOR_S + 0.1)
    assert not scene.is_told


def test_what_happened_long_ago_is_no_news(scene: Scene) -> None:
    scene.becomes(broker(LEAVING, fenced=True), is_news=False)
    assert not scene.is_told
    scene.becomes(broker(LEAVING, fenced=True, stopping=True))
    assert not scene.is_told


def test_one_that_was_unregistered_is_not_named(scene: Scene) -> None:
    scene.becomes(None)
    assert not scene.is_told


def test_one_that_comes_back_may_leave_again(scene: Scene) -> None:
    scene.becomes(broker(LEAVING, fenced=True))
    scene.answer(listens=False)
    scene.becomes(broker(LEAVING))
    scene.loop.pass_time(TOLD_FOR_S)
    assert scene.is_told
    scene.becomes(broker(LEAVING, fenced=True))
    scene.answer(listens=False)
    assert scene.is_told
