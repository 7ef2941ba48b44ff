"""Static members: those that a restart does not take their partitions from."""

from __future__ import annotations

from tests.coordinator.consumer.world import World
from tidelog.coordinator.group import records as types
from tidelog.coordinator.group.consumer.member import MemberState
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.wire.error_codes import ErrorCode as E


def orders(*partitions: int) -> frozenset[tuple[str, int]]:
    return frozenset(("orders", partition) for partition in partitions)


def world_with_two() -> World:
    """a (instance one) has 0 and 1; b, which is dynamic, has 2 and 3."""
    world = World(GroupSettings(consumer_assignment_interval_ms=0), orders=4)
    world.join("a", "orders", instance_id="one")
    world.join("b", "orders")
    world.heartbeat("a", 2, instance_id="one")
    world.heartbeat("a", 2, owned=orders(0, 1), instance_id="one")
    world.heartbeat("b", 3)
    assert world.state() == "Stable"
    return world


def test_who_comes_back_has_what_it_had_and_nobody_else_notices() -> None:
    world = world_with_two()
    left = world.heartbeat("a", -2, instance_id="one")
    assert (left.error_code, left.member_epoch) == (E.NONE, -2)
    assert [type(record.key) for record in world.written] == [types.ConsumerGroupCurrentMemberAssignmentKey]
    assert (world.member("a").epoch, world.group().epoch) == (-2, 3)
    assert world.member("a").assigned[world.topics.ids["orders"]] == {0: 0, 1: 0}
    world.pass_time(30_000)
    world.heartbeat("b", 3)
    assert world.member("b").assigned.keys() == {world.topics.ids["orders"]}

    back = world.join("a2", "orders", instance_id="one")
    assert (back.member_epoch, world.told(back)) == (3, orders(0, 1))
    assert [(type(record.key), record.key.member_id, record.value is None) for record in world.written] == [
        (types.ConsumerGroupCurrentMemberAssignmentKey, "a", True),
        (types.ConsumerGroupTargetAssignmentMemberKey, "a", True),
        (types.ConsumerGroupMemberMetadataKey, "a", True),
        (types.ConsumerGroupMemberMetadataKey, "a2", False),
        (types.ConsumerGroupTargetAssignmentMemberKey, "a2", False),
        (types.ConsumerGroupCurrentMemberAssignmentKey, "a2", False),
        (types.ConsumerGroupCurrentMemberAssignmentKey, "a2", False),
    ]
    assert world.group().epoch == 3
    assert set(world.group().members) == {"a2", "b"}
    assert world.state() == "Stable"
    world.assert_live_equals_replay()


def test_it_comes_back_into_a_full_group_and_with_another_subscription() -> None:
    world = World(GroupSettings(consumer_max_size=1, consumer_assignment_interval_ms=0), orders=2, refunds=1)
    world.join("a", "orders", instance_id="one")
    world.heartbeat("a", -2, instance_id="one")
    back = world.join("a2", "refunds", instance_id="one")
    assert (back.member_epoch, world.told(back)) == (3, frozenset({("refunds", 0)}))
    assert world.join("b", "orders").error_code == E.GROUP_MAX_SIZE_REACHED
    assert world.join("b", "orders", instance_id="two").error_code == E.GROUP_MAX_SIZE_REACHED
    world.assert_live_equals_replay()


def test_it_may_come_back_with_the_same_member_id() -> None:
    world = world_with_two()
    world.heartbeat("a", -2, instance_id="one")
    back = world.join("a", "orders", instance_id="one")
    assert (back.member_epoch, world.told(back)) == (3, orders(0, 1))
    world.assert_live_equals_replay()


def test_what_it_had_to_give_up_is_free_once_it_has_left() -> None:
    world = World(GroupSettings(consumer_assignment_interval_ms=0), orders=4)
    world.join("a", "orders", instance_id="one")
    world.join("b", "orders")
    world.heartbeat("a", 2, instance_id="one")
    assert world.member("a").state is MemberState.UNREVOKED_PARTITIONS
    world.heartbeat("a", -2, instance_id="one")
    assert world.told(world.heartbeat("b", 3)) == orders(2, 3)
    back = world.join("a2", "orders", instance_id="one")
    assert (back.member_epoch, world.told(back)) == (3, orders(0, 1))
    world.assert_live_equals_replay()


def test_who_does_not_come_back_in_time_is_gone() -> None:
    world = world_with_two()
    world.heartbeat("a", -2, instance_id="one")
    world.pass_time(40_000)
    world.heartbeat("b", 3)
    world.pass_time(5_000)
    assert set(world.group().members) == {"b"}
    assert world.told(world.heartbeat("b", 3)) == orders(0, 1, 2, 3)


def test_an_instance_that_has_not_left_is_not_taken_over() -> None:
    world = world_with_two()
    refused = world.join("a2", "orders", instance_id="one")
    assert refused.error_code == E.UNRELEASED_INSTANCE_ID
    assert set(world.group().members) == {"a", "b"}


def test_a_join_whose_answer_was_lost_may_be_sent_again() -> None:
    world = World(orders=2)
    world.join("a", "orders", instance_id="one")
    again = world.join("a", "orders", instance_id="one")
    assert (again.error_code, world.told(again)) == (E.NONE, orders(0, 1))


def test_who_uses_an_instance_id_that_is_anothers_is_fenced() -> None:
    world = world_with_two()
    world.heartbeat("a", -2, instance_id="one")
    world.join("a2", "orders", instance_id="one")
    for epoch in (3, -1, -2):
        assert world.heartbeat("a", epoch, instance_id="one").error_code == E.FENCED_INSTANCE_ID
    assert world.heartbeat("a", 3, instance_id="three").error_code == E.UNKNOWN_MEMBER_ID
    assert world.heartbeat("a", -2, instance_id="three").error_code == E.UNKNOWN_MEMBER_ID


def test_one_that_leaves_for_good_is_gone_at_once() -> None:
    world = world_with_two()
    assert world.heartbeat("a", -1, instance_id="one").error_code == E.NONE
    assert set(world.group().members) == {"b"}
    assert world.group().instances == {}
