"""SyncGroup: the leader's assignment reaches everybody, once it is in the log, or nobody."""

from __future__ import annotations

import pytest

from tests.coordinator.classic.world import (
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    World,
    assigned,
    joined,
    stable,
    subscription,
)
from tidelog.coordinator.group.history import Event
from tidelog.wire.error_codes import ErrorCode as E


def three(world: World) -> tuple[Consumer, Consumer, Consumer]:
    first, second, third = (Consumer(world, name) for name in "abc")
    joined(world, first, second, third)
    return first, second, third


def test_followers_may_ask_before_the_leader_and_wait_for_it() -> None:
    world = World()
    leader, second, third = three(world)
    early = second.sync()
    assert early.waits
    answered = leader.sync({leader.member_id: b"1", second.member_id: b"2", third.member_id: b"3"})
    assert (answered.response.assignment, early.response.assignment) == (b"1", b"2")
    assert third.sync().response.assignment == b"3"
    assert (early.response.protocol_type, early.response.protocol_name) == ("consumer", "range")


def test_the_assignment_is_written_with_all_that_a_restart_needs() -> None:
    world = World()
    leader, second, _ = three(world)
    leader.sync({leader.member_id: b"1"})
    value = world.written()
    assert (value.generation, value.protocol_type, value.protocol) == (1, "consumer", "range")
    assert (value.leader, value.current_state_timestamp) == (leader.member_id, world.now.wall_ms)
    stored = value.members[0]
    assert stored.member_id == leader.member_id
    assert (stored.client_id, stored.client_host) == ("a", "10.0.0.1")
    assert (stored.session_timeout, stored.rebalance_timeout) == (SESSION_MS, REBALANCE_MS)
    assert (stored.subscription, stored.assignment) == (subscription("t"), b"1")
    assert value.members[1].member_id == second.member_id
    assert value.members[1].assignment == b""


def test_a_member_that_the_leader_forgot_gets_no_bytes_and_no_error() -> None:
    world = World()
    leader, second, _ = three(world)
    leader.sync({leader.member_id: b"1", "a stranger": b"2"})
    asked = second.sync()
    assert (asked.error, asked.response.assignment) == (E.NONE, b"")


def test_nobody_hears_of_an_assignment_before_it_is_committed() -> None:
    world = World()
    leader, second, third = three(world)
    world.holds_commits = True
    before = second.sync()
    by_leader = leader.sync({leader.member_id: b"1", second.member_id: b"2", third.member_id: b"3"})
    after = third.sync()
    assert before.waits
    assert by_leader.waits
    assert after.waits
    world.commit()
    assert [each.response.assignment for each in (by_leader, before, after)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("failed", [E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR, E.UNKNOWN_SERVER_ERROR])
def test_an_assignment_that_cannot_be_written_is_nobodys_and_the_group_rebalances(failed: E) -> None:
    world = World()
    leader, second, third = three(world)
    early = second.sync()
    written = list(world.log)
    world.refuses_writes = failed
    assert leader.sync({leader.member_id: b"1"}).error == failed
    assert early.error == failed
    assert early.response.assignment == b""
    assert world.log == written
    assert world.state() == "PreparingRebalance"
    assert {each.assignment for each in world.group().members.values()} == {b""}
    assert any(failed.name in each for each in world.events(Event.REBALANCE_BEGAN))
    world.refuses_writes = None
    for each in (leader, second, third):
        each.join()
    assert [each.learn().generation_id for each in (leader, second, third)] == [2, 2, 2]
    assigned(leader, second, third)


def test_in_a_stable_group_the_assignment_can_be_asked_for_again() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    assert second.sync().response.assignment == b"to b"
    assert first.sync({first.member_id: b"another"}).response.assignment == b"to a"


def test_while_the_group_prepares_members_are_told_to_join() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    first.join()
    assert second.sync().error == E.REBALANCE_IN_PROGRESS


def test_refusals() -> None:
    world = World()
    assert world.sync("m", 1).error == E.UNKNOWN_MEMBER_ID  # no such group
    assert world.sync("m", 1, group="").error == E.INVALID_GROUP_ID
    (first,) = stable(world, "a")
    assert world.sync("m", 1).error == E.UNKNOWN_MEMBER_ID
    assert world.sync(first.member_id, 2).error == E.ILLEGAL_GENERATION
    assert first.sync(protocol="roundrobin").error == E.INCONSISTENT_GROUP_PROTOCOL
    assert first.sync(protocol_type="connect").error == E.INCONSISTENT_GROUP_PROTOCOL
    first.leave()
    assert first.sync().error == E.UNKNOWN_MEMBER_ID  # an empty group


def test_from_version_5_on_the_protocol_must_be_named() -> None:
    world = World()
    (first,) = stable(world, "a")
    assert first.sync(protocol=None).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert first.sync(protocol_type=None).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert first.sync(protocol=None, protocol_type=None, version=4).error == E.NONE


@pytest.mark.parametrize("leader_synced", [False, True])
def test_members_that_do_not_ask_for_their_assignment_in_time_are_removed(leader_synced: bool) -> None:
    world = World()
    leader, second, third = three(world)
    waiting = second.sync()
    if leader_synced:
        leader.sync()
    for _ in range(REBALANCE_MS // 5_000):
        for each in (leader, second, third):
            assert each.heartbeat() == E.NONE
        world.pass_time(5_000)
    assert third.heartbeat() == E.UNKNOWN_MEMBER_ID
    assert waiting.error == (E.NONE if leader_synced else E.REBALANCE_IN_PROGRESS)
    assert leader.heartbeat() == (E.REBALANCE_IN_PROGRESS if leader_synced else E.UNKNOWN_MEMBER_ID)
    assert second.heartbeat() == E.REBALANCE_IN_PROGRESS


def test_once_all_have_asked_nobody_is_waited_for() -> None:
    world = World()
    consumers = stable(world, "a", "b")
    for _ in range(2 * REBALANCE_MS // 5_000):
        world.pass_time(5_000)
        assert [each.heartbeat() for each in consumers] == [E.NONE, E.NONE]


def test_a_sync_that_is_sent_twice_is_held_once_and_the_older_one_is_not_left_without_an_answer() -> None:
    world = World()
    _leader, second, _ = three(world)
    older, newer = second.sync(), second.sync()
    assert older.error == E.REBALANCE_IN_PROGRESS
    assert newer.waits


def test_when_a_member_goes_between_join_and_sync_those_who_wait_join_again() -> None:
    world = World()
    leader, second, third = three(world)
    waiting = second.sync()
    assert third.leave() == E.NONE
    assert waiting.error == E.REBALANCE_IN_PROGRESS
    assert leader.sync({leader.member_id: b"1"}).error == E.REBALANCE_IN_PROGRESS


def test_who_leaves_while_it_waits_for_its_assignment_is_answered() -> None:
    world = World()
    _leader, second, _ = three(world)
    waiting = second.sync()
    assert second.leave() == E.NONE
    assert waiting.error == E.UNKNOWN_MEMBER_ID
