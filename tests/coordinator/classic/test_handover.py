"""A group that changes its protocol: what the move may take from classic groups, and what it may give them."""

from __future__ import annotations

import pytest

from tests.coordinator.classic.world import GROUP, SESSION_MS, Consumer, World, assigned, stable
from tidelog.coordinator.group.classic.group import ClassicMember, SupportedProtocol
from tidelog.coordinator.outcome import Outcome
from tidelog.wire.error_codes import ErrorCode as E


def members(*names: str) -> list[ClassicMember]:
    return [
        ClassicMember(
            member_id=name,
            instance_id=None,
            client_id=f"client of {name}",
            client_host="h",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=30_000,
            protocols=(SupportedProtocol("range", b"1"), SupportedProtocol("roundrobin", b"2")),
            assignment=f"to {name}".encode(),
        )
        for name in names
    ]


def test_a_group_can_be_installed_stable_with_the_assignments_its_members_have() -> None:
    world = World()
    outcome = world.groups.install(GROUP, members("a", "b"), generation=7, reason=None, now=world.now)
    assert world.state() == "Stable"
    world.act(_with_a_way_to_fail(world, outcome))
    value = world.written()
    assert (value.generation, value.protocol_type, value.protocol, value.leader) == (
        7,
        "consumer",
        "range",
        "a",
    )
    assert world.replayed().persistent_state() == world.groups.persistent_state()
    assert world.sync("b", 7).response.assignment == b"to b"
    assert world.heartbeat("a", 7) == E.NONE
    world.pass_time(SESSION_MS)
    assert world.state() == "Empty"  # sessions of installed members end like others


def test_a_group_can_be_installed_in_a_rebalance() -> None:
    world = World()
    outcome = world.groups.install(
        GROUP,
        members("a", "b"),
        generation=7,
        reason="the last member of the new protocol left",
        now=world.now,
    )
    world.act(_with_a_way_to_fail(world, outcome))
    assert world.state() == "PreparingRebalance"
    assert world.events() == ["the last member of the new protocol left"]
    assert (world.group().leader, world.written().leader) == ("a", None)
    world.restart()  # in the middle of it
    assert world.state() == "PreparingRebalance"
    assert world.heartbeat("a", 7) == E.REBALANCE_IN_PROGRESS
    both = {"range": b"1", "roundrobin": b"2"}
    first, second = world.join("a", protocols=both), world.join("b", protocols=both)
    assert first.response.generation_id == second.response.generation_id == 8


def test_an_installed_group_whose_record_is_not_written_can_be_dissolved() -> None:
    world = World()
    world.refuses_writes = E.COORDINATOR_NOT_AVAILABLE
    outcome = world.groups.install(GROUP, members("a"), generation=7, reason="r", now=world.now)
    world.act(_with_a_way_to_fail(world, outcome))
    assert (world.state(), len(world.timers), world.log) == ("Dead", 0, [])


def _with_a_way_to_fail(world: World, outcome: Outcome) -> Outcome:
    outcome.on_failed = lambda error, _now: world.groups.dissolve(GROUP, error)
    return outcome


@pytest.mark.parametrize("phase", ["join", "sync"])
def test_whoever_waits_can_be_released_before_the_group_is_taken_over(phase: str) -> None:
    world = World()
    first, second = stable(world, "a", "b")
    waiting = second.join(protocols={"range": b"changed"})
    if phase == "sync":
        first.join()
        second.learn()
        waiting = second.sync()
    world.act(world.groups.release(GROUP, E.REBALANCE_IN_PROGRESS, world.now))
    assert waiting.error == E.REBALANCE_IN_PROGRESS
    for record in world.groups.tombstone(GROUP):
        world.groups.replay_group(*record)
    assert (world.state(), len(world.timers)) == ("Dead", 0)


def test_a_group_that_was_released_and_not_taken_over_goes_on() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    first.join()
    world.act(world.groups.release(GROUP, E.REBALANCE_IN_PROGRESS, world.now))
    first.join()
    second.join()
    for each in (first, second):
        assert each.learn().generation_id == 2
    assigned(first, second)


def test_a_group_can_be_dissolved_without_a_tombstone() -> None:
    world = World()
    consumers = [Consumer(world, name) for name in "ab"]
    waiting = [each.join() for each in consumers]
    written = list(world.log)
    world.act(world.groups.dissolve(GROUP, E.NOT_COORDINATOR))
    assert [each.error for each in waiting] == [E.NOT_COORDINATOR] * 2
    assert (world.state(), len(world.timers), world.log) == ("Dead", 0, written)
    world.act(world.groups.dissolve(GROUP, E.NOT_COORDINATOR))  # it is gone already


def test_the_members_are_there_to_be_read() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    second.join(protocols={"range": b"changed"})
    group = world.group()
    assert (group.generation, group.protocol_type, group.protocol, group.leader) == (
        1,
        "consumer",
        "range",
        first.member_id,
    )
    member = group.members[second.member_id]
    assert member.protocols == (SupportedProtocol("range", b"changed"),)
    assert (member.assignment, member.join_waiter) == (b"to b", second.asked)
    assert (member.client_id, member.rebalance_timeout_ms) == ("b", 60_000)
