"""Who may commit and fetch offsets (I35)."""

from __future__ import annotations

import pytest

from tests.coordinator.consumer.world import GROUP, World
from tidelog.coordinator.group import records as types
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.types import ZERO_UUID


def refusal(world: World, member_id: str, epoch: int, **more: object) -> E | None:
    """Of the commit as a whole."""
    try:
        world.groups.check_commit(GROUP, member_id, epoch, world.now, **more)  # type: ignore[arg-type]
    except RequestError as refused:
        return refused.code
    return None


def may_commit(world: World, member_id: str, epoch: int, topic: str, partition: int) -> bool:
    check = world.groups.check_commit(GROUP, member_id, epoch, world.now)
    try:
        if check is not None:
            check(topic, ZERO_UUID, partition)
    except RequestError as refused:
        assert refused.code == E.STALE_MEMBER_EPOCH
        return False
    return True


def grown_world() -> World:
    """a has orders 0 since epoch 2 and orders 1 since epoch 3, and is at epoch 3; the topic grew."""
    world = World(GroupSettings(consumer_assignment_interval_ms=0), orders=1, refunds=1)
    world.join("a", "orders")
    world.grow_topic("orders", 2)
    world.heartbeat("a", 2)
    assert world.member("a").assigned == {world.topics.ids["orders"]: {0: 2, 1: 3}}
    return world


def test_the_members_own_epoch_is_good_for_everything() -> None:
    world = grown_world()
    assert world.groups.check_commit(GROUP, "a", 3, world.now) is None


def test_an_older_epoch_is_good_for_what_the_member_has_had_since_then() -> None:
    world = grown_world()
    assert may_commit(world, "a", 2, "orders", 0)
    assert not may_commit(world, "a", 2, "orders", 1)
    assert not may_commit(world, "a", 1, "orders", 0)
    assert not may_commit(world, "a", 2, "refunds", 0)
    assert not may_commit(world, "a", 2, "unknown", 0)


def test_what_a_member_is_giving_up_it_may_still_commit() -> None:
    world = grown_world()
    world.join("b", "orders")
    world.heartbeat("a", 3)
    assert world.member("a").revoking == {world.topics.ids["orders"]: {1: 3}}
    assert may_commit(world, "a", 3, "orders", 1)
    world.heartbeat("a", 3, owned={("orders", 0)})
    assert world.member("a").epoch == 4
    assert may_commit(world, "a", 3, "orders", 0)
    assert not may_commit(world, "a", 3, "orders", 1)


def test_epochs_from_the_future_and_strangers_are_refused() -> None:
    world = grown_world()
    assert refusal(world, "a", 4) == E.STALE_MEMBER_EPOCH
    assert refusal(world, "b", 3) == E.UNKNOWN_MEMBER_ID
    assert refusal(world, "", -1) == E.UNKNOWN_MEMBER_ID
    assert refusal(world, "a", 3, version=8) == E.UNSUPPORTED_VERSION
    assert refusal(world, "a", 3, version=8, is_transactional=True) is None


def test_a_producer_that_knows_nothing_of_the_group_may_commit() -> None:
    world = grown_world()
    assert refusal(world, "", -1, is_transactional=True) is None
    assert refusal(world, "", -1, is_transactional=True, instance_id="one") == E.UNKNOWN_MEMBER_ID


def test_tools_may_commit_for_a_group_that_nobody_is_in() -> None:
    world = grown_world()
    world.heartbeat("a", -1)
    assert refusal(world, "", -1) is None
    assert refusal(world, "a", 3) == E.UNKNOWN_MEMBER_ID


def test_who_came_back_may_not_commit_under_its_old_id() -> None:
    world = World(orders=1)
    world.join("a", "orders", instance_id="one")
    world.heartbeat("a", -2, instance_id="one")
    assert refusal(world, "a", 2) == E.STALE_MEMBER_EPOCH
    world.join("a2", "orders", instance_id="one")
    assert refusal(world, "a", 2) == E.UNKNOWN_MEMBER_ID
    assert refusal(world, "a2", 2) is None


def test_a_member_that_speaks_the_classic_protocol_has_a_generation() -> None:
    world = grown_world()
    value = world.member("a").metadata_value()
    value.classic_member_metadata = types.ClassicMemberMetadata(session_timeout_ms=9_000)
    world.groups.replay_member_metadata(types.ConsumerGroupMemberMetadataKey(GROUP, "a"), value)
    assert refusal(world, "a", 4, version=8) == E.ILLEGAL_GENERATION
    assert refusal(world, "a", 3, version=8) is None


def test_a_group_that_is_not_there() -> None:
    assert refusal(World(orders=1), "a", 1) == E.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [
        (None, -1, None),
        ("a", 3, None),
        ("a", 2, E.STALE_MEMBER_EPOCH),
        ("a", 4, E.STALE_MEMBER_EPOCH),
        ("b", 3, E.UNKNOWN_MEMBER_ID),
        (None, 3, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_fetch(member_id: str | None, epoch: int, code: E | None) -> None:
    world = grown_world()
    if code is None:
        world.groups.check_fetch(GROUP, member_id, epoch)
    else:
        with pytest.raises(RequestError) as refused:
            world.groups.check_fetch(GROUP, member_id, epoch)
        assert refused.value.code == code
