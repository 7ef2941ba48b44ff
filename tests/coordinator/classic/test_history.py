"""Why a group rebalanced, in words that its users understand."""

from __future__ import annotations

from tests.coordinator.classic.world import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    World,
    assigned,
    joined,
    stable,
    static,
    subscription,
)
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.settings import GroupSettings


def last_reason(world: World) -> str:
    return world.events(Event.REBALANCE_BEGAN)[-1]


def test_the_life_of_a_group_reads_like_a_story() -> None:
    world = World()
    first, second = Consumer(world, "a"), Consumer(world, "b")
    joined(world, first, second)
    assigned(first, second)
    second.leave("shutting down")
    assert [(each.event, each.generation) for each in world.history.of(GROUP)] == [
        (Event.JOINED, 0),
        (Event.REBALANCE_BEGAN, 0),
        (Event.JOINED, 0),
        (Event.REBALANCE_ENDED, 1),
        (Event.LEFT, 1),
        (Event.REBALANCE_BEGAN, 1),
    ]
    left = world.history.of(GROUP)[4]
    assert (left.member_id, left.client, left.detail) == (second.member_id, "b (10.0.0.1)", "shutting down")
    (ended,) = world.events(Event.REBALANCE_ENDED)
    assert ended == f"2 members, assigned by {first.member_id} with range"


def test_every_reason_to_rebalance_is_told() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    assert last_reason(world) == f"member {first.member_id} joined"
    first.join(reason="new partitions")
    assert last_reason(world) == "the leader asked for it: new partitions"
    second.join()
    for each in (first, second):
        each.learn()
    assigned(first, second)
    second.join(protocols={"range": subscription("u")}, reason="topic pattern matches more")
    assert last_reason(world).startswith(f"member {second.member_id} changed its subscription: topic pattern")
    assert world.events(Event.CHANGED_SUBSCRIPTION) == ["topic pattern matches more"]


def test_a_time_out_is_told_with_the_time() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    world.pass_time(SESSION_MS - 1)
    first.heartbeat()
    world.pass_time(1)
    assert last_reason(world) == f"member {second.member_id} timed out"
    assert world.events(Event.TIMED_OUT) == ["silent for 10000 ms"]


def test_missing_a_rebalance_is_told_apart_from_being_silent() -> None:
    world = World()
    first, second = stable(world, "a", "b", session_ms=3 * REBALANCE_MS)
    first.join()
    world.pass_time(REBALANCE_MS)
    (entry,) = [each for each in world.history.of(GROUP) if each.event is Event.MISSED_REBALANCE]
    assert (entry.member_id, entry.detail) == (
        second.member_id,
        f"did not join again within the rebalance timeout of {REBALANCE_MS} ms",
    )
    first.learn()
    world.pass_time(REBALANCE_MS)
    assert world.events(Event.MISSED_REBALANCE)[1:] == [
        f"did not ask for its assignment within the rebalance timeout of {REBALANCE_MS} ms"
    ]
    assert last_reason(world) == f"member {first.member_id} did not ask for an assignment in time"
    assert world.events(Event.REBALANCE_ENDED)[-1] == "no member is left"


def test_a_fenced_member_is_told_with_who_took_its_place() -> None:
    world = World()
    (first,) = static(world, "i-1")
    Consumer(world, "i-1", instance="i-1", host="10.0.0.9").join()
    (entry,) = [each for each in world.history.of(GROUP) if each.event is Event.FENCED]
    assert entry.member_id == first.member_id
    assert entry.detail == "i-1 (10.0.0.9) took its instance id i-1"


def test_who_was_turned_away_from_a_group_that_is_too_large_is_told_why() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    world.settings = GroupSettings(max_size=1)
    world.restart()
    assert last_reason(world) == "the group has 2 members, group.max.size allows 1"
    first.join()
    second.join()
    assert world.events(Event.LEFT) == ["the group is full (group.max.size)"]
