"""The life of a group, and the table of its states."""

from __future__ import annotations

import pytest

from tests.coordinator.classic.world import DELAY_MS, WALL_MS, Consumer, World, assigned, joined, stable
from tidelog.coordinator.group.classic.group import ClassicGroup
from tidelog.coordinator.group.classic.state import FOLLOWED_BY, State
from tidelog.wire.error_codes import ErrorCode as E


def test_a_group_goes_from_empty_over_both_halves_of_a_rebalance_to_stable_and_back() -> None:
    world = World()
    assert world.state() == "Dead"
    first = Consumer(world, "a")
    assert first.join().waits
    assert world.state() == "PreparingRebalance"
    world.pass_time(DELAY_MS)
    assert world.state() == "CompletingRebalance"
    assert first.learn().generation_id == 1
    assert first.sync({first.member_id: b"all"}).response.assignment == b"all"
    assert world.state() == "Stable"
    assert first.heartbeat() == E.NONE
    assert first.leave() == E.NONE
    assert world.state() == "Empty"


def test_each_change_of_state_is_dated_by_the_wall_clock() -> None:
    world = World()
    Consumer(world, "a").join()
    assert world.group().state_since_ms == WALL_MS
    world.pass_time(DELAY_MS)
    assert world.group().state_since_ms == WALL_MS + DELAY_MS


def test_the_second_member_is_taken_in_by_a_rebalance_that_the_first_learns_of_by_its_heartbeat() -> None:
    world = World()
    (first,) = stable(world, "a")
    second = Consumer(world, "b")
    assert second.join().waits
    assert first.heartbeat() == E.REBALANCE_IN_PROGRESS
    assert first.join().error == E.NONE
    assert second.asked is not None
    assert second.asked.error == E.NONE
    assert first.learn().generation_id == second.learn().generation_id == 2
    assert {each.member_id for each in first.learn().members} == {first.member_id, second.member_id}
    assert second.learn().members == []
    assigned(first, second)
    assert world.state() == "Stable"


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("to", list(State))
def test_states_follow_the_table_and_nothing_else(state: State, to: State) -> None:
    group = ClassicGroup("g", state=state, state_since_ms=0)
    if to in FOLLOWED_BY[state]:
        group.enter(to, 1)
        assert (group.state, group.state_since_ms) == (to, 1)
    else:
        with pytest.raises(AssertionError):
            group.enter(to, 1)


def test_groups_do_not_know_of_each_other() -> None:
    world = World()
    one, other = Consumer(world, "a", group="one"), Consumer(world, "a", group="other")
    joined(world, one)
    assert world.state("one") == "CompletingRebalance"
    assert world.state("other") == "Dead"
    other.join()
    assert world.state("one") == "CompletingRebalance"
    assert world.heartbeat(one.member_id, 1, group="other") == E.UNKNOWN_MEMBER_ID
