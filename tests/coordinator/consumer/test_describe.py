"""A group as tools see it, and what its history says about it."""

from __future__ import annotations

from tests.coordinator.consumer.world import GROUP, World
from tidelog.coordinator.group import records as types
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.wire.codec import decoder, encoder, joined
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.consumer_group_describe import ConsumerGroupDescribeResponse

AT_ONCE = GroupSettings(consumer_assignment_interval_ms=0)


def test_a_group_is_described_with_what_each_member_has_and_should_have() -> None:
    world = World(AT_ONCE, orders=4)
    world.join("a", "orders", instance_id="one", rack_id="r1", client_id="reader", host="10.0.0.3")
    world.join("b", "orders")
    world.heartbeat("a", 2, instance_id="one", client_id="reader", host="10.0.0.3")
    described = world.groups.describe(GROUP)
    assert (described.error_code, described.group_id, described.group_state) == (E.NONE, GROUP, "Reconciling")
    assert (described.group_epoch, described.assignment_epoch, described.assignor_name) == (3, 3, "uniform")
    first, second = described.members
    assert (first.member_id, first.instance_id, first.rack_id) == ("a", "one", "r1")
    assert (first.client_id, first.client_host, first.member_epoch) == ("reader", "10.0.0.3", 2)
    assert (first.subscribed_topic_names, first.subscribed_topic_regex, first.member_type) == (
        ["orders"],
        "",
        1,
    )
    [has], [should] = first.assignment.topic_partitions, first.target_assignment.topic_partitions
    assert (has.topic_id, has.topic_name, has.partitions) == (world.topics.ids["orders"], "orders", [0, 1])
    assert should.partitions == [0, 1]
    assert second.assignment.topic_partitions == []
    assert second.target_assignment.topic_partitions[0].partitions == [2, 3]


def test_the_description_fits_both_versions() -> None:
    world = World(AT_ONCE, orders=1)
    world.join("a", "orders")
    response = ConsumerGroupDescribeResponse(groups=[world.groups.describe(GROUP)])
    for version, member_type in ((0, -1), (1, 1)):
        parts: list[bytes | bytearray | memoryview] = []
        encoder(ConsumerGroupDescribeResponse, version)(response, parts)
        read, _ = decoder(ConsumerGroupDescribeResponse, version)(memoryview(joined(parts)), 0)
        assert read.groups[0].members[0].member_type == member_type


def test_a_member_that_speaks_the_classic_protocol_is_described_as_one() -> None:
    world = World(AT_ONCE, orders=1)
    world.join("a", "orders")
    value = world.member("a").metadata_value()
    value.classic_member_metadata = types.ClassicMemberMetadata(session_timeout_ms=9_000)
    world.groups.replay_member_metadata(types.ConsumerGroupMemberMetadataKey(GROUP, "a"), value)
    assert world.groups.describe(GROUP).members[0].member_type == 0
    world.heartbeat("a", 2)
    assert world.groups.describe(GROUP).members[0].member_type == 1


def test_a_group_that_is_not_there() -> None:
    described = World().groups.describe("nobody")
    assert (described.error_code, described.group_id) == (E.GROUP_ID_NOT_FOUND, "nobody")


def test_topics_that_are_gone_are_not_described() -> None:
    world = World(AT_ONCE, orders=1)
    world.join("a", "orders")
    world.delete_topic("orders")
    assert world.groups.describe(GROUP).members[0].assignment.topic_partitions == []


def test_the_history_says_why_a_group_was_assigned_anew() -> None:
    world = World(AT_ONCE, orders=4)
    world.join("a", "orders", client_id="reader", host="10.0.0.3", timeout_ms=10_000)
    assert world.events() == [Event.JOINED, Event.REBALANCE_BEGAN, Event.REBALANCE_ENDED]
    assert world.history.of(GROUP)[0].client == "reader (10.0.0.3)"
    world.join("b", "orders")
    assert world.events()[3:] == [Event.JOINED, Event.REBALANCE_BEGAN]
    world.heartbeat("a", 2)
    world.heartbeat("a", 2, owned={("orders", 0), ("orders", 1)})
    world.heartbeat("b", 3)
    assert world.events()[5:] == [Event.REBALANCE_ENDED]
    world.heartbeat("b", 3, topics=[])
    assert world.events()[6:] == [Event.CHANGED_SUBSCRIPTION, Event.REBALANCE_BEGAN]
    world.heartbeat("b", -1)
    assert world.events()[8:9] == [Event.LEFT]


def test_a_rebalance_ends_with_the_last_member() -> None:
    world = World(AT_ONCE, orders=4)
    world.join("a", "orders")
    world.join("b", "orders")
    assert world.events()[-1] is Event.REBALANCE_BEGAN
    world.heartbeat("b", -1)
    world.heartbeat("a", -1)
    assert world.events()[-2:] == [Event.LEFT, Event.REBALANCE_ENDED]
    assert world.history.of(GROUP)[-1].detail == "no member is left"


def test_a_settled_group_that_is_left_has_no_rebalance() -> None:
    world = World(AT_ONCE, orders=4)
    world.join("a", "orders")
    world.heartbeat("a", -1)
    assert world.events() == [Event.JOINED, Event.REBALANCE_BEGAN, Event.REBALANCE_ENDED, Event.LEFT]


def test_the_history_tells_the_silent_from_the_slow() -> None:
    world = World(AT_ONCE, orders=2)
    world.join("a", "orders", timeout_ms=10_000)
    world.join("b", "orders")
    world.heartbeat("a", 2)
    world.pass_time(10_000)
    assert Event.MISSED_REBALANCE in world.events()
    world.pass_time(45_000)
    assert world.events()[-2:] == [Event.TIMED_OUT, Event.REBALANCE_ENDED]
