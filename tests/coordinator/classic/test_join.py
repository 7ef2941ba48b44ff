"""JoinGroup: who is let in, what new members are told, and how long the first ones are waited for."""

from __future__ import annotations

import re

import pytest

from tests.coordinator.classic.world import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    World,
    assigned,
    joined,
    stable,
)
from tidelog.coordinator.group.classic.rebalance import GATHER_TIMES_MAX
from tidelog.coordinator.group.classic.sessions import NEW_MEMBER_JOIN_TIMEOUT_MS
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.wire.error_codes import ErrorCode as E

UUID = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


# ---- refusals


def test_a_group_needs_an_id() -> None:
    assert World().join(group="").error == E.INVALID_GROUP_ID


@pytest.mark.parametrize(("session_ms", "refused"), [(5_999, True), (6_000, False), (1_800_001, True)])
def test_session_timeouts_have_bounds(session_ms: int, refused: bool) -> None:
    error = World().join(session_ms=session_ms).error
    assert error == (E.INVALID_SESSION_TIMEOUT if refused else E.MEMBER_ID_REQUIRED)


def test_a_refused_join_makes_no_group() -> None:
    world = World()
    assert world.join(protocols={}).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(protocol_type="").error == E.INCONSISTENT_GROUP_PROTOCOL
    assert world.join("somebody").error == E.UNKNOWN_MEMBER_ID
    assert (world.state(), world.log) == ("Dead", [])


def test_a_member_id_that_nobody_gave_out_is_unknown_and_comes_back_with_the_error() -> None:
    world = World()
    stable(world, "a")
    asked = world.join("somebody")
    assert (asked.error, asked.response.member_id) == (E.UNKNOWN_MEMBER_ID, "somebody")


def test_an_instance_id_does_not_make_a_given_out_member_id_a_member() -> None:
    world = World()
    member_id = world.join().response.member_id
    assert world.join(member_id, instance="i").error == E.UNKNOWN_MEMBER_ID


# ---- member ids


@pytest.mark.parametrize("version", range(4, 10))
def test_a_dynamic_member_is_given_an_id_first(version: int) -> None:
    asked = World().join(version=version, client="app")
    assert asked.error == E.MEMBER_ID_REQUIRED
    assert asked.response.generation_id == -1
    assert re.fullmatch(f"app-{UUID}", asked.response.member_id)


@pytest.mark.parametrize("version", range(4))
def test_old_clients_are_let_in_at_once(version: int) -> None:
    world = World()
    asked = world.join(version=version, client="app")
    assert asked.waits
    world.pass_time(DELAY_MS)
    assert re.fullmatch(f"app-{UUID}", asked.response.member_id)


def test_a_static_member_is_let_in_at_once_and_named_after_its_instance() -> None:
    world = World()
    asked = world.join(instance="i-1", client="app")
    assert asked.waits
    world.pass_time(DELAY_MS)
    assert re.fullmatch(f"i-1-{UUID}", asked.response.member_id)


def test_a_member_id_that_is_not_used_within_the_session_timeout_is_forgotten() -> None:
    world = World()
    used = world.join().response.member_id
    unused = world.join().response.member_id
    world.pass_time(SESSION_MS - 1)
    assert world.join(used).waits
    world.pass_time(1)
    assert world.join(unused).error == E.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_a_member_id_that_was_given_out() -> None:
    world = World()
    (first,) = stable(world, "a")
    member_id = world.join().response.member_id
    assert world.state() == "Stable"  # nobody has joined yet
    assert first.join().waits  # the leader asks for a rebalance
    late = world.join(member_id)
    assert (late.error, first.learn().generation_id) == (E.NONE, 2)


def test_a_rebalance_goes_on_when_a_given_out_member_id_expires() -> None:
    world = World()
    (first,) = stable(world, "a")
    world.join()
    first.join()
    world.pass_time(SESSION_MS)
    assert first.learn().generation_id == 2


# ---- the first members of a group


def test_a_new_group_waits_a_little_for_more_members() -> None:
    world = World()
    first = Consumer(world, "a")
    first.join()
    world.pass_time(DELAY_MS - 1)
    assert first.join().waits
    world.pass_time(1)
    assert first.learn().generation_id == 1


def test_each_new_member_makes_it_wait_once_more() -> None:
    world = World()
    first, second = Consumer(world, "a"), Consumer(world, "b")
    asked = first.join()
    world.pass_time(DELAY_MS - 1)
    second.join()
    world.pass_time(DELAY_MS)
    assert asked.waits
    world.pass_time(1)
    assert first.learn().generation_id == second.learn().generation_id == 1


def test_but_not_for_longer_than_the_rebalance_timeout() -> None:
    world = World()
    first = world.join(version=3, rebalance_ms=2 * DELAY_MS + 500)
    for _ in range(4):
        world.pass_time(DELAY_MS // 2)
        world.join(version=3, rebalance_ms=2 * DELAY_MS + 500)
    world.pass_time(499)
    assert first.waits
    world.pass_time(1)
    assert first.error == E.NONE


def test_without_a_delay_the_first_member_has_its_generation_at_once() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    asked = world.join(version=0)
    world.pass_time(0)
    assert asked.response.generation_id == 1


GATHER_MS = 50


def gathering_group() -> tuple[World, Consumer]:
    """One member, and a group that waits for crowds."""
    world = World(GroupSettings(initial_rebalance_delay_ms=0, join_gather_ms=GATHER_MS))
    (first,) = stable(world, "first")
    world.pass_time(GATHER_MS)
    return world, first


def test_a_group_that_begins_without_a_delay_waits_for_a_crowd() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, join_gather_ms=GATHER_MS))
    first = world.join(version=3)
    world.pass_time(GATHER_MS - 1)
    second = world.join(version=3)
    world.pass_time(GATHER_MS - 1)
    assert first.waits and second.waits
    world.pass_time(1)
    assert first.response.generation_id == second.response.generation_id == 1


def test_a_group_that_begins_with_a_delay_has_waited_enough() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=DELAY_MS, join_gather_ms=GATHER_MS))
    first = world.join(version=3)
    world.pass_time(DELAY_MS)
    assert first.response.generation_id == 1


def test_those_who_come_together_get_one_generation() -> None:
    world, first = gathering_group()
    crowd = [Consumer(world, f"member {number}") for number in range(4)]
    for each in crowd:
        each.join()
        if not first.asked or not first.asked.waits:
            first.join()
        world.pass_time(GATHER_MS - 1)
    assert all(each.asked is not None and each.asked.waits for each in [first, *crowd])
    world.pass_time(1)
    assert {each.learn().generation_id for each in [first, *crowd]} == {2}
    assert len(world.timers) == 1 + len(crowd) + 1  # sessions, and the time to ask for an assignment


def test_a_crowd_that_does_not_end_is_not_waited_for() -> None:
    world, first = gathering_group()
    Consumer(world, "newcomer").join()
    again = first.join()
    for number in range(GATHER_TIMES_MAX * 2):
        assert again.waits
        world.pass_time(GATHER_MS // 2)
        if again.waits:
            Consumer(world, f"another {number}").join()
    assert not again.waits


def test_who_comes_back_is_not_a_newcomer() -> None:
    world, first = gathering_group()
    world.pass_time(GATHER_MS)
    assert not first.join().waits


def test_a_crowd_that_turns_back_leaves_an_empty_group() -> None:
    world, first = gathering_group()
    newcomer = Consumer(world, "newcomer")
    newcomer.join()
    assert newcomer.leave() == E.NONE
    assert first.leave() == E.NONE
    assert world.state() == "Empty"
    assert len(world.timers) == 0


def test_the_first_who_joined_leads_and_only_it_is_told_who_the_members_are() -> None:
    world = World()
    consumers = [Consumer(world, name) for name in "abc"]
    joined(world, *consumers)
    answers = [each.learn() for each in consumers]
    assert {each.leader for each in answers} == {consumers[0].member_id}
    assert [len(each.members) for each in answers] == [3, 0, 0]
    assert [each.member_id for each in answers[0].members] == [each.member_id for each in consumers]
    assert {each.protocol_type for each in answers} == {"consumer"}


def test_a_group_that_became_empty_waits_for_first_members_again() -> None:
    world = World()
    (first,) = stable(world, "a")
    first.leave()
    again = Consumer(world, "b")
    asked = again.join()
    world.pass_time(DELAY_MS - 1)
    assert asked.waits
    world.pass_time(1)
    assert again.learn().generation_id == 3  # 2 was the generation without members


# ---- how long joins are held


def test_members_that_do_not_join_again_in_time_are_removed() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    assert first.join().waits
    for _ in range(REBALANCE_MS // 5_000):
        assert second.heartbeat() == E.REBALANCE_IN_PROGRESS
        world.pass_time(5_000)
    assert first.learn().generation_id == 2
    assert [each.member_id for each in first.learn().members] == [first.member_id]
    assert second.heartbeat() == E.UNKNOWN_MEMBER_ID


def test_a_group_waits_as_long_as_its_most_patient_member_allows() -> None:
    world = World()
    patient = Consumer(world, "a", rebalance_ms=90_000, session_ms=200_000)
    hasty = Consumer(world, "b", rebalance_ms=20_000, session_ms=200_000)
    joined(world, patient, hasty)
    assigned(patient, hasty)
    asked = patient.join()
    world.pass_time(89_999)
    assert asked.waits
    world.pass_time(1)
    assert asked.error == E.NONE


def test_version_0_has_no_rebalance_timeout_so_the_session_timeout_is_taken() -> None:
    world = World()
    joins = [world.join(version=0, session_ms=20_000) for _ in range(2)]
    world.pass_time(3 * DELAY_MS)
    assert {each.rebalance_timeout_ms for each in world.group().members.values()} == {20_000}
    leader, follower = (each.response.member_id for each in joins)
    held = world.join(leader, version=0, session_ms=20_000, protocols={"range": b"new"})
    world.heartbeat(follower, 1)
    world.pass_time(19_999)
    assert held.waits
    world.pass_time(1)
    assert held.response.generation_id == 2


def test_a_new_member_is_not_held_for_more_than_five_minutes() -> None:
    """It cannot send heartbeats, and whoever gave up and asked again has left a member behind that nobody needs."""
    world = World()
    (first,) = stable(world, "a", rebalance_ms=900_000, session_ms=900_000)
    newcomer = Consumer(world, "b", session_ms=900_000)
    asked = newcomer.join()
    world.pass_time(NEW_MEMBER_JOIN_TIMEOUT_MS - 1)
    assert asked.waits
    world.pass_time(1)
    assert (asked.error, asked.response.member_id) == (E.UNKNOWN_MEMBER_ID, "")
    assert first.join().error == E.NONE


def test_an_existing_member_is_held_for_as_long_as_it_takes() -> None:
    world = World()
    first, _second = stable(world, "a", "b", rebalance_ms=900_000, session_ms=900_000)
    asked = first.join(session_ms=6_000)
    world.pass_time(899_999)
    assert asked.waits
    world.pass_time(1)
    assert asked.error == E.NONE


def test_a_join_that_is_sent_twice_is_held_once_and_the_older_one_is_not_left_without_an_answer() -> None:
    world = World()
    first, _ = stable(world, "a", "b")
    older = first.join()
    newer = first.join()
    assert (older.error, older.response.member_id) == (E.REBALANCE_IN_PROGRESS, first.member_id)
    assert newer.waits
    assert world.group().waiting_joins == 1


# ---- size


def test_a_full_group_takes_nobody_new() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=DELAY_MS, max_size=2))
    first, second = stable(world, "a", "b")
    asked = world.join()
    assert (asked.error, asked.response.member_id) == (E.GROUP_MAX_SIZE_REACHED, "")
    assert world.state() == "Stable"
    assert second.join().error == E.NONE  # a member is always welcome
    assert first.leave() == E.NONE
    assert world.join().error == E.MEMBER_ID_REQUIRED


def test_a_group_that_is_too_large_keeps_those_who_join_again_first() -> None:
    world = World()
    first, second, third = stable(world, "a", "b", "c")
    world.settings = GroupSettings(initial_rebalance_delay_ms=DELAY_MS, max_size=2)
    world.restart()
    assert world.state() == "PreparingRebalance"
    assert third.join().waits
    assert first.join().waits
    refused = second.join()
    assert (refused.error, refused.response.member_id) == (E.GROUP_MAX_SIZE_REACHED, "")
    assert third.learn().generation_id == first.learn().generation_id == 2  # nobody else is waited for
    assert second.heartbeat() == E.UNKNOWN_MEMBER_ID


def test_in_a_full_rebalance_a_given_out_member_id_is_turned_away_and_forgotten() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=DELAY_MS, max_size=1))
    early = [world.join().response.member_id for _ in range(2)]
    asked = world.join(early[0])
    assert world.join(early[1]).error == E.GROUP_MAX_SIZE_REACHED
    world.pass_time(DELAY_MS)
    assert asked.error == E.NONE
    assert not world.group().pending_joins
