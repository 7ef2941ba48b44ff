"""The last member of the consumer protocol goes: the group becomes a classic one again, in one batch, unless a policy forbids it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.coordinator.consumer.clients import Consumer
from tests.coordinator.migration.clients import Classic, Kind, Phase, go_on, read_assignment, reads, settle
from tests.coordinator.migration.world import DELAY_MS, GROUP, World
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.migration import downgrade
from tidelog.coordinator.group.records import GroupMetadataKey
from tidelog.coordinator.group.settings import GroupSettings, MigrationPolicy
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.leave_group import MemberIdentity

KINDS = pytest.mark.parametrize("kind", list(Kind))


def mixed_group(
    world: World, kind: Kind = Kind.EAGER, *, instance: str | None = None
) -> tuple[Consumer, Classic, Classic]:
    """One member of the consumer protocol, two of the classic one."""
    first = Consumer(world, "n", topics=frozenset({"orders"}), instance_id=instance)  # type: ignore[arg-type]
    others = [Classic(world, f"c{number}", "orders", kind=kind) for number in range(2)]
    settle(world, first, *others)
    assert world.state() == "consumer Stable"
    return first, others[0], others[1]


def leaves(world: World, first: Consumer) -> None:
    first.leave()


def is_removed(world: World, first: Consumer) -> None:
    first.alive = False
    world.leave(MemberIdentity("n"))


@KINDS
@pytest.mark.parametrize("goes", [leaves, is_removed])
def test_the_group_becomes_a_classic_one_in_one_batch(
    kind: Kind, goes: Callable[[World, Consumer], None]
) -> None:
    world = World(orders=6)
    first, second, third = mixed_group(world, kind)
    assert world.consumer is not None
    epoch = world.consumer.epoch
    goes(world, first)
    assert world.wrote_a_move()
    assert world.written[-1].key == GroupMetadataKey(GROUP)
    assert world.consumer is None
    group = world.classic
    assert group is not None
    assert (group.state, group.generation, group.protocol_type) == (
        State.PREPARING_REBALANCE,
        epoch,
        "consumer",
    )
    value = world.written[-1].value
    assert value is not None
    assert {each.member_id: read_assignment(each.assignment) for each in value.members} == {
        each.member_id: each.owned for each in (second, third)
    }
    world.assert_live_equals_replay()
    # They read on until they have heard of it.
    assert second.heartbeat() == E.REBALANCE_IN_PROGRESS
    settle(world, second, third)
    assert world.state() == "classic Stable"
    assert [len(each.owned) for each in (second, third)] == [3, 3]
    assert second.generation > epoch


def test_a_member_that_falls_silent_takes_the_group_back_too() -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=DELAY_MS, consumer_session_timeout_ms=4_000)
    world = World(settings, orders=6)
    first, second, third = mixed_group(world)
    first.alive = False
    for _ in range(6):
        go_on(second)
        go_on(third)
        world.pass_time(1_000)
    assert world.classic is not None
    settle(world, second, third)
    assert world.state() == "classic Stable"


def test_the_history_says_why() -> None:
    world = World(orders=6)
    first, _, _ = mixed_group(world)
    first.leave()
    assert world.events(Event.MIGRATED) == [
        "from the consumer to the classic protocol: its last member of the consumer protocol is gone"
    ]
    assert world.events(Event.LEFT) != []


def test_a_member_between_join_and_sync_joins_again() -> None:
    world = World(orders=6)
    first, second, third = mixed_group(world)
    second.phase = Phase.OUT
    while second.phase is not Phase.SYNCS:
        second.step()
    first.leave()
    assert second.sync().error in (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION)
    settle(world, second, third)


@KINDS
def test_a_coordinator_that_moves_in_the_middle_finishes_the_rebalance(kind: Kind) -> None:
    """The record alone says that there is something to do: the members' own generation is still the group's."""
    world = World(orders=6)
    first, second, third = mixed_group(world, kind)
    first.leave()
    world.fail_over()
    assert world.classic is not None and world.classic.state is State.PREPARING_REBALANCE
    settle(world, second, third)
    assert world.state() == "classic Stable"
    assert [len(each.owned) for each in (second, third)] == [3, 3]
    # From now on it is a group like any other.
    world.fail_over()
    assert world.state() == "classic Stable"
    assert second.heartbeat() == E.NONE


def test_deadlines_of_the_consumer_group_do_not_follow() -> None:
    """A member that was told to join, and joined the classic group, owes nothing when the group moves once more."""
    world = World(orders=6)
    first, second, third = mixed_group(world)
    second.phase = Phase.OUT
    while second.phase is not Phase.SYNCS:
        second.step()
    first.leave()
    settle(world, second, third)
    again = Consumer(world, "again", topics=frozenset({"orders"}))  # type: ignore[arg-type]
    settle(world, second, third, again)
    for _ in range(40):
        for each in (second, third, again):
            go_on(each)
        world.pass_time(1_000)
    assert world.events(Event.MISSED_REBALANCE) == []


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.UPGRADE])
def test_a_policy_may_forbid_it(policy: MigrationPolicy) -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=DELAY_MS, consumer_migration_policy=policy)
    world = World(settings, orders=6)
    first, second, third = mixed_group(world)
    first.leave()
    assert world.state().startswith("consumer")
    settle(world, second, third)
    assert world.state() == "consumer Stable"
    # The last one leaves: then it is an empty consumer group, which may become anything.
    second.leave()
    third.leave()
    assert world.state() == "consumer Empty"
    last = Classic(world, "c9", "orders")
    settle(world, last)
    assert world.state() == "classic Stable"


def test_a_group_that_is_too_large_for_the_classic_protocol_stays() -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=DELAY_MS, max_size=1)
    world = World(settings, orders=6)
    first, second, third = mixed_group(world)
    first.leave()
    settle(world, second, third)
    assert world.state() == "consumer Stable"
    second.leave()
    settle(world, third)
    assert world.state() == "classic Stable"


def test_the_last_two_of_the_consumer_protocol_may_go_with_a_classic_one() -> None:
    world = World(orders=6)
    first, second, third = mixed_group(world)
    another = Consumer(world, "m", topics=frozenset({"orders"}))  # type: ignore[arg-type]
    settle(world, first, second, third, another)
    world.leave(MemberIdentity("n"), MemberIdentity("m"), MemberIdentity(third.member_id))
    first.alive = another.alive = third.alive = False
    assert world.classic is not None
    settle(world, second)
    assert world.state() == "classic Stable"


def test_a_group_of_the_consumer_protocol_alone_ends_empty() -> None:
    world = World(orders=2)
    first = Consumer(world, "n", topics=frozenset({"orders"}))  # type: ignore[arg-type]
    settle(world, first)
    first.leave()
    assert world.state() == "consumer Empty"


def test_the_groups_offsets_stay_as_they_are() -> None:
    world = World(orders=6)
    first, second, _ = mixed_group(world)
    place = next(iter(second.owned))
    assert world.commit("n", first.epoch, ("orders", 0), 41) == E.NONE
    assert world.commit(second.member_id, second.generation, place, 42) == E.NONE
    first.leave()
    assert world.committed(("orders", 0)) in (41, 42)
    assert world.committed(place) == 42
    # In a rebalance of a classic group, too, members may commit what they have read.
    assert world.commit(second.member_id, second.generation, place, 43) == E.NONE


def test_a_move_that_cannot_be_written_did_not_happen() -> None:
    world = World(orders=6)
    first, second, third = mixed_group(world)
    world.refuses = E.COORDINATOR_NOT_AVAILABLE
    response = world.beat("n", -1)
    assert response.error_code == E.COORDINATOR_NOT_AVAILABLE
    assert world.classic is None
    assert "n" in world.members()
    settle(world, first, second, third)
    world.refuses = E.COORDINATOR_NOT_AVAILABLE
    assert world.leave(MemberIdentity("n")).error_code == E.COORDINATOR_NOT_AVAILABLE
    assert world.state() == "consumer Stable"
    first.leave()
    settle(world, second, third)
    assert world.state() == "classic Stable"


# ---- the last one comes back with the other protocol


@KINDS
@pytest.mark.parametrize("says_so", [True, False], ids=["left for now", "killed"])
def test_a_static_member_that_comes_back_disturbs_nobody(kind: Kind, says_so: bool) -> None:
    world = World(orders=6)
    first, second, third = mixed_group(world, kind, instance="i")
    had, before = reads(world, first), (second.owned, third.owned)
    if says_so:
        first.leave(for_now=True)
    first.alive = False
    again = Classic(world, "again", "orders", instance="i", kind=kind)
    again.step()
    assert world.wrote_a_move()
    assert world.state() == "classic Stable"
    again.step()
    assert again.owned == had
    assert (second.heartbeat(), third.heartbeat()) == (E.NONE, E.NONE)
    settle(world, second, third, again)
    assert (second.owned, third.owned) == before
    [detail] = world.events(Event.MIGRATED)
    assert "static member i came back" in detail
    # The one before speaks of a group that there is no more, in a protocol that it does not speak.
    assert world.beat("n", 5, instance_id="i", owned=()).error_code == E.UNKNOWN_MEMBER_ID


def test_a_static_member_that_comes_back_with_other_wishes_causes_a_rebalance() -> None:
    world = World(orders=6, payments=2)
    first, second, third = mixed_group(world, instance="i")
    first.leave(for_now=True)
    again = Classic(world, "again", "payments", instance="i")
    again.step()
    assert world.classic is not None and world.classic.state is State.PREPARING_REBALANCE
    assert again.phase is Phase.SYNCS
    again.step()
    assert again.errors == [E.REBALANCE_IN_PROGRESS]
    settle(world, second, third, again)
    assert again.owned == {("payments", 0), ("payments", 1)}
    assert world.state() == "classic Stable"


def test_a_static_member_that_comes_back_in_a_rebalance_causes_another() -> None:
    world = World(orders=6)
    first, second, third = mixed_group(world, instance="i")
    fourth = Classic(world, "c9", "orders")
    while fourth.phase is not Phase.IN:
        fourth.step()
    first.leave(for_now=True)
    again = Classic(world, "again", "orders", instance="i")
    again.step()
    assert world.classic is not None and world.classic.state is State.PREPARING_REBALANCE
    settle(world, second, third, fourth, again)
    assert world.state() == "classic Stable"


def test_a_static_member_that_cannot_be_written_down_is_not_there() -> None:
    world = World(orders=6)
    first, second, third = mixed_group(world, instance="i")
    first.leave(for_now=True)
    world.refuses = E.COORDINATOR_NOT_AVAILABLE
    again = Classic(world, "again", "orders", instance="i")
    again.step()
    assert again.errors == [E.COORDINATOR_NOT_AVAILABLE]
    assert world.classic is None
    settle(world, second, third, again)
    assert world.state() == "classic Stable"


def test_a_static_member_that_comes_back_when_a_policy_forbids_the_way_back() -> None:
    policy = MigrationPolicy.UPGRADE
    settings = GroupSettings(initial_rebalance_delay_ms=DELAY_MS, consumer_migration_policy=policy)
    world = World(settings, orders=6)
    first, second, third = mixed_group(world, instance="i")
    first.leave(for_now=True)
    again = Classic(world, "again", "orders", instance="i")
    settle(world, second, third, again)
    assert world.state() == "consumer Stable"


# ---- mutants: the tests above must notice


@KINDS
def test_a_move_back_that_names_a_leader_is_caught(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka's does: if the coordinator moves then, nobody reads what the one who left has read."""
    move = downgrade.Downgrades._move

    def named(self: Any, group: Any, members: Any, why: str, reason: str | None, now: Any) -> Any:
        out = move(self, group, members, why, reason, now)
        value = out.records[-1].value
        value.leader = value.members[0].member_id
        return out

    monkeypatch.setattr(downgrade.Downgrades, "_move", named)
    with pytest.raises(AssertionError):
        test_a_coordinator_that_moves_in_the_middle_finishes_the_rebalance(kind)


def test_a_move_back_that_takes_any_group_for_a_settled_one_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that is still waiting for a partition of another would be told that all is done."""
    move = downgrade.Downgrades._move

    def settled(self: Any, group: Any, members: Any, why: str, reason: str | None, now: Any) -> Any:
        return move(self, group, members, why, None, now)

    monkeypatch.setattr(downgrade.Downgrades, "_move", settled)
    with pytest.raises(AssertionError):
        test_a_static_member_that_comes_back_in_a_rebalance_causes_another()
