"""What a restart of the coordinator brings back: the group as it was last written, and nothing of what went on since."""

from __future__ import annotations

import random

import pytest

from tests.coordinator.classic.world import (
    DELAY_MS,
    GROUP,
    SESSION_MS,
    WALL_MS,
    Consumer,
    World,
    assigned,
    joined,
    stable,
)
from tidelog.coordinator.group.classic.groups import ClassicGroups
from tidelog.coordinator.group.history import GroupHistory
from tidelog.coordinator.group.records import GroupMetadataKey, GroupMetadataMember, GroupMetadataValue
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.outcome import CoordinatorRecord
from tidelog.coordinator.timers import Timers
from tidelog.wire.error_codes import ErrorCode as E


def test_a_stable_group_is_stable_again_with_its_assignments() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    world.restart()
    assert world.state() == "Stable"
    assert world.group().leader == first.member_id
    assert [first.heartbeat(), second.heartbeat()] == [E.NONE, E.NONE]
    assert second.sync().response.assignment == b"to b"
    assert second.join().response.generation_id == 1  # nothing has changed


def test_members_of_a_loaded_group_must_show_up() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    world.pass_time(SESSION_MS - 1)
    world.restart()  # which begins every session anew
    world.pass_time(SESSION_MS - 1)
    assert first.heartbeat() == E.NONE
    world.pass_time(1)
    assert second.heartbeat() == E.UNKNOWN_MEMBER_ID
    assert first.heartbeat() == E.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("crash", ["joins", "syncs"])
def test_a_group_in_the_middle_of_a_rebalance_comes_back_at_the_generation_before(crash: str) -> None:
    world = World()
    first, second = stable(world, "a", "b")
    third = Consumer(world, "c")
    third.join()
    if crash == "syncs":
        first.join()
        second.join()
        for each in (first, second, third):
            each.learn()
        assert first.generation == 2
    world.restart()
    assert (world.state(), world.group().generation) == ("Stable", 1)
    assert set(world.group().members) == {first.member_id, second.member_id}
    assert third.join().error == E.UNKNOWN_MEMBER_ID
    if crash == "syncs":
        assert first.heartbeat() == E.ILLEGAL_GENERATION
    third.member_id = ""
    for each in (third, first, second):
        each.join()
    for each in (first, second, third):
        assert each.learn().generation_id == 2
    assigned(first, second, third)


def test_a_new_group_is_written_before_it_has_a_generation_so_that_given_out_ids_find_a_group() -> None:
    world = World()
    world.join()
    assert len(world.log) == 1
    value = world.written()
    assert (value.generation, value.members, value.protocol_type) == (0, [], "")
    world.restart()
    assert world.state() == "Empty"
    assert world.groups.empty_since(GROUP) is None  # it never had members


def test_a_new_group_that_cannot_be_written_is_no_group() -> None:
    world = World()
    world.refuses_writes = E.COORDINATOR_NOT_AVAILABLE
    for version in (9, 3):
        asked = world.join(version=version)
        assert (asked.error, asked.response.member_id) == (E.COORDINATOR_NOT_AVAILABLE, "")
        assert (world.state(), len(world.timers)) == ("Dead", 0)
    world.refuses_writes = None
    joined(world, Consumer(world, "a"))


def test_a_tombstone_removes_a_group_and_its_deadlines() -> None:
    world = World()
    stable(world, "a")[0].leave()
    member_id = world.join().response.member_id
    assert len(world.timers) == 1
    for record in world.groups.tombstone_if_empty(GROUP):
        world.groups.replay_group(*record)
    assert (world.state(), len(world.timers)) == ("Dead", 0)
    assert world.join(member_id).error == E.UNKNOWN_MEMBER_ID


def test_the_last_record_of_a_group_is_the_one_that_counts() -> None:
    records = [
        record(generation=1, members=[GroupMetadataMember(member_id="a", session_timeout=SESSION_MS)]),
        record(generation=2, members=[GroupMetadataMember(member_id="b", session_timeout=SESSION_MS)]),
    ]
    world = World(log=records)
    assert list(world.group().members) == ["b"]
    assert world.group().generation == 2
    assert len(world.timers) == 1
    assert world.heartbeat("b", 2) == E.NONE
    world = World(log=[*records, CoordinatorRecord(GroupMetadataKey(group=GROUP), None)])
    assert world.state() == "Dead"


def test_records_of_old_releases_have_no_rebalance_timeout_and_no_date() -> None:
    old = record(members=[GroupMetadataMember(member_id="a", session_timeout=20_000, rebalance_timeout=-1)])
    world = World(log=[old])
    assert world.group().rebalance_timeout_ms == 20_000
    assert world.group().state_since_ms is None
    world.pass_time(20_000)
    assert world.groups.empty_since(GROUP) == WALL_MS + 20_000


def test_a_leader_that_is_no_member_does_not_stop_a_group_from_loading() -> None:
    member = GroupMetadataMember(member_id="a", session_timeout=SESSION_MS)
    world = World(log=[record(leader="gone", members=[member])])
    assert world.group().leader == "a"


def test_a_group_without_a_leader_rebalances_when_it_is_loaded() -> None:
    """It came from the consumer protocol without those who left, and nobody has divided up what they have read."""
    member = GroupMetadataMember(member_id="a", session_timeout=SESSION_MS)
    world = World(log=[record(leader=None, members=[member])])
    assert world.heartbeat("a", 1) == E.REBALANCE_IN_PROGRESS
    assert world.join("a").response.leader == "a"


def test_a_group_over_its_maximum_size_rebalances_when_it_is_loaded() -> None:
    world = World()
    first, _ = stable(world, "a", "b")
    world.settings = GroupSettings(max_size=1)
    world.restart()
    assert first.heartbeat() == E.REBALANCE_IN_PROGRESS


def test_an_empty_group_is_dated_so_that_its_offsets_can_expire() -> None:
    world = World()
    (first,) = stable(world, "a")
    assert world.groups.empty_since(GROUP) is None
    world.pass_time(1_234)
    first.leave()
    left_at = world.now.wall_ms
    world.pass_time(99)
    assert world.groups.empty_since(GROUP) == left_at
    world.restart()
    assert world.groups.empty_since(GROUP) == left_at


def test_live_equals_replay_at_every_step_of_a_life() -> None:
    world = World()

    def check() -> None:
        assert world.replayed().persistent_state() == world.groups.persistent_state()

    first, second = Consumer(world, "a"), Consumer(world, "b", instance="i")
    for step in (
        first.join,
        second.join,
        lambda: world.pass_time(2 * DELAY_MS),
        lambda: (first.learn(), second.learn()),
        second.sync,
        lambda: first.sync({first.member_id: b"1", second.member_id: b"2"}),
        Consumer(world, "b", instance="i").join,
        first.join,
        first.leave,
        lambda: world.pass_time(10 * SESSION_MS),
    ):
        step()
        check()
    assert world.state() == "Empty"


def test_an_instance_that_has_read_nothing_has_no_state() -> None:
    groups = ClassicGroups(GroupSettings(), random.Random(1), Timers(), GroupHistory())
    assert groups.persistent_state() == {}
    assert list(groups) == []


def record(
    *, generation: int = 1, leader: str | None = "a", members: list[GroupMetadataMember]
) -> CoordinatorRecord:
    return CoordinatorRecord(
        GroupMetadataKey(group=GROUP),
        GroupMetadataValue(
            protocol_type="consumer", generation=generation, protocol="range", leader=leader, members=members
        ),
    )
