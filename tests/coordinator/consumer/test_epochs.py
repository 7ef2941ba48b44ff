"""When a group is assigned anew: what makes its epoch grow, and how long a new target waits."""

from __future__ import annotations

from tests.coordinator.consumer.world import World
from tidelog.coordinator.group import records as types
from tidelog.coordinator.group.consumer.member import MemberState
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.outcome import Now

AT_ONCE = GroupSettings(consumer_assignment_interval_ms=0)


def test_a_subscription_that_changes_makes_it_grow() -> None:
    world = World(AT_ONCE, orders=1, refunds=1)
    world.join("a", "orders")
    world.heartbeat("a", 2, topics=["orders"])
    assert world.group().epoch == 2
    world.heartbeat("a", 2, topics=["refunds", "orders"])
    assert world.group().epoch == 3
    assert world.groups.subscribed_topics("orders-readers") == {"orders", "refunds"}


def test_a_topic_that_grows_comes_or_goes_makes_it_grow_and_others_do_not() -> None:
    world = World(AT_ONCE, orders=1)
    world.join("a", "orders", "refunds")
    world.create_topic("visits", 3)
    world.heartbeat("a", 2)
    assert world.group().epoch == 2

    world.grow_topic("orders", 2)
    assert world.group().epoch == 2, "the group looks at its topics with the next heartbeat"
    told = world.told(world.heartbeat("a", 2))
    assert (world.group().epoch, told) == (3, frozenset({("orders", 0), ("orders", 1)}))

    world.create_topic("refunds", 1)
    assert world.told(world.heartbeat("a", 3)) == {("orders", 0), ("orders", 1), ("refunds", 0)}
    assert world.group().epoch == 4

    world.delete_topic("orders")
    assert world.told(world.heartbeat("a", 4)) == {("refunds", 0)}
    assert world.group().epoch == 5


def test_a_topic_that_is_made_again_is_another() -> None:
    world = World(AT_ONCE, orders=1)
    world.join("a", "orders")
    world.topics.delete("orders")
    world.create_topic("orders", 1)
    assert world.told(world.heartbeat("a", 2)) == frozenset(), "the old partition must be given up first"
    assert world.member("a").state is MemberState.UNREVOKED_PARTITIONS
    assert world.told(world.heartbeat("a", 2, owned=())) == {("orders", 0)}


def test_a_new_coordinator_does_not_assign_anew_without_cause() -> None:
    world = World(AT_ONCE, orders=2)
    world.join("a", "orders")
    world.fail_over()
    world.heartbeat("a", 2)
    assert world.written == []
    assert world.group().epoch == 2


def test_the_assignor_is_the_one_that_most_members_want() -> None:
    world = World(AT_ONCE, orders=2, refunds=2)
    for name in "abc":
        world.join(name, "orders", "refunds", server_assignor="range" if name == "a" else None)
    world.heartbeat("a", world.member("a").epoch)
    assert world.target("a") == {("orders", 0), ("refunds", 0)}
    world.heartbeat("b", world.member("b").epoch, server_assignor="uniform")
    world.heartbeat("c", world.member("c").epoch, server_assignor="uniform")
    assert world.groups.describe("orders-readers").assignor_name == "uniform"
    assert max(len(world.target(name)) for name in "abc") == 2
    assert min(len(world.target(name)) for name in "abc") == 1


def test_targets_are_not_made_more_often_than_the_interval_allows() -> None:
    world = World(orders=4)
    world.join("a", "orders")
    for name in "bcd":
        world.join(name, "orders")
    group = world.group()
    assert (group.epoch, group.assignment_epoch) == (5, 2)
    world.pass_time(999)
    world.heartbeat("a", 2)
    assert world.group().assignment_epoch == 2
    world.pass_time(1)
    world.heartbeat("a", 2)
    assert world.group().assignment_epoch == 5
    assert [len(world.target(name)) for name in "abcd"] == [1, 1, 1, 1]


def test_the_interval_of_a_group_may_be_its_own() -> None:
    world = World(orders=2)
    world.topics.configs["orders-readers"] = {"consumer.assignment.interval.ms": 0}
    world.join("a", "orders")
    world.join("b", "orders")
    assert world.group().assignment_epoch == 3


def test_a_wall_clock_that_was_set_back_delays_nothing() -> None:
    world = World(orders=2)
    world.join("a", "orders")
    world.now = Now(world.now.ms + 10, world.now.wall_ms - 3_600_000)
    world.join("b", "orders")
    assert world.group().assignment_epoch == 3


def test_what_is_no_longer_wanted_is_given_up_before_there_is_a_new_target() -> None:
    world = World(orders=2, refunds=1)
    world.join("a", "orders", "refunds")
    told = world.told(world.heartbeat("a", 2, topics=["orders"]))
    assert told == {("orders", 0), ("orders", 1)}
    assert (world.group().epoch, world.group().assignment_epoch) == (3, 2)
    assert world.member("a").state is MemberState.UNREVOKED_PARTITIONS
    world.pass_time(1_000)
    world.heartbeat("a", 2, owned={("orders", 0), ("orders", 1)})
    assert (world.member("a").epoch, world.state()) == (3, "Stable")


def test_what_an_older_release_wrote_about_partitions_goes_with_the_next_look() -> None:
    world = World(orders=1)
    world.join("a", "orders")
    key = types.ConsumerGroupPartitionMetadataKey("orders-readers")
    world.groups.replay_partition_metadata(key, types.ConsumerGroupPartitionMetadataValue())
    world.topics_changed()
    world.heartbeat("a", 2)
    assert [(type(record.key), record.value) for record in world.written] == [
        (types.ConsumerGroupPartitionMetadataKey, None)
    ]
    assert not world.group().has_partition_metadata
