"""Sessions: who has been silent for too long, and who only seems to have been."""

from __future__ import annotations

import pytest

from tests.controller.world import World
from tidelog.controller.sessions import SessionTable


@pytest.fixture
def sessions() -> SessionTable:
    return SessionTable(timeout_s=10)


def test_a_session_lasts_from_heartbeat_to_heartbeat(sessions: SessionTable) -> None:
    sessions.touch(1, 5, 100)
    assert sessions.next_deadline() == 110
    sessions.touch(1, 5, 105)
    assert (sessions.expired(114.9), sessions.expired(115)) == ([], [1])
    assert sessions.is_live(1, 5, 114.9)
    assert not sessions.is_live(1, 5, 115)
    assert not sessions.is_live(1, 4, 106)
    assert not sessions.is_live(2, 5, 106)


def test_the_longest_silent_comes_first(sessions: SessionTable) -> None:
    for broker, at in ((1, 3), (2, 1), (3, 2)):
        sessions.touch(broker, 5, at)
    assert sessions.expired(50) == [2, 3, 1]
    sessions.end(2)
    assert sessions.expired(50) == [3, 1]


def test_one_that_is_gone_has_no_session_left_until_it_is_heard(sessions: SessionTable) -> None:
    sessions.touch(1, 5, 100)
    sessions.gone(9, 101)
    assert sessions.expired(101) == []
    sessions.gone(1, 101)
    assert sessions.expired(101) == [1]
    sessions.touch(1, 5, 101)
    assert sessions.expired(110.9) == []
    sessions.gone(1, 115)
    assert sessions.expired(111) == [1]  # never longer than it was


def test_the_node_of_the_controller_before_has_half_a_session(sessions: SessionTable) -> None:
    world = World()
    for broker in (1, 2):
        world.add_broker(broker)
    sessions.adopt(world.image, 100, predecessor=2)
    assert (sessions.expired(104.9), sessions.expired(105)) == ([], [2])
    sessions.touch(2, world.image.brokers[2].epoch, 104)
    assert sessions.expired(109.9) == []


def test_another_run_of_a_broker_has_a_session_of_its_own(sessions: SessionTable) -> None:
    sessions.touch(1, 5, 100).metadata_offset = 77
    assert sessions.touch(1, 6, 101).metadata_offset == -1
    assert not sessions.is_live(1, 5, 101)


def test_time_in_which_the_controller_did_not_run_is_given_back_once(sessions: SessionTable) -> None:
    sessions.touch(1, 5, 100)
    sessions.overslept(70)
    assert (sessions.expired(179.9), sessions.expired(180)) == ([], [1])
    sessions.overslept(70)  # one that is never heard again is gone, however often the controller sleeps
    assert (sessions.expired(179.9), sessions.expired(180)) == ([], [1])
    sessions.touch(1, 5, 175)
    sessions.overslept(70)
    assert sessions.expired(254.9) == []


def test_a_new_controller_gives_everybody_a_whole_session_but_takes_nobody_for_alive() -> None:
    world = World()
    for broker in (1, 2, 3):
        world.add_broker(broker, unfence=broker != 3)
    sessions = SessionTable(timeout_s=10)
    sessions.touch(7, 1, 0)
    sessions.adopt(world.image, 100)
    assert (sessions.expired(109), sorted(sessions.expired(110))) == ([], [1, 2])
    epoch = world.image.brokers[1].epoch
    assert not sessions.is_live(1, epoch, 101)
    sessions.touch(1, epoch, 101)
    assert sessions.is_live(1, epoch, 102)


def test_what_all_of_some_brokers_know(sessions: SessionTable) -> None:
    sessions.touch(1, 5, 0).metadata_offset = 30
    sessions.touch(2, 6, 0).metadata_offset = 20
    assert sessions.lowest_offset([1, 2]) == 20
    assert sessions.lowest_offset([1, 2, 3]) == -1
    assert sessions.lowest_offset([]) is None
