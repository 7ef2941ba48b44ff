"""Members that speak the classic protocol in a consumer group: what each of their requests is answered, and when they are told to join again."""

from __future__ import annotations

import pytest

from tests.coordinator.consumer.clients import Consumer
from tests.coordinator.migration.clients import (
    Classic,
    Kind,
    Phase,
    go_on,
    read_assignment,
    reads,
    settle,
    subscription,
)
from tests.coordinator.migration.world import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, World
from tidelog.coordinator.group.consumer.member import Member, MemberState
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.settings import GroupSettings, MigrationPolicy
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.leave_group import MemberIdentity

KINDS = pytest.mark.parametrize("kind", list(Kind))
RANGE = {"range": subscription(["orders"])}


def consumer_group(world: World, *names: str) -> list[Consumer]:
    members = [
        Consumer(world, name, topics=frozenset({"orders"}))  # type: ignore[arg-type]
        for name in names or ("n",)
    ]
    settle(world, *members)
    assert world.state() == "consumer Stable"
    return members


def member(world: World, member_id: str) -> Member:
    assert world.consumer is not None
    return world.consumer.members[member_id]


def step_to(client: Classic, phase: Phase) -> None:
    for _ in range(6):
        if client.phase is phase:
            return
        client.step()
    raise AssertionError(f"{client.name} is at {client.phase}, not {phase}")


# ---- JoinGroup


@KINDS
def test_a_classic_member_joins_a_consumer_group(kind: Kind) -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders", kind=kind)
    settle(world, first, second)
    assert world.state() == "consumer Stable"
    assert [len(reads(world, each)) for each in (first, second)] == [2, 2]
    assert second.protocol == kind.offers[0]
    assert second.generation == member(world, second.member_id).epoch
    assert not second.leads and second.others == []


def test_a_dynamic_member_is_given_an_id_first() -> None:
    world = World(orders=4)
    consumer_group(world)
    answer = world.join(protocols=RANGE, client="app").response
    assert answer.error_code == E.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("app-")
    assert world.members() == {"n"}
    again = world.join(answer.member_id, RANGE)
    assert again.error == E.NONE
    assert world.members() == {"n", answer.member_id}


def test_old_clients_are_not_asked_to_come_back() -> None:
    world = World(orders=4)
    consumer_group(world)
    answer = world.join(protocols=RANGE, version=3)
    assert answer.error == E.NONE
    assert answer.response.member_id in world.members()


def test_an_id_that_nobody_gave_out_is_not_taken() -> None:
    """It is of somebody who was in the group once, and may think that it still has partitions."""
    world = World(orders=4)
    consumer_group(world)
    assert world.join("somebody", RANGE).error == E.UNKNOWN_MEMBER_ID
    given = world.join(protocols=RANGE).response.member_id
    world.pass_time(SESSION_MS)
    assert world.join(given, RANGE).error == E.UNKNOWN_MEMBER_ID


def test_the_group_may_be_full() -> None:
    world = World(GroupSettings(consumer_max_size=1), orders=4)
    consumer_group(world)
    assert world.join(protocols=RANGE).error == E.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("session_ms", [100, 2**31 - 1])
def test_session_timeouts_have_limits(session_ms: int) -> None:
    world = World(orders=4)
    consumer_group(world)
    assert world.join(protocols=RANGE, session_ms=session_ms).error == E.INVALID_SESSION_TIMEOUT


def test_only_consumers_may_join() -> None:
    world = World(orders=4)
    consumer_group(world)
    for protocols, kind in ((RANGE, "connect"), ({}, "consumer"), ({"range": b"what?"}, "consumer")):
        assert world.join(protocols=protocols, protocol_type=kind).error == E.INCONSISTENT_GROUP_PROTOCOL


def test_classic_members_have_an_assignor_in_common() -> None:
    """The group could not move back otherwise."""
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders", offers=["range", "sticky"])
    settle(world, first, second)
    assert world.join(protocols={"roundrobin": RANGE["range"]}).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(protocols={"sticky": RANGE["range"]}).error == E.MEMBER_ID_REQUIRED


def test_a_lost_answer_costs_a_second_join_and_nothing_else() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    given = world.join(protocols=RANGE).response.member_id
    generations = {world.join(given, RANGE).response.generation_id for _ in range(2)}
    log = list(world.log)
    generations.add(world.join(given, RANGE).response.generation_id)
    assert len(generations) == 1
    assert world.log == log
    go_on(first)
    world.assert_live_equals_replay()


def test_a_new_subscription_is_taken_from_the_next_join() -> None:
    world = World(orders=4, payments=2)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    settle(world, first, second)
    second.topics = frozenset({"payments"})
    second.phase = Phase.OUT
    settle(world, first, second)
    assert second.owned == {("payments", 0), ("payments", 1)}
    assert len(first.owned) == 4


# ---- SyncGroup


def test_the_assignment_is_in_the_version_of_the_subscription() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders", kind=Kind.COOPERATIVE)
    settle(world, first, second)
    answer = world.sync(second.member_id, second.generation).response
    assert int.from_bytes(answer.assignment[:2], "big") == Kind.COOPERATIVE.version
    assert read_assignment(answer.assignment) == second.owned


def test_newer_clients_name_the_protocol() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders", offers=["range", "sticky"])
    settle(world, first, second)

    def sync(protocol: str | None) -> E:
        return world.sync(second.member_id, second.generation, version=5, protocol=protocol).error

    assert (sync("range"), sync("sticky")) == (E.NONE, E.NONE)
    assert (sync("roundrobin"), sync(None)) == (
        E.INCONSISTENT_GROUP_PROTOCOL,
        E.INCONSISTENT_GROUP_PROTOCOL,
    )
    answer = world.sync(second.member_id, second.generation, version=5, protocol="range").response
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


def test_only_members_of_the_classic_protocol_sync_and_beat() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    for member_id in ("nobody", "n"):
        assert world.sync(member_id, first.epoch).error == E.UNKNOWN_MEMBER_ID
        assert world.heartbeat(member_id, first.epoch) == E.UNKNOWN_MEMBER_ID


def test_another_generation_is_refused() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    settle(world, first, second)
    for generation in (second.generation - 1, second.generation + 1):
        assert world.sync(second.member_id, generation).error == E.ILLEGAL_GENERATION
        assert world.heartbeat(second.member_id, generation) == E.ILLEGAL_GENERATION


def test_who_syncs_when_there_is_a_newer_target_must_join_again() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    settle(world, first, second)
    second.phase = Phase.OUT
    step_to(second, Phase.SYNCS)
    world.pass_time(2_000)
    world.enter("n2", "orders")
    assert second.sync().error == E.REBALANCE_IN_PROGRESS


# ---- rebalances


def test_an_eager_member_gives_up_everything_by_joining() -> None:
    world = World(orders=6)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    settle(world, first, second)
    world.enter("n2", "orders")
    go_on(first)
    assert second.heartbeat() == E.REBALANCE_IN_PROGRESS
    had = second.owned
    second.step()
    now = member(world, second.member_id)
    assert now.state is not MemberState.UNREVOKED_PARTITIONS
    assert second.owned == frozenset() != had
    step_to(second, Phase.IN)
    assert second.owned < had


def test_a_cooperative_member_is_told_what_to_give_up_and_joins_again() -> None:
    world = World(orders=6)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders", kind=Kind.COOPERATIVE)
    settle(world, first, second)
    had, generation = second.owned, second.generation
    world.enter("n2", "orders")
    assert second.heartbeat() == E.REBALANCE_IN_PROGRESS
    step_to(second, Phase.SYNCS)
    now = member(world, second.member_id)
    assert now.state is MemberState.UNREVOKED_PARTITIONS
    assert second.generation == now.epoch == generation, "its epoch waits until it has given up"
    assert second.owned == had
    lost = next(iter(now.revoking.values()))
    assert all(("orders", index) in had for index in lost)
    second.step()
    assert second.owned == had - {("orders", index) for index in lost}
    assert second.phase is Phase.OUT
    step_to(second, Phase.IN)
    assert second.generation > generation
    assert member(world, second.member_id).state is MemberState.STABLE


def test_what_is_still_with_others_comes_later() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    step_to(second, Phase.IN)
    assert second.owned == frozenset()
    assert member(world, second.member_id).state is MemberState.UNRELEASED_PARTITIONS
    assert second.heartbeat() == E.NONE, "nothing is free yet: joining again would bring nothing"
    for _ in range(3):
        go_on(first)
    assert second.heartbeat() == E.REBALANCE_IN_PROGRESS
    step_to(second, Phase.IN)
    assert len(second.owned) == 2


def test_the_first_who_finds_that_a_target_is_due_brings_it_about() -> None:
    world = World(orders=6)
    consumer_group(world)
    second, third = (Classic(world, f"c{number}", "orders") for number in range(2))
    step_to(second, Phase.IN)
    step_to(third, Phase.IN)  # within the interval between two targets
    group = world.consumer
    assert group is not None and group.epoch > group.assignment_epoch
    assert third.heartbeat() == E.NONE
    world.pass_time(1_000)
    assert third.heartbeat() == E.REBALANCE_IN_PROGRESS
    step_to(third, Phase.IN)
    assert group.epoch == group.assignment_epoch == third.generation
    assert second.heartbeat() == E.REBALANCE_IN_PROGRESS


def test_nobody_joins_again_for_nothing() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    settle(world, first, second)
    for _ in range(10):
        go_on(first)
        assert second.heartbeat() == E.NONE
        world.pass_time(3_000)


def test_a_group_that_has_only_classic_members_left_goes_on() -> None:
    """A policy forbids the way back: nobody is left whose heartbeats see to targets and topics."""
    policy = MigrationPolicy.UPGRADE
    settings = GroupSettings(initial_rebalance_delay_ms=DELAY_MS, consumer_migration_policy=policy)
    world = World(settings, orders=4)
    (first,) = consumer_group(world)
    second, third = (Classic(world, f"c{number}", "orders") for number in range(2))
    settle(world, first, second, third)
    first.leave()
    settle(world, second, third)
    assert world.state() == "consumer Stable"
    world.grow_topic("orders", 7)
    settle(world, second, third)
    assert sorted([len(second.owned), len(third.owned)]) == [3, 4]
    third.leave()
    settle(world, second)
    assert world.state() == "consumer Stable"


# ---- deadlines


def test_a_session_is_as_long_as_the_member_asked_for() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    settle(world, first, second)
    second.heartbeat()
    world.pass_time(SESSION_MS - 1)
    assert second.heartbeat() == E.NONE
    world.pass_time(SESSION_MS)
    assert second.heartbeat() == E.UNKNOWN_MEMBER_ID
    assert f"silent for {SESSION_MS} ms" in world.events(Event.TIMED_OUT)


def test_a_new_coordinator_knows_how_long_sessions_are() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    settle(world, first, second)
    world.fail_over()
    world.pass_time(SESSION_MS - 1)
    assert second.member_id in world.members()
    world.pass_time(1)
    assert second.member_id not in world.members()


def test_who_does_not_sync_in_time_is_taken_out() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    step_to(second, Phase.SYNCS)
    for _ in range(REBALANCE_MS // 1_000):
        assert second.member_id in world.members()
        world.heartbeat(second.member_id, second.generation)
        go_on(first)
        world.pass_time(1_000)
    assert second.member_id not in world.members()
    assert "did not ask for its assignment" in world.events(Event.MISSED_REBALANCE)[0]
    world.assert_live_equals_replay()


def test_who_syncs_is_not_taken_out() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    settle(world, first, second)
    for _ in range(3 * REBALANCE_MS // 1_000):
        go_on(first)
        second.step()
        world.pass_time(1_000)
    assert second.member_id in world.members()
    assert world.events(Event.MISSED_REBALANCE) == []


# ---- LeaveGroup


def test_a_member_leaves_as_librdkafka_does() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    settle(world, first, second)
    assert world.leave_alone(second.member_id) == E.NONE
    assert world.members() == {"n"}
    assert world.leave_alone(second.member_id) == E.UNKNOWN_MEMBER_ID
    settle(world, first)


def test_many_leave_with_one_request_and_one_new_epoch() -> None:
    world = World(orders=6)
    first, another = consumer_group(world, "n", "m")
    second = Classic(world, "c", "orders")
    static = Classic(world, "s", "orders", instance="i")
    settle(world, first, another, second, static)
    assert world.consumer is not None
    epoch = world.consumer.epoch
    told = world.leave(
        MemberIdentity("nobody"),
        MemberIdentity(second.member_id, None, "bored"),
        MemberIdentity("", "i"),
        MemberIdentity("m"),
        MemberIdentity("", "other"),
        MemberIdentity("wrong", "i"),
    )
    assert [each.error_code for each in told.members] == [
        E.UNKNOWN_MEMBER_ID,
        E.NONE,
        E.NONE,
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
        E.FENCED_INSTANCE_ID,
    ]
    assert world.members() == {"n"}
    assert world.consumer.epoch == epoch + 1
    world.assert_live_equals_replay()
    another.alive = False
    settle(world, first)
    assert "bored" in world.events(Event.LEFT)


def test_all_may_leave_at_once() -> None:
    world = World(orders=6)
    first, another = consumer_group(world, "n", "m")
    world.leave(MemberIdentity("n"), MemberIdentity("m"))
    assert world.state() == "consumer Empty"
    world.assert_live_equals_replay()
    first.alive = another.alive = False
    settle(world, *[Classic(world, "c", "orders")])
    assert world.state() == "classic Stable"


def test_a_leave_that_nobody_means_changes_nothing() -> None:
    world = World(orders=6)
    consumer_group(world)
    log = list(world.log)
    assert [each.error_code for each in world.leave(MemberIdentity("x")).members] == [E.UNKNOWN_MEMBER_ID]
    assert world.log == log


# ---- static members


def test_a_static_member_is_replaced_and_the_old_one_fenced() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    old = Classic(world, "s", "orders", instance="i")
    settle(world, first, old)
    had = old.owned
    new = Classic(world, "s", "orders", instance="i")
    settle(world, first, new)
    assert new.owned == had, "a restart moves nothing"
    assert new.member_id != old.member_id
    assert old.heartbeat() == E.FENCED_INSTANCE_ID
    assert world.sync("other", 1, instance="i").error == E.FENCED_INSTANCE_ID
    assert world.join("other", RANGE, instance="i").error == E.FENCED_INSTANCE_ID
    assert world.join("other", RANGE, instance="j").error == E.UNKNOWN_MEMBER_ID


def test_a_static_member_of_the_consumer_protocol_comes_back_as_a_classic_one() -> None:
    world = World(orders=6)
    first, another = consumer_group(world, "n", "m")
    static = Consumer(world, "s", topics=frozenset({"orders"}), instance_id="i")  # type: ignore[arg-type]
    settle(world, first, another, static)
    had = reads(world, static)
    static.leave(for_now=True)
    again = Classic(world, "s", "orders", instance="i")
    settle(world, first, another, again)
    assert again.owned == had
    assert world.state() == "consumer Stable"


def test_offsets_of_classic_members_are_checked_by_their_generation() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    settle(world, first, second)
    place = next(iter(second.owned))
    assert world.commit(second.member_id, second.generation, place, 1, version=5) == E.NONE
    assert world.commit(second.member_id, second.generation + 1, place, 2) == E.ILLEGAL_GENERATION
    assert world.commit("nobody", second.generation, place, 2) == E.UNKNOWN_MEMBER_ID
    assert world.committed(place) == 1


def test_others_see_which_protocol_each_member_speaks() -> None:
    world = World(orders=4)
    (first,) = consumer_group(world)
    second = Classic(world, "c", "orders")
    settle(world, first, second)
    outcome = world.shard.describe_consumer_group(GROUP, object())
    types = {each.member_id: each.member_type for each in outcome.answers[0].response.members}
    assert types == {"n": 1, second.member_id: 0}
