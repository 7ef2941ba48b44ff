"""Classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; generations, held answers, static members, silence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, code
from tests.broker.group_wire import (
    Connect,
    Member,
    await_coordinators,
    committed_offset,
    eventually,
    group_broker,
    joined_together,
    left,
    new_id,
    rejoined,
    stable,
    subscription,
)

LEAST_SESSION_MS = 6000
"""The shortest session timeout that a broker with stock settings grants."""


@pytest.fixture(scope="module")
def shared_broker(foreign: bool) -> Iterator[tuple[str, int]]:
    yield from group_broker(foreign)


@pytest.fixture
def group() -> str:
    return new_id()


@pytest.fixture
def somebody(wire: Wire, group: str) -> Member:
    """About to join."""
    return Member(wire, group)


# ---- every version


@pytest.mark.parametrize("version", range(10))
def test_the_life_of_a_member_in_every_version(somebody: Member, version: int) -> None:
    """JoinGroup 0-9, SyncGroup 0-5, Heartbeat 0-4, LeaveGroup 0-5."""
    answer = somebody.join(version)
    assert (answer.generation_id, answer.protocol_name, answer.leader) == (1, "range", somebody.id)
    assert [(each.member_id, each.metadata) for each in answer.members] == [(somebody.id, subscription("t"))]
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert not answer.skip_assignment
    synced = somebody.sync({somebody.id: b"yours"}, min(version, 5))
    assert (code(synced), synced.assignment) == ("NONE", b"yours")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert somebody.heartbeat(min(version, 4)) == "NONE"
    assert somebody.leave(min(version, 5)) == "NONE"
    assert somebody.heartbeat(min(version, 4)) == "UNKNOWN_MEMBER_ID"


@pytest.mark.parametrize("version", [0, 3, 4, 5, 6, 7, 9])
def test_two_members_in_versions_that_differ(connect: Connect, group: str, version: int) -> None:
    first, second = Member(connect(), group), Member(connect(), group)
    first.join(version)
    if version >= 4:
        second.get_id()
    second.send_join(version)
    eventually(lambda: first.heartbeat(min(version, 4)) == "REBALANCE_IN_PROGRESS")
    first.send_join(version)
    answers = [first.joined(), second.joined()]
    assert [answer.generation_id for answer in answers] == [2, 2]
    assert [answer.leader for answer in answers] == [first.id, first.id]
    assert [len(answer.members) for answer in answers] == [2, 0]


# ---- member ids


def test_a_member_is_given_an_id_and_comes_again_with_it(somebody: Member) -> None:
    somebody.get_id()
    client, _, random_part = somebody.id.partition("-")
    assert (client, len(random_part)) == ("wire", 36)
    assert somebody.heartbeat() == "UNKNOWN_MEMBER_ID", "not a member yet"
    assert somebody.join().members[0].member_id == somebody.id


def test_an_id_that_was_given_out_may_leave_at_once(somebody: Member) -> None:
    somebody.get_id()
    assert somebody.leave() == "NONE"
    assert code(somebody.ask_to_join()) == "UNKNOWN_MEMBER_ID"


@pytest.mark.parametrize("version", range(10))
def test_ids_that_nobody_gave(connect: Connect, group: str, version: int) -> None:
    stranger = Member(connect(), group)
    stranger.id = "made-up"
    answer = stranger.ask_to_join(version)
    assert (code(answer), answer.member_id, answer.generation_id) == ("UNKNOWN_MEMBER_ID", "made-up", -1)
    stable(connect, group)
    assert code(stranger.ask_to_join(version)) == "UNKNOWN_MEMBER_ID"


# ---- joins that are refused


def test_groups_without_a_name(wire: Wire) -> None:
    nameless = Member(wire, "")
    assert code(nameless.ask_to_join()) == "INVALID_GROUP_ID"
    assert code(nameless.sync(protocol_name="range")) == "INVALID_GROUP_ID"
    assert nameless.heartbeat() == "INVALID_GROUP_ID"
    assert left(wire, "", ("x", None)) == ("INVALID_GROUP_ID",)


@pytest.mark.parametrize(
    ("session_timeout_ms", "expected"),
    [
        (LEAST_SESSION_MS - 1, "INVALID_SESSION_TIMEOUT"),
        (LEAST_SESSION_MS, "MEMBER_ID_REQUIRED"),
        (1_800_000, "MEMBER_ID_REQUIRED"),
        (1_800_001, "INVALID_SESSION_TIMEOUT"),
        (-1, "INVALID_SESSION_TIMEOUT"),
    ],
)
def test_session_timeouts(somebody: Member, session_timeout_ms: int, expected: str) -> None:
    assert code(somebody.ask_to_join(session_timeout_ms=session_timeout_ms)) == expected


@pytest.mark.parametrize("changes", [{"protocols": []}, {"protocol_type": ""}])
def test_a_member_names_its_protocols(somebody: Member, changes: dict[str, Any]) -> None:
    assert code(somebody.ask_to_join(**changes)) == "INCONSISTENT_GROUP_PROTOCOL"
    assert code(somebody.ask_to_join(3, **changes)) == "INCONSISTENT_GROUP_PROTOCOL"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"protocol_type": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocols": {"sticky": b""}}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocols": {"sticky": b"", "range": b""}}, "MEMBER_ID_REQUIRED"),
    ],
    ids=["another type", "nothing in common", "one in common"],
)
def test_members_of_a_group_speak_alike(
    connect: Connect, group: str, settings: dict[str, Any], expected: str
) -> None:
    stable(connect, group)
    assert code(Member(connect(), group, **settings).ask_to_join()) == expected


def test_the_protocol_that_most_members_prefer_is_chosen_from_what_all_can(
    connect: Connect, group: str
) -> None:
    first = Member(connect(), group, protocols={"a": b"1a", "b": b"1b", "c": b"1c"})
    second = Member(connect(), group, protocols={"d": b"2d", "b": b"2b", "a": b"2a"})
    third = Member(connect(), group, protocols={"b": b"3b", "a": b"3a"})
    assert first.join().protocol_name == "a"
    for member in (second, third):
        member.get_id()
        member.send_join()
    leaders, *others = rejoined(first, second, third)
    assert {answer.protocol_name for answer in (leaders, *others)} == {"b"}
    assert {each.member_id: each.metadata for each in leaders.members} == {
        first.id: b"1b",
        second.id: b"2b",
        third.id: b"3b",
    }
    assert [answer.members for answer in others] == [[], []]


# ---- rebalances


def test_a_join_is_held_until_the_others_have_joined_again(
    connect: Connect, group: str, topic: Topic
) -> None:
    (first,) = stable(connect, group)
    second = Member(connect(), group)
    second.get_id()
    second.send_join()
    eventually(lambda: first.heartbeat() == "REBALANCE_IN_PROGRESS")
    assert second.wire.is_silent()
    assert code(first.sync()) == "REBALANCE_IN_PROGRESS"
    assert first.commit(topic, 5) == "NONE", "what was read before the rebalance still counts"
    assert committed_offset(first.wire, group, topic) == 5
    rejoined(first, second)
    assert (first.generation, second.generation) == (2, 2)
    assert first.heartbeat() == second.heartbeat() == "NONE", "alive while the leader assigns"
    assert first.heartbeat(generation_id=1) == "ILLEGAL_GENERATION"


def test_followers_that_sync_first_wait_for_the_leader(connect: Connect, group: str) -> None:
    leader, second, third = joined_together(connect, group, 3)
    for follower in (second, third):
        follower.send_sync()
        assert follower.wire.is_silent()
    assert code(leader.sync({leader.id: b"one", second.id: b"two", "who": b"?"})) == "NONE"
    assert second.wire.receive().assignment == b"two"
    told = third.wire.receive()
    assert (code(told), told.assignment) == ("NONE", b""), "the leader had nothing for it"
    assert third.sync({third.id: b"mine!"}).assignment == b"", "followers assign nothing"
    assert second.sync().assignment == b"two", "again, as often as it is asked for"


def test_a_waiting_sync_ends_with_the_next_rebalance(connect: Connect, group: str) -> None:
    leader, follower = joined_together(connect, group, 2)
    follower.send_sync()
    assert follower.wire.is_silent()
    third = Member(connect(), group)
    third.get_id()
    third.send_join()
    assert code(follower.wire.receive()) == "REBALANCE_IN_PROGRESS"
    assert code(leader.sync({leader.id: b"late"})) == "REBALANCE_IN_PROGRESS"
    follower.send_join()
    assert [len(answer.members) for answer in rejoined(leader, follower, third)] == [3, 0, 0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"generation_id": 7}, "ILLEGAL_GENERATION"),
        ({"generation_id": 0}, "ILLEGAL_GENERATION"),
        ({"member_id": "who"}, "UNKNOWN_MEMBER_ID"),
        ({"member_id": ""}, "UNKNOWN_MEMBER_ID"),
        ({"group_id": "no-such-group"}, "UNKNOWN_MEMBER_ID"),
        ({"protocol_name": "sticky"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocol_type": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocol_name": None}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocol_type": None}, "INCONSISTENT_GROUP_PROTOCOL"),
    ],
    ids=str,
)
def test_syncs_that_are_refused(connect: Connect, group: str, changes: dict[str, Any], expected: str) -> None:
    (member,) = stable(connect, group)
    assert code(member.sync(**changes)) == expected
    assert member.sync(version=4, protocol_name=None, protocol_type=None).assignment == b"0"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"generation_id": 7}, "ILLEGAL_GENERATION"),
        ({"generation_id": -1}, "ILLEGAL_GENERATION"),
        ({"member_id": "who"}, "UNKNOWN_MEMBER_ID"),
        ({"member_id": "who", "generation_id": 7}, "UNKNOWN_MEMBER_ID"),
        ({"group_id": "no-such-group"}, "UNKNOWN_MEMBER_ID"),
        ({"group_instance_id": "who"}, "UNKNOWN_MEMBER_ID"),
    ],
    ids=str,
)
@pytest.mark.parametrize("version", [0, 4])
def test_heartbeats_that_are_refused(
    connect: Connect, group: str, version: int, changes: dict[str, Any], expected: str
) -> None:
    (member,) = stable(connect, group)
    if version < 3 and "group_instance_id" in changes:
        expected = "NONE"  # a field that it does not have
    assert member.heartbeat(version, **changes) == expected
    assert member.heartbeat(version) == "NONE"


def test_a_follower_that_joins_again_unchanged_disturbs_nobody(connect: Connect, group: str) -> None:
    leader, follower = stable(connect, group, 2)
    answer = follower.join()
    assert (answer.generation_id, answer.leader, answer.members) == (2, leader.id, [])
    assert follower.sync().assignment == b"1"
    assert leader.heartbeat() == "NONE"


def test_a_follower_with_another_subscription_begins_a_rebalance(connect: Connect, group: str) -> None:
    leader, follower = stable(connect, group, 2)
    follower.protocols = {"range": subscription("another")}
    follower.send_join()
    eventually(lambda: leader.heartbeat() == "REBALANCE_IN_PROGRESS")
    leaders, _ = rejoined(leader, follower)
    assert {each.member_id: each.metadata for each in leaders.members}[follower.id] == subscription("another")
    assert leader.generation == 3


def test_a_leader_that_joins_again_begins_a_rebalance(connect: Connect, group: str) -> None:
    leader, follower = stable(connect, group, 2)
    leader.send_join()
    eventually(lambda: follower.heartbeat() == "REBALANCE_IN_PROGRESS")
    assert rejoined(follower, leader)[0].leader == leader.id
    assert leader.generation == 3


def test_a_join_whose_answer_was_lost_is_answered_again(connect: Connect, group: str) -> None:
    leader, follower = joined_together(connect, group, 2)
    again = [member.join() for member in (leader, follower)]
    assert [(answer.generation_id, len(answer.members)) for answer in again] == [(2, 2), (2, 0)]


def test_who_does_not_join_again_in_time_is_left_out(connect: Connect, group: str) -> None:
    lost = Member(connect(), group, rebalance_timeout_ms=1500)
    patient = Member(connect(), group, rebalance_timeout_ms=1000)
    lost.join()
    patient.get_id()
    began = time.monotonic()
    answer = patient.join()
    assert 1.0 <= time.monotonic() - began < 10.0
    assert (answer.generation_id, answer.leader) == (2, patient.id)
    assert [each.member_id for each in answer.members] == [patient.id]
    assert lost.heartbeat() == "UNKNOWN_MEMBER_ID"


def test_who_does_not_sync_in_time_is_left_out(connect: Connect, group: str) -> None:
    leader, silent = joined_together(connect, group, 2, rebalance_timeout_ms=1500)
    leader.sync({leader.id: b"one"})
    eventually(lambda: leader.heartbeat() == "REBALANCE_IN_PROGRESS")
    assert len(leader.join().members) == 1
    assert silent.heartbeat() == "UNKNOWN_MEMBER_ID"


# ---- leaving


@pytest.mark.parametrize("version", range(6))
def test_leaving_in_every_version(connect: Connect, group: str, version: int) -> None:
    leader, follower = stable(connect, group, 2)
    assert left(leader.wire, group, ("who", None), version=version) == ("UNKNOWN_MEMBER_ID",)
    assert left(leader.wire, "no-such-group", ("who", None), version=version) == ("UNKNOWN_MEMBER_ID",)
    assert leader.leave(version) == "NONE"
    assert follower.heartbeat() == "REBALANCE_IN_PROGRESS"
    answer = follower.join()
    assert (answer.generation_id, answer.leader, len(answer.members)) == (3, follower.id, 1)


def test_several_leave_at_once(connect: Connect, group: str) -> None:
    leader, second, third = stable(connect, group, 3)
    gone = left(leader.wire, group, (second.id, None), ("who", None), (third.id, None), (second.id, None))
    assert gone == ("NONE", "UNKNOWN_MEMBER_ID", "NONE", "UNKNOWN_MEMBER_ID")
    assert len(leader.join().members) == 1


def test_a_join_that_waited_only_for_the_one_that_leaves_is_answered(connect: Connect, group: str) -> None:
    first, second = stable(connect, group, 2)
    second.protocols = {"range": subscription("another")}
    second.send_join()
    eventually(lambda: first.heartbeat() == "REBALANCE_IN_PROGRESS")
    assert second.wire.is_silent()
    assert first.leave() == "NONE"
    assert len(second.joined().members) == 1


def test_generations_go_on_after_the_last_member_has_left(connect: Connect, group: str) -> None:
    (first,) = stable(connect, group)
    assert first.leave() == "NONE"
    (second,) = stable(connect, group)
    assert second.generation > first.generation + 1, "the empty group was a generation, too"


# ---- static members (KIP-345)


def static(connect: Connect, group: str, instance_id: str = "instance", **settings: Any) -> Member:
    return Member(connect(), group, instance_id=instance_id, **settings)


def stable_static(connect: Connect, group: str) -> Member:
    member = static(connect, group)
    member.join()
    assert code(member.sync({member.id: b"yours"})) == "NONE"
    return member


def test_static_members_need_no_second_join(connect: Connect, group: str) -> None:
    member = static(connect, group)
    answer = member.ask_to_join()
    assert code(answer) == "NONE"
    assert answer.member_id.startswith("instance-") and len(answer.member_id) == len("instance-") + 36
    assert [each.group_instance_id for each in answer.members] == ["instance"]


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_static_member_comes_back_without_a_rebalance(connect: Connect, group: str, version: int) -> None:
    before = stable_static(connect, group)
    after = static(connect, group)
    answer = after.join(version)
    assert answer.generation_id == before.generation == 1
    assert after.id != before.id
    if version >= 9:  # it leads, and is told not to assign anew (KIP-814)
        assert (answer.leader, answer.skip_assignment, len(answer.members)) == (after.id, True, 1)
    else:  # it must not know that it leads
        assert (answer.leader, answer.members) == (before.id, [])
    assert after.sync().assignment == b"yours"


def test_a_static_member_with_another_subscription_is_no_rebalance(connect: Connect, group: str) -> None:
    """Kafka leaves it to the leader to look at what members subscribe to; whoever wants more joins again."""
    before = stable_static(connect, group)
    after = static(connect, group, topics=("another",))
    answer = after.join()
    assert answer.generation_id == before.generation
    assert [(each.member_id, each.metadata) for each in answer.members] == [
        (after.id, subscription("another"))
    ]


def test_a_static_member_with_another_protocol_is_a_rebalance(connect: Connect, group: str) -> None:
    before = static(connect, group, protocols={"range": b"r", "sticky": b"s"})
    assert before.join().protocol_name == "range"
    before.sync({before.id: b"yours"})
    after = static(connect, group, protocols={"sticky": b"s"})
    answer = after.join()
    assert (answer.generation_id, answer.protocol_name) == (before.generation + 1, "sticky")
    assert not answer.skip_assignment


def test_whoever_was_replaced_is_fenced(connect: Connect, group: str, topic: Topic) -> None:
    before = stable_static(connect, group)
    after = static(connect, group)
    after.join()
    assert before.heartbeat() == "FENCED_INSTANCE_ID"
    assert code(before.sync()) == "FENCED_INSTANCE_ID"
    assert code(before.ask_to_join()) == "FENCED_INSTANCE_ID"
    assert before.commit(topic, 1) == "FENCED_INSTANCE_ID"
    assert before.leave() == "FENCED_INSTANCE_ID"
    assert before.heartbeat(group_instance_id=None) == "UNKNOWN_MEMBER_ID", "as a dynamic member it is none"
    assert after.heartbeat() == "NONE"
    assert after.commit(topic, 1) == "NONE"


def test_a_held_join_of_a_static_member_is_fenced_by_the_next(connect: Connect, group: str) -> None:
    (other,) = stable(connect, group)
    before, after = static(connect, group), static(connect, group)
    before.send_join()
    eventually(lambda: other.heartbeat() == "REBALANCE_IN_PROGRESS")
    after.send_join()
    assert code(before.wire.receive()) == "FENCED_INSTANCE_ID"
    assert len(rejoined(other, after)[0].members) == 2


def test_static_members_leave_by_their_name(connect: Connect, group: str) -> None:
    member = stable_static(connect, group)
    assert left(member.wire, group, ("", "who"), ("who", "instance"), ("", "instance")) == (
        "UNKNOWN_MEMBER_ID",
        "FENCED_INSTANCE_ID",
        "NONE",
    )
    assert member.heartbeat() == "UNKNOWN_MEMBER_ID"


def test_two_static_members_share_a_group(connect: Connect, group: str) -> None:
    first, second = static(connect, group, "one"), static(connect, group, "two")
    first.join()
    second.send_join()
    eventually(lambda: first.heartbeat() == "REBALANCE_IN_PROGRESS")
    leaders, _ = rejoined(first, second)
    assert {each.group_instance_id for each in leaders.members} == {"one", "two"}


# ---- silence


@pytest.mark.slow
def test_who_is_silent_for_a_session_is_left_out(connect: Connect, group: str, topic: Topic) -> None:
    """Heartbeats keep a member, and so do commits."""
    silent, beating, committing = stable(connect, group, 3, session_timeout_ms=LEAST_SESSION_MS)
    began = time.monotonic()
    while beating.heartbeat() == "NONE":
        assert committing.commit(topic, 1) == "NONE"
        assert time.monotonic() - began < 20.0
        time.sleep(0.25)
    assert time.monotonic() - began >= LEAST_SESSION_MS / 1000 - 1.0
    committing.send_join()
    rejoined(beating, committing)
    assert silent.heartbeat() == "UNKNOWN_MEMBER_ID"


@pytest.mark.slow
def test_an_id_that_nobody_comes_back_with_is_forgotten(connect: Connect, group: str) -> None:
    """Until then a rebalance waits for it, as for a member."""
    (member,) = stable(connect, group)
    pending = Member(connect(), group, session_timeout_ms=LEAST_SESSION_MS)
    pending.get_id()
    member.send_join()
    assert member.wire.is_silent(2.0)
    assert len(member.joined().members) == 1
    assert code(pending.ask_to_join()) == "UNKNOWN_MEMBER_ID"


# ---- what only a broker of one's own shows


def test_an_empty_group_waits_for_more_members(launch: Any, group: str) -> None:
    broker: OwnBroker = launch(group_initial_rebalance_delay_ms=700)
    await_coordinators(broker.port)
    first, second = Member(broker.connect(), group), Member(broker.connect(), group)
    for member in (first, second):
        member.get_id()
    began = time.monotonic()
    first.send_join()
    assert first.wire.is_silent(0.4)
    second.send_join()
    answers = [first.joined(), second.joined()]
    assert time.monotonic() - began >= 0.7
    assert [answer.generation_id for answer in answers] == [1, 1]


def test_a_group_has_a_largest_size(launch: Any, group: str) -> None:
    broker: OwnBroker = launch(group_initial_rebalance_delay_ms=0, group_max_size=2)
    await_coordinators(broker.port)
    stable(broker.connect, group, 2)
    third = Member(broker.connect(), group)
    answer = third.ask_to_join()
    if code(answer) == "MEMBER_ID_REQUIRED":
        answer = third.ask_to_join(member_id=answer.member_id)
    assert code(answer) == "GROUP_MAX_SIZE_REACHED"


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_stable_group_survives_a_restart(launch: Any, group: str, clean: bool) -> None:
    broker: OwnBroker = launch(group_initial_rebalance_delay_ms=0)
    await_coordinators(broker.port)
    members = stable(broker.connect, group, 2)
    broker.restart(clean=clean)
    await_coordinators(broker.port)
    for number, member in enumerate(members):
        member.wire = broker.connect()
        assert member.heartbeat() == "NONE"
        assert member.sync().assignment == b"%d" % number
