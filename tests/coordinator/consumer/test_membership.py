"""How members come, are told what they may have, hand partitions over, and go."""

from __future__ import annotations

import pytest

from tests.coordinator.consumer.world import World
from tidelog.coordinator.group import records as types
from tidelog.coordinator.group.consumer.heartbeat import ASK_AGAIN_MS, STAY_CLOSE_FOR_MS, STAY_CLOSE_MS
from tidelog.coordinator.group.consumer.member import MemberState
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.wire.error_codes import ErrorCode as E


def orders(*partitions: int) -> frozenset[tuple[str, int]]:
    return frozenset(("orders", partition) for partition in partitions)


def pair() -> World:
    """a and b share the four partitions of orders: a has 0 and 1, b has 2 and 3, and both have said so."""
    world = World(orders=4)
    world.join("a", "orders")
    world.heartbeat("a", 2, owned=orders(0, 1, 2, 3))
    world.join("b", "orders")
    world.pass_time(1_000)
    world.heartbeat("a", 2)
    world.heartbeat("a", 2, owned=orders(0, 1))
    world.heartbeat("b", 2)
    assert world.told(world.heartbeat("b", 3, owned=orders(2, 3))) is None
    assert world.state() == "Stable"
    return world


# ---- joining


def test_the_first_member_gets_everything_at_once() -> None:
    world = World(orders=4)
    response = world.join("a", "orders", host="10.0.0.9")
    assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("a", 2, 5_000)
    assert world.told(response) == orders(0, 1, 2, 3)
    assert [type(record.key) for record in world.written] == [
        types.ConsumerGroupMemberMetadataKey,
        types.ConsumerGroupMetadataKey,
        types.ConsumerGroupTargetAssignmentMemberKey,
        types.ConsumerGroupTargetAssignmentMetadataKey,
        types.ConsumerGroupCurrentMemberAssignmentKey,
    ]
    group = world.group()
    assert (group.epoch, group.assignment_epoch) == (2, 2)
    assert group.assignment_timestamp_ms == world.now.wall_ms
    assert world.member("a").client_host == "10.0.0.9"
    assert world.state() == "Stable"


def test_who_waits_for_others_asks_again_soon() -> None:
    world = World(GroupSettings(consumer_assignment_interval_ms=0), orders=4)
    assert world.join("a", "orders").heartbeat_interval_ms == 5_000, "it is alone"
    assert world.heartbeat("a", 2).heartbeat_interval_ms == 5_000
    assert world.join("b", "orders").heartbeat_interval_ms == ASK_AGAIN_MS, "a has everything"
    assert world.heartbeat("b", 3).heartbeat_interval_ms == ASK_AGAIN_MS
    world.heartbeat("a", 2)
    world.heartbeat("a", 2, owned=orders(0, 1))
    assert world.heartbeat("b", 3).heartbeat_interval_ms == STAY_CLOSE_MS, "it has what it waited for"


def test_who_waits_for_a_target_asks_again_soon() -> None:
    world = World(GroupSettings(consumer_assignment_interval_ms=1_000), orders=4)
    world.join("a", "orders")
    assert world.join("b", "orders").heartbeat_interval_ms == ASK_AGAIN_MS
    assert world.heartbeat("a", 2).heartbeat_interval_ms == ASK_AGAIN_MS


def test_members_stay_close_for_a_while_after_an_assignment() -> None:
    world = pair()
    assert world.heartbeat("a", 3).heartbeat_interval_ms == STAY_CLOSE_MS
    world.pass_time(STAY_CLOSE_FOR_MS - 1)
    assert world.heartbeat("a", 3).heartbeat_interval_ms == STAY_CLOSE_MS
    world.pass_time(1)
    assert world.heartbeat("a", 3).heartbeat_interval_ms == 5_000


def test_an_interval_that_somebody_chose_is_kept() -> None:
    chosen = World(
        GroupSettings(consumer_assignment_interval_ms=0, consumer_heartbeat_interval_ms=3_000), orders=4
    )
    own = World(GroupSettings(consumer_assignment_interval_ms=0), orders=4)
    own.topics.configs["orders-readers"] = {"consumer.heartbeat.interval.ms": 3_000}
    for world in (chosen, own):
        world.join("a", "orders")
        assert world.join("b", "orders").heartbeat_interval_ms == 3_000
        assert world.heartbeat("b", 3).heartbeat_interval_ms == 3_000


def test_a_large_group_does_not_ask_too_often() -> None:
    world = World(GroupSettings(consumer_assignment_interval_ms=1_000), orders=4)
    for number in range(400):
        world.join(f"m{number}", "orders")
    assert world.heartbeat("m399", world.member("m399").epoch).heartbeat_interval_ms == 2 * 400


def test_the_times_of_a_group_are_its_own() -> None:
    world = World(orders=1)
    world.topics.configs["orders-readers"] = {
        "consumer.heartbeat.interval.ms": 700,
        "consumer.session.timeout.ms": 2_000,
    }
    assert world.join("a", "orders").heartbeat_interval_ms == 700
    world.pass_time(1_999)
    assert "a" in world.group().members
    world.pass_time(1)
    assert world.group().members == {}


def test_a_group_that_is_full_takes_no_more() -> None:
    world = World(GroupSettings(consumer_max_size=1), orders=1)
    world.join("a", "orders")
    assert world.join("b", "orders").error_code == E.GROUP_MAX_SIZE_REACHED
    assert world.join("a", "orders").error_code == E.NONE


def test_a_member_that_joins_again_is_told_everything_again() -> None:
    world = pair()
    response = world.join("a", "orders")
    assert (response.member_epoch, world.told(response)) == (3, orders(0, 1))
    assert world.written == []


# ---- what an answer says


def test_an_assignment_is_said_until_it_is_confirmed() -> None:
    world = World(orders=2)
    world.join("a", "orders")
    assert world.told(world.heartbeat("a", 2)) == orders(0, 1)
    assert world.told(world.heartbeat("a", 2, owned=orders(0))) == orders(0, 1)
    assert world.told(world.heartbeat("a", 2, owned=orders(0, 1))) is None
    assert world.told(world.heartbeat("a", 2)) is None


def test_a_full_heartbeat_is_told_everything() -> None:
    world = pair()
    full = world.heartbeat("a", 3, owned=orders(0, 1), topics=["orders"], rebalance_timeout_ms=60_000)
    assert world.told(full) == orders(0, 1)
    assert world.written == []


def test_a_new_coordinator_says_it_again_since_it_has_not_heard_the_confirmation() -> None:
    world = pair()
    world.fail_over()
    assert world.told(world.heartbeat("a", 3)) == orders(0, 1)
    assert world.told(world.heartbeat("a", 3, owned=orders(0, 1))) is None


# ---- handing over


def test_a_partition_goes_over_only_when_its_owner_has_confirmed() -> None:
    world = World(orders=4)
    world.join("a", "orders")
    joined = world.join("b", "orders")
    assert (joined.member_epoch, world.told(joined)) == (2, frozenset())
    assert world.state() == "Assigning"
    world.pass_time(1_000)

    asked = world.heartbeat("a", 2)
    assert (asked.member_epoch, world.told(asked)) == (2, orders(0, 1))
    assert world.member("a").state is MemberState.UNREVOKED_PARTITIONS
    waiting = world.heartbeat("b", 2)
    assert waiting.member_epoch == 3
    assert world.member("b").state is MemberState.UNRELEASED_PARTITIONS
    assert world.member("b").assigned == {}
    assert world.state() == "Reconciling"

    for still_owned in (None, orders(0, 1, 2, 3), orders(0, 1, 3)):
        assert world.heartbeat("a", 2, owned=still_owned).member_epoch == 2
        world.heartbeat("b", 3)
        assert world.member("b").assigned == {}

    assert world.heartbeat("a", 2, owned=orders(0, 1)).member_epoch == 3
    assert world.told(world.heartbeat("b", 3)) == orders(2, 3)
    assert world.state() == "Stable"
    world.assert_live_equals_replay()


def test_members_that_nothing_changes_for_are_not_asked_for_anything() -> None:
    """Six partitions in three pairs; when one member goes, its two are added to the others, who keep theirs."""
    world = World(GroupSettings(consumer_assignment_interval_ms=0), orders=6)
    for name in "abc":
        world.join(name, "orders")
    for _ in range(4):
        for name in "abc":
            member = world.member(name)
            owned = {("orders", partition) for held in member.assigned.values() for partition in held}
            world.heartbeat(name, member.epoch, owned=owned)
    assert world.state() == "Stable"
    before = {name: world.target(name) for name in "ab"}
    world.heartbeat("c", -1)
    for name in "ab":
        response = world.heartbeat(name, world.member(name).epoch)
        assert before[name] < (world.told(response) or frozenset())
        assert world.member(name).revoking == {}


def test_what_was_handed_back_before_it_was_given_up_is_had_again() -> None:
    """b goes before a has confirmed: what a was to give up is a's again (KAFKA-16147 lost its owner here)."""
    world = World(orders=4)
    world.join("a", "orders")
    world.join("b", "orders")
    world.pass_time(1_000)
    world.heartbeat("a", 2)
    world.heartbeat("b", -1)
    world.pass_time(1_000)
    world.heartbeat("a", 2)
    assert world.member("a").state is MemberState.UNREVOKED_PARTITIONS
    response = world.heartbeat("a", 2, owned=orders(0, 1))
    assert world.told(response) == orders(0, 1, 2, 3)
    assert len(world.group().owners) == 4
    world.assert_live_equals_replay()


def test_a_member_that_does_not_give_up_in_its_time_is_taken_out() -> None:
    world = World(orders=4)
    world.join("a", "orders", timeout_ms=10_000)
    world.join("b", "orders")
    world.pass_time(1_000)
    world.heartbeat("a", 2)
    world.pass_time(9_999)
    world.heartbeat("a", 2)
    world.heartbeat("b", 2)
    world.pass_time(1)
    assert "a" not in world.group().members
    assert world.heartbeat("a", 2).error_code == E.UNKNOWN_MEMBER_ID
    assert world.told(world.heartbeat("b", 3)) == orders(0, 1, 2, 3)


def test_a_new_coordinator_gives_a_member_its_time_anew() -> None:
    world = World(orders=4)
    world.join("a", "orders", timeout_ms=10_000)
    world.join("b", "orders", timeout_ms=10_000)
    world.pass_time(1_000)
    world.heartbeat("a", 2)
    world.pass_time(9_000)
    world.fail_over()
    world.pass_time(9_999)
    assert "a" in world.group().members
    world.pass_time(1)
    assert "a" not in world.group().members
    assert "b" in world.group().members


# ---- epochs


def test_an_epoch_from_the_future_is_fenced() -> None:
    world = pair()
    assert world.heartbeat("a", 4, owned=orders(0, 1)).error_code == E.FENCED_MEMBER_EPOCH


def test_the_previous_epoch_is_accepted_from_who_owns_nothing_it_should_not() -> None:
    """The answer with the new epoch may have been lost."""
    world = pair()
    assert world.member("a").previous_epoch == 2
    assert world.heartbeat("a", 2, owned=orders(0, 1)).member_epoch == 3
    assert world.heartbeat("a", 2, owned=orders(1)).member_epoch == 3
    assert world.heartbeat("a", 2, owned=orders(0, 1, 2)).error_code == E.FENCED_MEMBER_EPOCH
    assert world.heartbeat("a", 2).error_code == E.FENCED_MEMBER_EPOCH
    assert world.heartbeat("a", 1, owned=()).error_code == E.FENCED_MEMBER_EPOCH


def test_a_state_of_a_newer_release_makes_the_member_begin_anew() -> None:
    world = pair()
    key = types.ConsumerGroupCurrentMemberAssignmentKey("orders-readers", "a")
    value = world.member("a").assignment_value()
    value.state = 9
    world.groups.replay_current_assignment(key, value)
    assert world.heartbeat("a", 3).error_code == E.FENCED_MEMBER_EPOCH
    assert world.told(world.join("a", "orders")) == orders(0, 1)
    assert world.member("a").state is MemberState.STABLE


# ---- going


def test_who_leaves_leaves_no_trace_and_its_partitions_go_to_the_others() -> None:
    world = pair()
    response = world.heartbeat("b", -1)
    assert (response.error_code, response.member_id, response.member_epoch) == (E.NONE, "b", -1)
    assert [(type(record.key), record.value is None) for record in world.written] == [
        (types.ConsumerGroupCurrentMemberAssignmentKey, True),
        (types.ConsumerGroupTargetAssignmentMemberKey, True),
        (types.ConsumerGroupMemberMetadataKey, True),
        (types.ConsumerGroupMetadataKey, False),
    ]
    assert world.group().epoch == 4
    world.pass_time(1_000)
    assert world.told(world.heartbeat("a", 3)) == orders(0, 1, 2, 3)
    world.assert_live_equals_replay()


def test_the_last_one_leaves_a_group_that_the_next_need_not_wait_for() -> None:
    world = World(orders=1)
    world.join("a", "orders")
    world.heartbeat("a", -1)
    group = world.group()
    assert (group.epoch, group.assignment_epoch, group.assignment_timestamp_ms) == (3, 3, 0)
    assert world.state() == "Empty"
    assert world.groups.is_empty("orders-readers")
    response = world.join("b", "orders")
    assert (response.member_epoch, world.told(response)) == (4, orders(0))


@pytest.mark.parametrize("fails_once", [False, True])
def test_a_silent_member_is_taken_out_also_if_the_log_refuses_at_first(fails_once: bool) -> None:
    world = pair()
    world.pass_time(1_000)
    world.heartbeat("a", world.member("a").epoch)
    world.append_fails = fails_once
    world.pass_time(44_000)
    world.heartbeat("a", world.member("a").epoch)
    assert ("b" in world.group().members) == fails_once
    world.append_fails = False
    world.pass_time(40_000)
    world.heartbeat("a", world.member("a").epoch)
    world.pass_time(5_000)
    assert set(world.group().members) == {"a"}
    world.assert_live_equals_replay()


def test_a_heartbeat_keeps_a_member_alive() -> None:
    world = World(orders=1)
    world.join("a", "orders")
    for _ in range(5):
        world.pass_time(44_000)
        assert world.heartbeat("a", 2).error_code == E.NONE


def test_a_new_coordinator_gives_everybody_a_full_session() -> None:
    world = pair()
    world.pass_time(40_000)
    world.fail_over()
    world.pass_time(44_999)
    assert set(world.group().members) == {"a", "b"}
    world.pass_time(1)
    assert world.group().members == {}
