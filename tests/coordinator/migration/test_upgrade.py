"""A member with the consumer protocol joins a classic group: the group becomes a consumer group, in one batch, or stays as it is, with a reason."""

from __future__ import annotations

import pytest

from tests.coordinator.consumer.clients import Consumer
from tests.coordinator.migration.clients import (
    Classic,
    Kind,
    assignment,
    reads,
    settle,
    subscription,
)
from tests.coordinator.migration.world import DELAY_MS, GROUP, SESSION_MS, World
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.consumer.member import MemberState
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.records import GroupMetadataKey
from tidelog.coordinator.group.settings import GroupSettings, MigrationPolicy
from tidelog.wire.error_codes import ErrorCode as E

KINDS = pytest.mark.parametrize("kind", list(Kind))


def classic_group(world: World, count: int = 2, kind: Kind = Kind.EAGER) -> list[Classic]:
    consumers = [Classic(world, f"c{number}", "orders", kind=kind) for number in range(count)]
    settle(world, *consumers)
    assert world.state() == "classic Stable"
    return consumers


def newcomer(world: World, name: str = "n") -> Consumer:
    return Consumer(world, name, topics=frozenset({"orders"}))  # type: ignore[arg-type]


@KINDS
def test_the_group_becomes_a_consumer_group_in_one_batch(kind: Kind) -> None:
    world = World(orders=6)
    first, second = classic_group(world, kind=kind)
    generation = first.generation
    response = world.enter("n", "orders")
    assert response.error_code == 0
    assert world.wrote_a_move()
    assert world.written[0].key == GroupMetadataKey(GROUP)
    assert world.written[0].value is None
    assert world.classic is None
    group = world.consumer
    assert group is not None
    assert (group.epoch, group.assignment_epoch) == (generation + 1, generation + 1)
    assert response.member_epoch == generation + 1
    for each in (first, second):
        member = group.members[each.member_id]
        assert (member.epoch, member.previous_epoch, member.state) == (
            generation,
            generation,
            MemberState.STABLE,
        )
        assert member.classic is not None
        assert member.classic.session_timeout_ms == SESSION_MS
        assert [each.name for each in member.classic.supported_protocols] == list(kind.offers)
        assert {("orders", index) for held in member.assigned.values() for index in held} == each.owned
        assert member.topic_names == {"orders"}
    # All partitions are still with the others: the new member gets nothing before they have joined again.
    assert group.members["n"].assigned == {}
    world.assert_live_equals_replay()


@KINDS
def test_all_get_their_share(kind: Kind) -> None:
    world = World(orders=6)
    first, second = classic_group(world, kind=kind)
    third = newcomer(world)
    settle(world, first, second, third)
    assert world.state() == "consumer Stable"
    assert [len(reads(world, each)) for each in (first, second, third)] == [2, 2, 2]


def test_a_cooperative_member_keeps_what_it_may_keep() -> None:
    world = World(orders=6)
    first, second = classic_group(world, kind=Kind.COOPERATIVE)
    before = first.owned, second.owned
    settle(world, first, second, newcomer(world))
    for each, had in zip((first, second), before, strict=True):
        assert each.owned < had
        assert each.errors[-1:] in ([], [E.REBALANCE_IN_PROGRESS])


def test_the_history_says_why() -> None:
    world = World(orders=6)
    classic_group(world)
    world.enter("n", "orders")
    [detail] = world.events(Event.MIGRATED)
    assert detail == "from the classic to the consumer protocol: new-app (/10.0.0.2) joined with that one"


def test_members_that_wait_in_a_join_are_told_to_join_again() -> None:
    world = World(orders=6)
    first, second = classic_group(world)
    third = Classic(world, "c2", "orders")
    third.step()
    third.step()
    assert third.asked is not None and third.asked.waits
    world.enter("n", "orders")
    assert third.asked.error == E.REBALANCE_IN_PROGRESS
    assert third.asked.response.member_id == third.member_id
    world.assert_live_equals_replay()
    settle(world, first, second, third, newcomer(world, "n"))


def test_members_that_wait_in_a_sync_are_told_to_join_again() -> None:
    world = World(orders=6)
    first, second = classic_group(world)
    third = Classic(world, "c2", "orders")
    everybody = first, second, third
    third.step()  # is given an id, so the others wait for it
    for each in everybody:
        each.join()
    for each in everybody:
        each.read()
    assert world.classic is not None and world.classic.state is State.COMPLETING_REBALANCE
    follower = next(each for each in everybody if not each.leads)
    waiting = follower.sync()
    assert waiting.waits
    world.enter("n", "orders")
    assert waiting.error == E.REBALANCE_IN_PROGRESS
    settle(world, *everybody, newcomer(world, "n"))


def test_a_group_that_has_had_no_generation_is_converted_too() -> None:
    world = World(orders=6)
    first = Classic(world, "c0", "orders")
    first.step()
    first.step()
    assert world.classic is not None and world.classic.generation == 0
    response = world.enter("n", "orders")
    assert response.error_code == 0
    assert (
        world.consumer is not None
        and world.consumer.epoch > world.consumer.members[first.member_id].epoch > 0
    )
    settle(world, first, newcomer(world, "n"))


def test_a_rebalance_that_was_called_off_does_not_hide_what_members_still_read() -> None:
    """The assignments of a generation that never got any are wiped, but cooperative members read on."""
    world = World(orders=6)
    first, second = classic_group(world, kind=Kind.COOPERATIVE)
    for each in (first, second):
        each.join()
    first.read()
    second.read()
    third = Classic(world, "c2", "orders", kind=Kind.COOPERATIVE)
    third.step()
    third.step()  # begins the next rebalance in the middle of this one
    group = world.classic
    assert group is not None
    assert group.members[first.member_id].assignment == b""
    world.enter("n", "orders")
    converted = world.consumer
    assert converted is not None
    assert {key for key, owner in converted.owners.items() if owner == "n"} == set()
    for each in (first, second):
        held = converted.members[each.member_id].assigned
        assert {("orders", index) for indexes in held.values() for index in indexes} == each.owned
    settle(world, first, second, third, newcomer(world, "n"))


def test_what_a_member_has_not_heard_that_it_must_give_up_is_still_its_own() -> None:
    """Generation 2 took a partition from a cooperative member, which has not asked for its assignment yet."""
    world = World(orders=2)
    first = Classic(world, "c0", "orders", kind=Kind.COOPERATIVE)
    settle(world, first)
    assert first.owned == {("orders", 0), ("orders", 1)}
    first.join()
    first.read()
    plan = {first.member_id: assignment([("orders", 0)])}
    world.sync(first.member_id, first.generation, plan)  # the answer is lost
    world.enter("n", "orders")
    group = world.consumer
    assert group is not None
    assert set(group.owners.values()) == {first.member_id}
    settle(world, first, newcomer(world, "n"))


def test_a_member_that_never_joins_again_loses_its_partitions_after_its_rebalance_timeout() -> None:
    world = World(orders=4)
    (first,) = classic_group(world, 1)
    third = newcomer(world, "n")
    for _ in range(40):
        third.act()
        third.heartbeat()
        third.act()
        world.heartbeat(first.member_id, first.generation)  # alive, but does not listen
        world.pass_time(1_000)
    assert world.members() == {"n"}
    assert len(third.owned) == 4
    assert "did not join again" in world.events(Event.MISSED_REBALANCE)[0]


def test_a_member_that_is_silent_loses_its_place_after_its_own_session_timeout() -> None:
    world = World(orders=4)
    first, _second = classic_group(world)
    world.enter("n", "orders")
    world.pass_time(SESSION_MS - 1)
    assert first.member_id in world.members()
    world.pass_time(1)
    assert world.members() == {"n"}
    world.assert_live_equals_replay()


def test_the_groups_offsets_stay_as_they_are() -> None:
    world = World(orders=4)
    first, _second = classic_group(world)
    assert world.commit(first.member_id, first.generation, ("orders", 3), 42) == E.NONE
    world.enter("n", "orders")
    assert world.committed(("orders", 3)) == 42
    # The member's generation is still good for commits, until it joins again.
    assert world.commit(first.member_id, first.generation, ("orders", 3), 43, version=7) == E.NONE
    assert world.commit(first.member_id, first.generation + 1, ("orders", 3), 44) == E.ILLEGAL_GENERATION
    assert world.committed(("orders", 3)) == 43


def test_a_static_member_comes_back_with_the_other_protocol() -> None:
    world = World(orders=4)
    first, second = (Classic(world, f"c{number}", "orders", instance=f"i{number}") for number in range(2))
    settle(world, first, second)
    had = first.owned
    first.leave()
    again = newcomer(world, "n")
    again.instance_id = "i0"
    again.heartbeat()
    again.act()
    # It wants what it wanted, so nothing moves and nobody is disturbed.
    assert reads(world, again) == had
    assert second.heartbeat() == E.NONE
    settle(world, second, again)
    assert first.heartbeat() == E.FENCED_INSTANCE_ID


def test_the_newcomer_may_subscribe_to_something_else_or_nothing() -> None:
    world = World(orders=4, payments=2)
    first, second = classic_group(world)
    response = world.enter("n")
    assert response.error_code == 0
    assert [each.heartbeat() for each in (first, second)] == [E.NONE, E.NONE]
    world.assert_live_equals_replay()


# ---- groups that stay as they are


def refusal(world: World) -> str:
    log = list(world.log)
    response = world.enter("n", "orders")
    assert response.error_code == E.GROUP_ID_NOT_FOUND
    assert world.log == log
    assert world.consumer is None
    return response.error_message or ""


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_a_policy_may_forbid_it(policy: MigrationPolicy) -> None:
    world = World(
        GroupSettings(initial_rebalance_delay_ms=DELAY_MS, consumer_migration_policy=policy), orders=2
    )
    first, second = classic_group(world)
    assert f"group.consumer.migration.policy is {policy.value}; stop all of them first" in refusal(world)
    assert [each.heartbeat() for each in (first, second)] == [E.NONE, E.NONE]


def test_a_group_of_other_clients_than_consumers_stays() -> None:
    world = World(orders=2)
    first = world.join(protocols={"default": b"x"}, protocol_type="connect", version=3)
    world.pass_time(DELAY_MS)
    assert first.error == E.NONE
    assert "of type connect; use another group id" in refusal(world)


def test_a_group_that_is_too_large_stays() -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=DELAY_MS, consumer_max_size=1)
    world = World(settings, orders=2)
    classic_group(world)
    assert "it has 2 members, and group.consumer.max.size allows 1" in refusal(world)


def test_a_group_with_no_room_for_the_newcomer_stays() -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=DELAY_MS, consumer_max_size=2)
    world = World(settings, orders=2)
    first, second = classic_group(world)
    assert world.enter("n", "orders").error_code == E.GROUP_MAX_SIZE_REACHED
    assert world.state() == "classic Stable"
    assert [each.heartbeat() for each in (first, second)] == [E.NONE, E.NONE]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (b"\0", "cannot be read"),
        (assignment([("orders", 0)], user_data=b"secret"), "more than partitions"),
    ],
)
def test_a_group_whose_assignments_are_not_kafkas_stays(given: bytes, why: str) -> None:
    world = World(orders=2)
    first = world.join(protocols={"range": subscription(["orders"])}, version=3)
    world.pass_time(DELAY_MS)
    member_id, generation = first.response.member_id, first.response.generation_id
    world.sync(member_id, generation, {member_id: given})
    assert why in refusal(world)
    assert world.heartbeat(member_id, generation) == E.NONE


def test_a_group_whose_assignor_gives_a_partition_to_two_stays() -> None:
    world = World(orders=2)
    joins = [world.join(protocols={"range": subscription(["orders"])}, version=3) for _ in range(2)]
    world.pass_time(2 * DELAY_MS)
    ids = [each.response.member_id for each in joins]
    plan = {member_id: assignment([("orders", 0)]) for member_id in ids}
    leader = joins[0].response.leader
    world.sync(leader, joins[0].response.generation_id, plan)
    assert "a partition has one owner" in refusal(world)


def test_a_group_with_a_subscription_that_cannot_be_read_stays() -> None:
    world = World(orders=2)
    waiting = world.join(protocols={"range": b"what?"}, version=3)
    assert "cannot be read" in refusal(world)
    assert waiting.waits
    world.pass_time(DELAY_MS)
    assert waiting.error == E.NONE


@pytest.mark.parametrize("epoch", [-1, -2])
def test_nobody_leaves_a_classic_group_by_heartbeat(epoch: int) -> None:
    world = World(orders=2)
    classic_group(world)
    assert world.beat("n", epoch, instance_id="i").error_code == E.GROUP_ID_NOT_FOUND


def test_who_was_a_member_before_the_group_moved_back_is_told_to_begin_anew() -> None:
    world = World(orders=2)
    classic_group(world)
    response = world.beat("n", 7, owned=())
    assert response.error_code == E.UNKNOWN_MEMBER_ID
    assert world.enter("n", "orders").error_code == E.NONE


def test_a_request_that_makes_no_sense_moves_nothing() -> None:
    world = World(orders=2)
    classic_group(world)
    assert world.beat("n", 0, owned=()).error_code == E.INVALID_REQUEST
    assert world.state() == "classic Stable"


def test_a_move_that_cannot_be_written_did_not_happen() -> None:
    world = World(orders=4)
    first, second = classic_group(world)
    third = Classic(world, "c2", "orders")
    third.step()
    third.step()
    waiting = third.asked
    world.refuses = E.COORDINATOR_NOT_AVAILABLE
    response = world.enter("n", "orders")
    assert response.error_code == E.COORDINATOR_NOT_AVAILABLE
    assert waiting is not None and waiting.error == E.REBALANCE_IN_PROGRESS
    assert world.consumer is None
    settle(world, first, second, third)
    assert world.state() == "classic Stable"
    settle(world, first, second, third, newcomer(world, "n"))
