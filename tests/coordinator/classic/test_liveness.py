"""Heartbeats, leaving and silence, at every step of a rebalance."""

from __future__ import annotations

import pytest

from tests.coordinator.classic.world import (
    DELAY_MS,
    SESSION_MS,
    Consumer,
    World,
    assigned,
    joined,
    stable,
    static,
)
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.leave_group import MemberIdentity

# ---- heartbeats


def test_refused_heartbeats() -> None:
    world = World()
    assert world.heartbeat("m", 1) == E.UNKNOWN_MEMBER_ID  # no such group
    assert world.heartbeat("m", 1, group="") == E.INVALID_GROUP_ID
    (first,) = stable(world, "a")
    assert world.heartbeat("m", 1) == E.UNKNOWN_MEMBER_ID
    assert world.heartbeat(first.member_id, 2) == E.ILLEGAL_GENERATION
    assert world.heartbeat(first.member_id, 0) == E.ILLEGAL_GENERATION
    first.leave()
    assert first.heartbeat() == E.UNKNOWN_MEMBER_ID


def test_a_heartbeat_is_answered_by_the_state_of_the_group() -> None:
    world = World()
    first, second = Consumer(world, "a"), Consumer(world, "b")
    joined(world, first, second)
    assert first.heartbeat() == E.NONE  # between join and sync
    assigned(first, second)
    assert first.heartbeat() == E.NONE
    first.join()
    assert second.heartbeat() == E.REBALANCE_IN_PROGRESS


def test_heartbeats_keep_a_member_and_silence_loses_it() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    for _ in range(3):
        world.pass_time(SESSION_MS - 1)
        assert first.heartbeat() in (E.NONE, E.REBALANCE_IN_PROGRESS)
    assert second.heartbeat() == E.UNKNOWN_MEMBER_ID
    assert world.state() == "PreparingRebalance"


def test_a_session_ends_exactly_when_it_was_promised_to() -> None:
    world = World()
    (first,) = stable(world, "a")
    world.pass_time(SESSION_MS - 1)
    assert world.state() == "Stable"
    world.pass_time(1)
    assert world.state() == "Empty"
    assert first.heartbeat() == E.UNKNOWN_MEMBER_ID


# ---- silence at every step


def test_who_waits_in_a_join_does_not_time_out() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    asked = first.join()
    for _ in range(5):
        world.pass_time(SESSION_MS - 1)
        second.heartbeat()
    assert asked.waits
    second.join()
    assert first.learn().generation_id == 2
    world.pass_time(SESSION_MS - 1)
    assert first.heartbeat() == E.NONE  # its session began anew with the answer


def test_who_waits_in_a_sync_does_not_time_out() -> None:
    world = World()
    first, second = Consumer(world, "a"), Consumer(world, "b")
    joined(world, first, second)
    waiting = second.sync()
    for _ in range(3):
        world.pass_time(SESSION_MS - 1)
        first.heartbeat()
    assert waiting.waits
    first.sync()
    assert waiting.error == E.NONE
    world.pass_time(SESSION_MS - 1)
    assert second.heartbeat() == E.NONE


def test_a_member_that_dies_while_others_wait_for_it_to_join_frees_them() -> None:
    world = World()
    first, _second = stable(world, "a", "b")
    asked = first.join()
    world.pass_time(SESSION_MS)
    assert asked.error == E.NONE
    assert len(asked.response.members) == 1


def test_a_leader_that_dies_between_join_and_sync_frees_those_who_wait_for_it() -> None:
    world = World()
    leader, second = Consumer(world, "a"), Consumer(world, "b")
    joined(world, leader, second)
    waiting = second.sync()
    world.pass_time(SESSION_MS)
    assert leader.heartbeat() == E.UNKNOWN_MEMBER_ID
    assert waiting.error == E.REBALANCE_IN_PROGRESS
    second.join()
    assert second.learn().leader == second.member_id


def test_a_follower_that_dies_between_join_and_sync_makes_the_group_rebalance() -> None:
    world = World()
    leader, second = Consumer(world, "a"), Consumer(world, "b")
    joined(world, leader, second)
    assert leader.sync({leader.member_id: b"1"}).error == E.NONE
    assert second.generation == 1
    world.pass_time(SESSION_MS - 1)
    assert leader.heartbeat() == E.NONE
    world.pass_time(1)
    assert leader.heartbeat() == E.REBALANCE_IN_PROGRESS


def test_a_stable_group_whose_members_all_die_is_empty_in_the_end() -> None:
    world = World()
    stable(world, "a", "b", "c")
    world.pass_time(SESSION_MS)
    assert world.state() == "Empty"
    value = world.written()
    assert (value.generation, value.members, value.protocol, value.leader) == (2, [], None, None)


def test_all_members_die_in_the_first_delay() -> None:
    world = World()
    first = Consumer(world, "a")
    asked = first.join()
    assert first.leave() == E.NONE
    assert asked.error == E.UNKNOWN_MEMBER_ID
    world.pass_time(DELAY_MS)
    assert world.state() == "Empty"


# ---- leaving


def test_the_last_member_leaves_an_empty_group_of_the_next_generation() -> None:
    world = World()
    (first,) = stable(world, "a")
    assert first.leave() == E.NONE
    value = world.written()
    assert (value.generation, value.members, value.protocol_type) == (2, [], "consumer")
    assert (value.protocol, value.leader) == (None, None)
    assert value.current_state_timestamp == world.now.wall_ms
    assert (world.group().generation, len(world.timers)) == (2, 0)


def test_a_group_without_its_last_member_is_empty_even_if_that_cannot_be_written() -> None:
    world = World()
    (first,) = stable(world, "a")
    written = list(world.log)
    world.refuses_writes = E.COORDINATOR_NOT_AVAILABLE
    assert first.leave() == E.NONE
    assert (world.state(), world.log) == ("Empty", written)
    world.refuses_writes = None
    world.restart()  # the generation before comes back, and times out once more
    assert world.state() == "Stable"
    world.pass_time(SESSION_MS)
    assert world.state() == "Empty"


def test_the_others_of_who_leaves_rebalance() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    second.leave()
    assert first.heartbeat() == E.REBALANCE_IN_PROGRESS
    first.join()
    assert len(first.learn().members) == 1


def test_who_leaves_while_it_waits_in_a_join_is_answered_and_no_longer_waited_for() -> None:
    world = World()
    first, second, third = stable(world, "a", "b", "c")
    asked = first.join()
    second.join()
    assert first.leave() == E.NONE
    assert (asked.error, asked.response.member_id) == (E.UNKNOWN_MEMBER_ID, "")
    assert third.leave() == E.NONE
    assert second.learn().leader == second.member_id


def test_many_leave_at_once_each_with_its_own_answer_and_one_rebalance() -> None:
    world = World()
    first, second, third, stays = stable(world, "a", "b", "c", "d")
    asked = world.leave(
        MemberIdentity(first.member_id),
        MemberIdentity("stranger"),
        MemberIdentity(second.member_id, "not its instance"),
        MemberIdentity(third.member_id),
        MemberIdentity(""),
    )
    assert asked.error == E.NONE
    assert [E(each.error_code) for each in asked.response.members] == [
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
        E.UNKNOWN_MEMBER_ID,
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
    ]
    assert asked.response.members[1].member_id == "stranger"
    assert set(world.group().members) == {second.member_id, stays.member_id}
    assert len([each for each in world.events() if "left" in each]) == 1


def test_nobody_leaves_and_nothing_happens() -> None:
    world = World()
    stable(world, "a")
    world.leave(MemberIdentity("stranger"))
    assert world.state() == "Stable"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_clients_leave_alone(version: int) -> None:
    world = World()
    assert world.leave_alone("m", version=version) == E.UNKNOWN_MEMBER_ID  # no such group
    assert world.leave_alone("m", group="", version=version) == E.INVALID_GROUP_ID
    (first,) = stable(world, "a")
    assert world.leave_alone("m", version=version) == E.UNKNOWN_MEMBER_ID
    assert world.leave_alone(first.member_id, version=version) == E.NONE
    assert world.state() == "Empty"


def test_of_a_group_that_does_not_exist_every_member_is_unknown() -> None:
    asked = World().leave(MemberIdentity("m", "i"))
    assert asked.error == E.NONE
    (told,) = asked.response.members
    assert (told.member_id, told.group_instance_id, told.error_code) == ("m", "i", E.UNKNOWN_MEMBER_ID)


def test_a_member_id_that_was_given_out_can_be_given_back() -> None:
    world = World()
    (first,) = stable(world, "a")
    member_id = world.join().response.member_id
    first.join()
    asked = world.leave(MemberIdentity(member_id))
    assert asked.response.members[0].error_code == E.NONE
    assert first.learn().generation_id == 2  # nobody else is waited for
    assert world.join(member_id).error == E.UNKNOWN_MEMBER_ID


def test_a_stable_group_does_not_rebalance_for_a_member_id_that_is_given_back() -> None:
    world = World()
    stable(world, "a")
    world.leave(MemberIdentity(world.join().response.member_id))
    assert world.state() == "Stable"


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    world = World()
    first, second = static(world, "i-1", "i-2")
    asked = world.leave(MemberIdentity("", "i-2"), MemberIdentity("", "i-3"), MemberIdentity("other", "i-1"))
    assert [E(each.error_code) for each in asked.response.members] == [
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
        E.FENCED_INSTANCE_ID,
    ]
    assert first.heartbeat() == E.REBALANCE_IN_PROGRESS
    assert second.heartbeat() == E.UNKNOWN_MEMBER_ID
