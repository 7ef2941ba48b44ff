"""Static members: a process that is restarted within its session takes its old place, and the others do not notice (KIP-345)."""

from __future__ import annotations

import pytest

from tests.coordinator.classic.world import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    World,
    assigned,
    joined,
    static,
    subscription,
)
from tidelog.coordinator.group.history import Event
from tidelog.wire.error_codes import ErrorCode as E


def restarted(consumer: Consumer, **options: object) -> Consumer:
    """The same instance id, in a process that knows nothing."""
    return Consumer(
        consumer.world, consumer.name, instance=consumer.instance, **{**consumer.options, **options}
    )


def test_a_stable_group_keeps_its_generation_when_a_member_is_restarted() -> None:
    world = World()
    leader, follower = static(world, "i-1", "i-2")
    again = restarted(follower, host="10.0.0.9")
    again.join()
    assert world.state() == "Stable"
    answer = again.learn()
    assert (answer.generation_id, answer.leader) == (1, leader.member_id)
    assert (answer.members, answer.skip_assignment) == ([], False)
    assert again.member_id not in ("", follower.member_id)
    assert again.sync().response.assignment == b"to i-2"
    assert [leader.heartbeat(), again.heartbeat()] == [E.NONE, E.NONE]


def test_its_new_member_id_is_written_and_survives_a_restart_of_the_coordinator() -> None:
    world = World()
    leader, follower = static(world, "i-1", "i-2")
    again = restarted(follower)
    again.join()
    again.learn()
    assert {each.member_id for each in world.written().members} == {leader.member_id, again.member_id}
    world.restart()
    assert again.heartbeat() == E.NONE
    assert again.sync().response.assignment == b"to i-2"
    assert follower.heartbeat() == E.FENCED_INSTANCE_ID


def test_the_process_before_is_fenced_from_everything() -> None:
    world = World()
    _leader, follower = static(world, "i-1", "i-2")
    restarted(follower).join()
    assert follower.heartbeat() == E.FENCED_INSTANCE_ID
    assert follower.sync().error == E.FENCED_INSTANCE_ID
    asked = follower.join()
    assert (asked.error, asked.response.member_id) == (E.FENCED_INSTANCE_ID, follower.member_id)
    assert follower.leave() == E.FENCED_INSTANCE_ID
    assert world.heartbeat(follower.member_id, 1) == E.UNKNOWN_MEMBER_ID  # without its instance id
    assert len(world.events(Event.FENCED)) == 1


def test_an_instance_id_that_nobody_has_is_unknown() -> None:
    world = World()
    first, _ = static(world, "i-1", "i-2")
    assert world.heartbeat(first.member_id, 1, instance="i-3") == E.UNKNOWN_MEMBER_ID


def test_if_the_new_member_id_cannot_be_written_the_old_one_stays() -> None:
    world = World()
    leader, follower = static(world, "i-1", "i-2")
    before = world.groups.persistent_state()
    world.refuses_writes = E.COORDINATOR_NOT_AVAILABLE
    other = {"range": subscription("other"), "roundrobin": b""}
    asked = restarted(follower, session_ms=30_000).join(protocols=other)
    assert (asked.error, asked.response.member_id) == (E.COORDINATOR_NOT_AVAILABLE, "")
    assert world.groups.persistent_state() == before
    assert world.group().members[follower.member_id].session_timeout_ms == SESSION_MS
    assert world.group().common_protocols == ["range"]
    assert [leader.heartbeat(), follower.heartbeat()] == [E.NONE, E.NONE]
    assert follower.sync().response.assignment == b"to i-2"
    assert world.group().instances == {"i-1": leader.member_id, "i-2": follower.member_id}


def test_a_restarted_leader_that_understands_it_is_told_to_skip_the_assignment() -> None:
    world = World()
    leader, follower = static(world, "i-1", "i-2")
    again = restarted(leader)
    again.join()
    answer = again.learn()
    assert answer.skip_assignment
    assert answer.leader == again.member_id
    assert {each.member_id for each in answer.members} == {again.member_id, follower.member_id}
    assert again.sync().response.assignment == b"to i-1"
    assert world.state() == "Stable"


@pytest.mark.parametrize("version", [5, 6, 7, 8])
def test_a_restarted_leader_that_does_not_understand_it_is_told_that_another_one_leads(version: int) -> None:
    world = World()
    leader, _ = static(world, "i-1", "i-2", version=version)
    again = restarted(leader)
    again.join()
    answer = again.learn()
    assert not answer.skip_assignment
    assert answer.leader == leader.member_id  # which is nobody now, so it will not assign
    assert answer.members == []
    assert world.group().leader == again.member_id


def test_when_the_chosen_protocol_changes_with_the_restart_the_group_rebalances() -> None:
    world = World()
    both = {"range": b"", "roundrobin": b""}
    leader, follower = static(world, "i-1", "i-2", protocols=both)
    again = restarted(follower)
    assert again.join(protocols={"roundrobin": b""}).waits
    assert world.state() == "PreparingRebalance"
    leader.join()
    assert leader.learn().protocol_name == again.learn().protocol_name == "roundrobin"


def test_a_restart_while_the_group_prepares_takes_the_place_in_the_queue() -> None:
    world = World()
    leader, follower = static(world, "i-1", "i-2")
    held = leader.join()
    again = restarted(leader)
    assert again.join().waits
    assert (held.error, held.response.member_id) == (E.FENCED_INSTANCE_ID, leader.member_id)
    follower.join()
    assert again.learn().leader == follower.learn().leader == again.member_id
    assert len(again.learn().members) == 2


def test_a_restart_between_join_and_sync_makes_the_group_prepare_anew() -> None:
    """The leader may have been told the old member id, and would assign to that."""
    world = World()
    leader, follower = Consumer(world, "i-1", instance="i-1"), Consumer(world, "i-2", instance="i-2")
    joined(world, leader, follower)
    waiting = follower.sync()
    again = restarted(follower)
    assert again.join().waits
    assert waiting.error == E.FENCED_INSTANCE_ID
    assert world.state() == "PreparingRebalance"
    leader.join()
    assigned(leader, _learned(again, leader))
    assert again.sync().response.assignment == b"to i-2"


def _learned(*consumers: Consumer) -> Consumer:
    for each in consumers:
        each.learn()
    return consumers[0]


def test_a_restart_before_the_first_generation_is_not_two_members() -> None:
    world = World()
    first = Consumer(world, "i-1", instance="i-1")
    held = first.join()
    again = restarted(first)
    again.join()
    assert held.error == E.FENCED_INSTANCE_ID
    world.pass_time(DELAY_MS)
    assert [each.member_id for each in again.learn().members] == [again.member_id]


def test_a_static_member_that_misses_a_rebalance_keeps_its_place_while_its_session_lasts() -> None:
    world = World()
    leader, away = static(world, "i-1", "i-2", session_ms=3 * REBALANCE_MS)
    leader.join()
    world.pass_time(REBALANCE_MS)
    answer = leader.learn()
    assert [each.member_id for each in answer.members] == [leader.member_id, away.member_id]
    leader.sync({away.member_id: b"kept for it"})
    again = restarted(away)
    again.join()
    again.learn()
    assert again.sync().response.assignment == b"kept for it"


def test_when_only_static_members_are_left_and_none_comes_they_are_waited_for() -> None:
    world = World()
    first, second = static(world, "i-1", "i-2", session_ms=4 * REBALANCE_MS)
    dynamic = Consumer(world, "c")
    dynamic.join()
    dynamic.leave()
    world.pass_time(2 * REBALANCE_MS + 1)
    assert world.state() == "PreparingRebalance"
    assert set(world.group().members) == {first.member_id, second.member_id}
    first.join()
    second.join()
    assert first.learn().generation_id == second.learn().generation_id == 2


def test_a_static_member_whose_session_ends_goes_like_any_other() -> None:
    world = World()
    static(world, "i-1")
    world.pass_time(SESSION_MS)
    assert world.state() == "Empty"
    assert world.group().instances == {}


def test_a_bounce_before_the_sync_of_a_stable_group_is_waited_for_under_its_new_id() -> None:
    world = World()
    leader, late = Consumer(world, "i-1", instance="i-1"), Consumer(world, "i-2", instance="i-2")
    joined(world, leader, late)
    leader.sync({late.member_id: b"2"})
    again = restarted(late)
    again.join()
    again.learn()
    assert again.sync().response.assignment == b"2"
    for _ in range(REBALANCE_MS // 5_000 + 1):
        world.pass_time(5_000)
        assert [leader.heartbeat(), again.heartbeat()] == [E.NONE, E.NONE]
