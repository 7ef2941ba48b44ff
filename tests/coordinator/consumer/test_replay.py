"""What a log gives back, also one that is being compacted while it is read, or that somebody else wrote (I36)."""

from __future__ import annotations

from tests.coordinator.consumer.world import GROUP, World
from tidelog.coordinator.group import records as types
from tidelog.coordinator.group.consumer.groups import ConsumerGroups
from tidelog.coordinator.group.consumer.member import MemberState
from tidelog.coordinator.group.history import Event, GroupHistory
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.outcome import CoordinatorRecord
from tidelog.coordinator.timers import Timers

ORDERS = b"orders".ljust(16, b"-")


def standing(
    member_id: str, epoch: int, *partitions: int, revoking: tuple[int, ...] = ()
) -> CoordinatorRecord:
    def listed(indexes: tuple[int, ...]) -> list[types.CurrentTopicPartitions]:
        return [types.CurrentTopicPartitions(ORDERS, list(indexes), None)] if indexes else []

    return CoordinatorRecord(
        types.ConsumerGroupCurrentMemberAssignmentKey(GROUP, member_id),
        types.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=epoch,
            previous_member_epoch=epoch - 1,
            state=1 if revoking else 0,
            assigned_partitions=listed(partitions),
            partitions_pending_revocation=listed(revoking),
        ),
    )


def replayed(*records: CoordinatorRecord) -> World:
    world = World(GroupSettings(consumer_assignment_interval_ms=0))
    world.groups = ConsumerGroups(world.settings, world.rng, world.timers, world.history, world.topics)
    for record in records:
        assert world.groups.replay(record)
    return world


def owners(world: World) -> dict[int, str]:
    return {partition: owner for (_, partition), owner in sorted(world.group().owners.items())}


def test_the_newer_claim_counts_where_the_end_of_the_older_was_compacted_away() -> None:
    """KAFKA-19862: a's record of giving 0 up was removed between our reading of its neighbours."""
    world = replayed(standing("a", 5, 0, 1), standing("b", 6, 0), standing("a", 7, 1), standing("b", 8, 0, 2))
    assert owners(world) == {0: "b", 1: "a", 2: "b"}
    assert world.group().with_disputed_partitions() == []


def test_a_claim_that_came_back_outlives_the_one_in_between() -> None:
    world = replayed(standing("a", 5, 0), standing("b", 6, 0), standing("a", 8, 0), standing("b", 9))
    assert owners(world) == {0: "a"}


def test_of_two_claims_that_last_the_older_member_must_begin_anew() -> None:
    world = replayed(standing("a", 5, 0, 1), standing("b", 6, 1, 2))
    world.run(world.groups.loaded(world.now))
    world.pass_time(0)
    assert set(world.group().members) == {"b"}
    assert owners(world) == {1: "b", 2: "b"}
    assert world.events() == [Event.FENCED, Event.REBALANCE_BEGAN]


def test_what_is_being_given_up_is_owned() -> None:
    world = replayed(standing("a", 5, 0, revoking=(1,)))
    assert owners(world) == {0: "a", 1: "a"}
    assert world.member("a").state is MemberState.UNREVOKED_PARTITIONS


def test_records_without_assignment_epochs_count_from_the_members_own() -> None:
    world = replayed(standing("a", 5, 0, 1))
    assert world.member("a").assigned == {ORDERS: {0: 5, 1: 5}}


def test_tombstones_of_what_is_not_there_do_nothing() -> None:
    world = World()
    for key in (
        types.ConsumerGroupMetadataKey(GROUP),
        types.ConsumerGroupPartitionMetadataKey(GROUP),
        types.ConsumerGroupMemberMetadataKey(GROUP, "a"),
        types.ConsumerGroupTargetAssignmentMetadataKey(GROUP),
        types.ConsumerGroupTargetAssignmentMemberKey(GROUP, "a"),
        types.ConsumerGroupCurrentMemberAssignmentKey(GROUP, "a"),
        types.ConsumerGroupRegularExpressionKey(GROUP, "o.*"),
    ):
        assert world.groups.replay(CoordinatorRecord(key, None))
    assert GROUP not in world.groups


def test_records_of_others_are_left_to_them() -> None:
    world = World()
    assert not world.groups.replay(CoordinatorRecord(types.OffsetCommitKey(GROUP, "orders", 0), None))


def test_a_group_that_is_deleted_leaves_nothing() -> None:
    world = World(GroupSettings(consumer_assignment_interval_ms=0), orders=2)
    world.join("a", "orders")
    world.join("b", "orders")
    records = world.groups.tombstone(GROUP)
    assert [type(record.key).__name__ for record in records] == [
        "ConsumerGroupCurrentMemberAssignmentKey",
        "ConsumerGroupCurrentMemberAssignmentKey",
        "ConsumerGroupTargetAssignmentMemberKey",
        "ConsumerGroupTargetAssignmentMemberKey",
        "ConsumerGroupTargetAssignmentMetadataKey",
        "ConsumerGroupMemberMetadataKey",
        "ConsumerGroupMemberMetadataKey",
        "ConsumerGroupPartitionMetadataKey",
        "ConsumerGroupMetadataKey",
    ]
    for record in records:
        world.groups.replay(record)
    assert world.groups.persistent_state() == {}
    assert world.groups.subscribed_topics(GROUP) is None
    assert world.groups.is_empty(GROUP)
    assert world.groups.tombstone(GROUP) == []
    assert world.state() == "Dead"


def test_loading_hears_of_nobody_that_is_not_there() -> None:
    world = World(orders=1)
    fresh = ConsumerGroups(world.settings, world.rng, Timers(), GroupHistory(), world.topics)
    outcome = fresh.loaded(world.now)
    assert (outcome.records, outcome.answers) == ([], [])
