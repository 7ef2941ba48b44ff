"""A node whose connection broke is gone when its port refuses connections, and at no other sign; clients are not sent to it meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.world import ManualLoop
from tidelog.cluster.missing_nodes import (
    FORGET_S,
    HOLD_S,
    LOOK_WITHIN_S,
    LOOKS_AT_ONCE,
    LOOKS_PER_S,
    MissingNodes,
    cannot_tell,
)


class Scene:
    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.asked: list[Callable[[bool | None], None]] = []
        self.gone: list[int] = []
        self.missing = MissingNodes(
            lambda node_id, answered: self.asked.append(answered),
            clock=self.loop,
            scheduler=self.loop,
            gone=self.gone.append,
        )

    def answer(self, *, listens: bool | None) -> None:
        (answered,) = self.asked
        self.asked.clear()
        answered(listens)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_one_that_refuses_connections_is_gone_at_once(scene: Scene) -> None:
    scene.missing.lost(2)
    assert scene.missing.is_missing(2)
    scene.answer(listens=False)
    assert scene.gone == [2]
    assert scene.missing.is_missing(2)
    scene.loop.pass_time(5)
    assert scene.asked == []


def test_one_that_takes_connections_is_not_gone(scene: Scene) -> None:
    scene.missing.lost(2)
    scene.answer(listens=True)
    assert not scene.missing.is_missing(2)
    assert not scene.missing.any_missing()
    assert scene.gone == []


def test_one_that_dies_socket_by_socket_is_looked_at_again(scene: Scene) -> None:
    """The connection closes first, the port a moment later."""
    scene.missing.lost(2)
    scene.answer(listens=True)
    scene.loop.pass_time(0.05)
    scene.answer(listens=False)
    assert scene.gone == [2]
    assert scene.missing.is_missing(2)


def test_one_that_lives_is_left_alone_after_a_while(scene: Scene) -> None:
    scene.missing.lost(2)
    for _ in range(20):
        scene.loop.pass_time(0.5)
        if scene.asked:
            scene.answer(listens=True)
    assert scene.loop.now > HOLD_S
    scene.loop.pass_time(60)
    assert scene.asked == []
    assert scene.gone == []


def test_when_nobody_can_tell_the_session_decides(scene: Scene) -> None:
    scene.missing.lost(2)
    scene.answer(listens=None)
    assert scene.gone == []
    assert scene.missing.is_missing(2)


def test_a_heartbeat_ends_every_doubt(scene: Scene) -> None:
    scene.missing.lost(2)
    scene.missing.heard(2)
    assert not scene.missing.is_missing(2)
    scene.answer(listens=False)  # of the port of its run before, perhaps
    assert scene.gone == []


def test_clients_are_kept_waiting_for_a_moment_and_not_again_while_it_stays_out_of_reach(
    scene: Scene,
) -> None:
    """It may be within reach of others, who go on to take it for the leader."""
    scene.missing.lost(2)
    scene.answer(listens=False)
    scene.loop.pass_time(HOLD_S)
    assert not scene.missing.is_missing(2)
    for _ in range(10):
        scene.loop.pass_time(1.0)
        scene.missing.lost(2)  # a fetcher tries again
        scene.answer(listens=False)
        assert not scene.missing.is_missing(2)
    scene.loop.pass_time(FORGET_S + 1)
    scene.missing.lost(2)  # it was back, and is gone anew
    assert scene.missing.is_missing(2)


def test_a_port_that_was_found_open_is_closed_when_it_refuses_and_not_before(scene: Scene) -> None:
    scene.missing.lost(2)
    assert scene.missing.may_be_closed(2)
    scene.answer(listens=True)
    assert not scene.missing.may_be_closed(2)
    scene.missing.lost(2)  # a request to it timed out
    assert scene.missing.is_missing(2)
    assert not scene.missing.may_be_closed(2)
    scene.loop.pass_time(0.05)
    scene.answer(listens=False)
    assert scene.missing.may_be_closed(2)


def test_one_question_at_a_time(scene: Scene) -> None:
    for _ in range(3):
        scene.missing.lost(2)
    scene.answer(listens=False)
    scene.missing.lost(2)  # a new controller wants to know it anew
    scene.answer(listens=False)
    assert scene.gone == [2, 2]


def test_who_is_to_be_named_is_looked_at_first(scene: Scene) -> None:
    """Clients ask within milliseconds of a death, before this node has noticed it."""
    done: list[str] = []
    scene.missing.look([2], lambda: done.append("one"), since=scene.loop.now)
    scene.missing.look([2], lambda: done.append("other"), since=scene.loop.now)
    assert done == []
    scene.answer(listens=False)  # one look for both
    assert done == ["one", "other"]
    assert scene.missing.is_missing(2)
    scene.answer(listens=False)
    assert scene.gone == [2]
    scene.missing.look([2], lambda: done.append("missing"), since=scene.loop.now)
    assert done[2:] == ["missing"]
    assert scene.asked == []


def test_a_look_counts_for_all_who_asked_before_it(scene: Scene) -> None:
    done: list[int] = []
    scene.loop.pass_time(1.0)
    asked_at = scene.loop.now
    scene.loop.pass_time(0.01)
    scene.missing.look([2], lambda: done.append(1), since=asked_at)
    scene.answer(listens=True)
    scene.missing.look([2], lambda: done.append(2), since=asked_at)
    assert (done, scene.asked) == ([1, 2], [])
    scene.loop.pass_time(0.01)
    scene.missing.look([2], lambda: done.append(3), since=scene.loop.now)
    assert done == [1, 2]
    scene.answer(listens=True)
    assert done == [1, 2, 3]
    assert not scene.missing.any_missing()


def test_a_look_that_began_before_the_question_does_not_count(scene: Scene) -> None:
    done: list[int] = []
    scene.missing.look([2], lambda: done.append(1), since=scene.loop.now)
    scene.loop.pass_time(0.01)
    scene.missing.look([2], lambda: done.append(2), since=scene.loop.now)
    scene.answer(listens=True)
    assert done == [1]
    scene.answer(listens=False)  # it died between the two
    assert done == [1, 2]
    assert scene.missing.is_missing(2)


def test_nobody_waits_long_for_a_look(scene: Scene) -> None:
    done: list[float] = []
    scene.missing.look([2], lambda: done.append(scene.loop.now), since=scene.loop.now)
    scene.loop.pass_time(LOOK_WITHIN_S)
    assert len(done) == 1
    scene.answer(listens=None)
    assert len(done) == 1
    assert not scene.missing.is_missing(2)


def test_a_crowd_costs_no_more_than_so_many_looks(scene: Scene) -> None:
    looks = answers = 0

    def answered() -> None:
        nonlocal answers
        answers += 1

    for _ in range(1000):
        scene.missing.look([2], answered, since=scene.loop.now + 1)
        if scene.asked:
            looks += 1
            scene.answer(listens=True)
        scene.loop.pass_time(0.001)
    assert answers == 1000
    assert LOOKS_PER_S <= looks <= LOOKS_PER_S + LOOKS_AT_ONCE


def test_a_world_without_ports_cannot_tell() -> None:
    answers: list[bool | None] = []
    cannot_tell(1, answers.append)
    assert answers == [None]


def test_where_ports_are_not_to_be_asked_nobody_waits() -> None:
    loop, done = ManualLoop(), list[str]()
    missing = MissingNodes(cannot_tell, clock=loop, scheduler=loop, gone=lambda _: None)
    missing.look([2, 3], lambda: done.append("told"), since=loop.now)
    assert done == ["told"]
