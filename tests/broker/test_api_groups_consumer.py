"""Consumer groups (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe; epochs, reconciliation, patterns, both protocols in one group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, code
from tests.broker.group_wire import (
    Connect,
    Consumer,
    Member,
    assignment,
    await_coordinators,
    commit,
    committed,
    committed_offset,
    eventually,
    group_broker,
    new_id,
    partitions_of,
    settled,
    subscription,
)
from tidelog.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidelog.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest

LEAVE, LEAVE_FOR_A_WHILE = -1, -2
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


@pytest.fixture(scope="module")
def shared_broker(foreign: bool) -> Iterator[tuple[str, int]]:
    yield from group_broker(foreign)


@pytest.fixture
def group() -> str:
    return new_id()


@pytest.fixture
def four(wire: Wire, name: str) -> Topic:
    """A topic with four partitions."""
    return wire.create(name, 4)


ALL_FOUR = {0, 1, 2, 3}


def alone(connect: Connect, group: str, topic: Topic, **settings: Any) -> Consumer:
    """The only member of a group, with everything assigned."""
    member = Consumer(connect(), group, topic.name, **settings)
    settled(lambda: member.partitions(topic) == ALL_FOUR, member)
    return member


def pair(connect: Connect, group: str, topic: Topic, **settings: Any) -> tuple[Consumer, Consumer]:
    """Two members with two partitions each."""
    first = alone(connect, group, topic, **settings)
    second = Consumer(connect(), group, topic.name, **settings)
    settled(lambda: len(first.partitions(topic)) == len(second.partitions(topic)) == 2, first, second)
    return first, second


def told(answer: Any) -> dict[bytes, set[int]]:
    return {each.topic_id: set(each.partitions) for each in answer.assignment.topic_partitions}


def describe(wire: Wire, group_id: str, version: int | None = None) -> Any:
    (found,) = wire.ask(ConsumerGroupDescribeRequest(group_ids=[group_id]), version).groups
    assert found.group_id == group_id
    return found


# ---- joining and leaving


@pytest.mark.parametrize("version", [0, 1])
def test_the_life_of_a_member_in_every_version(wire: Wire, group: str, four: Topic, version: int) -> None:
    member = Consumer(wire, group, four.name)
    given = member.id
    answer = member.beat(version)
    assert (member.id, answer.heartbeat_interval_ms) == (given, 5000)
    assert answer.member_epoch >= 1
    settled(lambda: member.partitions(four) == ALL_FOUR, member)
    assert member.beat(version).assignment is None, "told once"
    found = describe(wire, group, version)
    assert (code(found), found.group_state, found.assignor_name) == ("NONE", "Stable", "uniform")
    assert found.group_epoch == found.assignment_epoch == member.epoch
    (described,) = found.members
    assert (described.member_id, described.member_epoch) == (member.id, member.epoch)
    assert (described.client_id, described.client_host) == ("wire", "/127.0.0.1")
    assert described.subscribed_topic_names == [four.name]
    assert described.member_type == (CONSUMER_MEMBER if version >= 1 else -1)
    for place in (described.assignment, described.target_assignment):
        (partitions,) = place.topic_partitions
        assert (partitions.topic_id, partitions.topic_name) == (four.id, four.name)
        assert set(partitions.partitions) == ALL_FOUR
    left = member.ask(version, member_epoch=LEAVE)
    assert (code(left), left.member_epoch) == ("NONE", LEAVE)
    assert code(member.ask(version)) == "UNKNOWN_MEMBER_ID"
    assert describe(wire, group, version).group_state == "Empty"


def test_the_broker_gives_ids_only_in_the_first_version(wire: Wire, group: str, four: Topic) -> None:
    member = Consumer(wire, group, four.name, member_id="")
    assert code(member.ask(1)) == "INVALID_REQUEST"
    other = Consumer(wire, group, four.name, member_id="")
    for each in (member, other):
        each.beat(0)
    assert member.id and other.id and member.id != other.id


def test_a_member_that_joins_again_begins_anew(connect: Connect, group: str, four: Topic) -> None:
    member = alone(connect, group, four)
    answer = member.ask(
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=[four.name],
        topic_partitions=[],
    )
    assert code(answer) == "NONE"
    assert told(answer) == {four.id: ALL_FOUR}


@pytest.mark.parametrize(
    "changes",
    [
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_epoch": -3},
        {"member_epoch": LEAVE_FOR_A_WHILE},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"subscribed_topic_names": None},
        {"server_assignor": ""},
    ],
    ids=str,
)
def test_joins_that_make_no_sense(wire: Wire, group: str, four: Topic, changes: dict[str, Any]) -> None:
    answer = Consumer(wire, group, four.name).ask(**changes)
    expected = "UNSUPPORTED_ASSIGNOR" if "server_assignor" in changes else "INVALID_REQUEST"
    assert code(answer) == expected
    assert answer.error_message


def test_a_join_that_owns_something_already_is_refused(wire: Wire, group: str, four: Topic) -> None:
    owned = partitions_of({four.id: {0}})
    assert code(Consumer(wire, group, four.name).ask(topic_partitions=owned)) == "INVALID_REQUEST"


def test_assignors(wire: Wire, group: str, four: Topic) -> None:
    assert code(Consumer(wire, group, four.name, assignor="nonesuch").ask()) == "UNSUPPORTED_ASSIGNOR"
    Consumer(wire, group, four.name, assignor="range").beat()
    assert describe(wire, group).assignor_name == "range"


# ---- members and epochs that are refused


@pytest.mark.parametrize("epoch", [1, 7, LEAVE])
def test_groups_that_do_not_exist(wire: Wire, group: str, epoch: int) -> None:
    assert code(Consumer(wire, group, "t").ask(member_epoch=epoch)) == "GROUP_ID_NOT_FOUND"


@pytest.mark.parametrize("epoch", [1, LEAVE])
def test_members_that_do_not_exist(connect: Connect, group: str, four: Topic, epoch: int) -> None:
    alone(connect, group, four)
    assert code(Consumer(connect(), group, four.name).ask(member_epoch=epoch)) == "UNKNOWN_MEMBER_ID"


def test_epochs_that_never_were(connect: Connect, group: str, four: Topic) -> None:
    member = alone(connect, group, four)
    assert code(member.ask(member_epoch=member.epoch + 1)) == "FENCED_MEMBER_EPOCH"
    assert code(member.ask()) == "NONE", "others may send nonsense in its name"


def test_an_answer_that_was_lost_is_given_again(connect: Connect, group: str, four: Topic) -> None:
    """The epoch before the current one is good while the member owns no more than it should; older ones are not."""
    first, second = pair(connect, group, four)
    before = first.epoch
    third = Consumer(connect(), group, four.name)
    settled(lambda: first.epoch > before and third.partitions(four), first, second, third)
    assert code(first.ask(member_epoch=before - 1)) == "FENCED_MEMBER_EPOCH"
    again = first.ask(member_epoch=before)
    assert (code(again), again.member_epoch, again.assignment) == ("NONE", first.epoch, None)
    everything = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": [four.name]}
    again = first.ask(member_epoch=before, **everything)
    assert (code(again), again.member_epoch) == ("NONE", first.epoch)
    assert told(again) == first.owned, "whoever says everything is told everything"
    too_much = partitions_of({four.id: ALL_FOUR})
    assert code(first.ask(member_epoch=before, topic_partitions=too_much)) == "FENCED_MEMBER_EPOCH"


# ---- reconciliation


def test_a_partition_goes_over_when_its_owner_has_let_go(connect: Connect, group: str, four: Topic) -> None:
    first = alone(connect, group, four)
    second = Consumer(connect(), group, four.name)
    second.beat()
    assert second.partitions(four) == set(), "everything is in use"

    def told_to_let_go() -> bool:
        answer = first.ask()  # says that it still owns everything
        assert code(answer) == "NONE"
        second.beat()
        assert second.partitions(four) == set()
        if answer.assignment is not None:
            first.owned = told(answer)
        return len(first.partitions(four)) == 2

    eventually(told_to_let_go)
    assert describe(first.wire, group).group_state == "Reconciling"
    settled(lambda: len(second.partitions(four)) == 2 and first.epoch == second.epoch, first, second)
    assert first.partitions(four) | second.partitions(four) == ALL_FOUR
    assert describe(first.wire, group).group_state == "Stable"


def test_who_does_not_let_go_in_time_is_fenced(connect: Connect, group: str, four: Topic) -> None:
    stubborn = alone(connect, group, four, rebalance_timeout_ms=1000)
    everything = partitions_of(stubborn.owned)
    second = Consumer(connect(), group, four.name)
    second.beat()

    def fenced() -> bool:
        second.beat()
        return code(stubborn.ask(topic_partitions=everything)) in ("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH")

    eventually(fenced)
    settled(lambda: second.partitions(four) == ALL_FOUR, second)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_fairly(connect: Connect, group: str, four: Topic, assignor: str) -> None:
    first, second = pair(connect, group, four, assignor=assignor)
    if assignor == "range":
        assert {frozenset(first.partitions(four)), frozenset(second.partitions(four))} == {
            frozenset({0, 1}),
            frozenset({2, 3}),
        }
    assert second.leave() == "NONE"
    settled(lambda: first.partitions(four) == ALL_FOUR, first)
    third = Consumer(connect(), group, four.name, assignor=assignor)
    settled(lambda: len(third.partitions(four)) == 2, first, third)
    assert len(first.partitions(four)) == 2


def test_subscriptions_change(connect: Connect, wire: Wire, group: str, four: Topic) -> None:
    member = alone(connect, group, four)
    other = wire.create(four.name + "-b", 2)
    before = member.epoch
    member.beat(subscribed_topic_names=[four.name, other.name])
    settled(lambda: member.partitions(other) == {0, 1}, member)
    assert member.partitions(four) == ALL_FOUR
    assert member.epoch > before
    member.beat(subscribed_topic_names=[other.name])
    settled(lambda: member.partitions(four) == set() and member.partitions(other) == {0, 1}, member)
    member.beat(subscribed_topic_names=[])
    settled(lambda: not member.owned, member)


def test_new_partitions_and_new_topics_are_assigned(
    connect: Connect, wire: Wire, group: str, four: Topic
) -> None:
    later = four.name + "-later"
    member = Consumer(connect(), group, four.name, later)
    settled(lambda: member.partitions(four) == ALL_FOUR, member)
    topic = wire.create(later, 1)
    settled(lambda: member.partitions(topic) == {0}, member)
    more = CreatePartitionsTopic(name=later, count=3, assignments=None)
    wire.ask(CreatePartitionsRequest(topics=[more], timeout_ms=9000))
    settled(lambda: member.partitions(topic) == {0, 1, 2}, member)
    assert member.partitions(four) == ALL_FOUR


# ---- patterns


@pytest.fixture
def patterns(foreign: bool) -> None:
    if not foreign:
        pytest.importorskip("re2", reason="patterns need the package google-re2 beside the broker")


@pytest.mark.parametrize("pattern", ["[", "(", "*x", "(?=lookahead)"])
@pytest.mark.usefixtures("patterns")
def test_patterns_that_are_none(wire: Wire, group: str, pattern: str) -> None:
    answer = Consumer(wire, group, regex=pattern).ask()
    assert code(answer) == "INVALID_REGULAR_EXPRESSION"


@pytest.mark.usefixtures("patterns")
def test_a_pattern_stands_for_topics(connect: Connect, wire: Wire, group: str, name: str) -> None:
    """It must match the whole name."""
    first, second = wire.create(name + "-a1", 1), wire.create(name + "-a2", 2)
    for other in ("-a", "-a33", "-b1"):
        wire.create(name + other, 1)
    member = Consumer(connect(), group, regex=name + "-a[0-9]")
    settled(lambda: member.owned == {first.id: {0}, second.id: {0, 1}}, member)
    (described,) = describe(wire, group).members
    assert described.subscribed_topic_regex == name + "-a[0-9]"
    member.beat(subscribed_topic_regex="", subscribed_topic_names=[second.name])
    settled(lambda: member.owned == {second.id: {0, 1}}, member)


@pytest.mark.usefixtures("patterns")
def test_names_and_a_pattern_together(connect: Connect, wire: Wire, group: str, four: Topic) -> None:
    other = wire.create(four.name + "-x", 1)
    member = Consumer(connect(), group, four.name, regex=f"{four.name}-.*")
    settled(lambda: member.owned == {four.id: ALL_FOUR, other.id: {0}}, member)


@pytest.mark.slow
@pytest.mark.usefixtures("patterns")
def test_a_pattern_finds_topics_that_come_later(connect: Connect, wire: Wire, group: str, name: str) -> None:
    first = wire.create(name + "-1")
    member = Consumer(connect(), group, regex=f"{name}-.*")
    settled(lambda: member.owned == {first.id: {0}}, member)
    second = wire.create(name + "-2")
    settled(lambda: member.owned == {first.id: {0}, second.id: {0}}, member)


# ---- static members


def test_an_instance_that_is_in_use_cannot_be_taken(connect: Connect, group: str, four: Topic) -> None:
    alone(connect, group, four, instance_id="i")
    thief = Consumer(connect(), group, four.name, instance_id="i")
    assert code(thief.ask()) == "UNRELEASED_INSTANCE_ID"
    assert code(thief.ask(member_epoch=1)) == "FENCED_INSTANCE_ID"
    assert thief.leave() == "FENCED_INSTANCE_ID"
    assert code(thief.ask(instance_id="nobody", member_epoch=1)) == "UNKNOWN_MEMBER_ID"


def test_a_static_member_that_comes_back_finds_its_partitions(
    connect: Connect, group: str, four: Topic
) -> None:
    first = alone(connect, group, four, instance_id="one")
    second = Consumer(connect(), group, four.name, instance_id="two")
    settled(lambda: len(first.partitions(four)) == len(second.partitions(four)) == 2, first, second)
    kept = first.partitions(four)
    answer = first.ask(member_epoch=LEAVE_FOR_A_WHILE)
    assert (code(answer), answer.member_epoch) == ("NONE", LEAVE_FOR_A_WHILE)
    for _ in range(3):
        assert len(second.partitions(four)) == 2, "nothing is taken from who is away for a while"
        second.beat()
    back = Consumer(connect(), group, four.name, instance_id="one")
    back.beat()
    assert (back.partitions(four), back.epoch) == (kept, second.epoch)
    assert code(first.ask()) == "FENCED_INSTANCE_ID"
    assert back.leave() == "NONE"
    settled(lambda: second.partitions(four) == ALL_FOUR, second)


# ---- offsets and member epochs


def test_commits_carry_the_member_epoch(connect: Connect, group: str, four: Topic) -> None:
    member = alone(connect, group, four)

    def commits(offset: int, *, version: int | None = None, **who: Any) -> str:
        who = {"member_id": member.id, "epoch": member.epoch} | who
        return commit(member.wire, group, four, offset, version=version, **who)

    assert commits(3) == commits(4, version=9) == "NONE"
    assert commits(9, epoch=member.epoch + 1) == "STALE_MEMBER_EPOCH"
    assert commits(9, epoch=member.epoch + 1, version=9) == "STALE_MEMBER_EPOCH"
    assert commits(9, epoch=member.epoch + 1, version=8) == "UNSUPPORTED_VERSION"
    assert commits(9, member_id="who") == "UNKNOWN_MEMBER_ID"
    assert commits(9, member_id="", epoch=-1) == "UNKNOWN_MEMBER_ID", "only a group without members"
    assert committed_offset(member.wire, group, four) == 4
    assert member.leave() == "NONE"
    assert commits(5, member_id="", epoch=-1) == "NONE"


def test_commits_without_a_member_are_for_groups_without_members(wire: Wire, group: str, four: Topic) -> None:
    assert commit(wire, group, four, 1, epoch=1, member_id="m") == "GROUP_ID_NOT_FOUND"


def test_fetches_may_carry_the_member_epoch(connect: Connect, group: str, four: Topic) -> None:
    member = alone(connect, group, four)

    def fetched(version: int, member_id: str | None, epoch: int) -> Any:
        found = committed(member.wire, group, {four: [0]}, version, member_id=member_id, member_epoch=epoch)
        return found if isinstance(found, str) else "NONE"

    for version in (9, 10):
        assert fetched(version, member.id, member.epoch) == "NONE"
        assert fetched(version, None, -1) == "NONE", "an operator's question"
        assert fetched(version, member.id, member.epoch + 1) == "STALE_MEMBER_EPOCH"
        assert fetched(version, member.id, member.epoch - 1) == "STALE_MEMBER_EPOCH"
        assert fetched(version, "who", member.epoch) == "UNKNOWN_MEMBER_ID"


# ---- describing, and groups of the other protocol


@pytest.mark.parametrize("version", [0, 1])
def test_describing_what_is_not_there(connect: Connect, wire: Wire, group: str, version: int) -> None:
    found = describe(wire, group, version)
    assert (code(found), found.members) == ("GROUP_ID_NOT_FOUND", [])
    assert found.error_message
    Member(connect(), group).join()
    found = describe(wire, group, version)
    assert (code(found), found.members) == ("GROUP_ID_NOT_FOUND", []), (
        "a classic group is not a consumer group"
    )


def test_describing_tells_operations_on_request(
    connect: Connect, wire: Wire, group: str, four: Topic
) -> None:
    alone(connect, group, four)
    request = ConsumerGroupDescribeRequest(group_ids=[group, group], include_authorized_operations=True)
    assert {each.authorized_operations for each in wire.ask(request).groups} == {3400}
    assert describe(wire, group).authorized_operations == -(2**31)


def test_a_consumer_group_is_no_classic_group(connect: Connect, wire: Wire, group: str, four: Topic) -> None:
    alone(connect, group, four)
    (old,) = wire.ask(DescribeGroupsRequest(groups=[group]), 5).groups
    assert (code(old), old.group_state, old.members) == ("NONE", "Dead", [])
    (new,) = wire.ask(DescribeGroupsRequest(groups=[group]), 6).groups
    assert (code(new), new.group_state, new.members) == ("GROUP_ID_NOT_FOUND", "Dead", [])
    stranger = Member(connect(), group, protocol_type="connect")
    assert code(stranger.ask_to_join()) == "INCONSISTENT_GROUP_PROTOCOL"
    stranger.id = "who"
    assert stranger.heartbeat() == "UNKNOWN_MEMBER_ID"
    assert code(stranger.sync(protocol_name="range")) == "UNKNOWN_MEMBER_ID"


def test_an_empty_classic_group_may_become_a_consumer_group(
    connect: Connect, wire: Wire, group: str, four: Topic
) -> None:
    assert commit(wire, group, four, 42) == "NONE"
    alone(connect, group, four)
    assert committed_offset(wire, group, four) == 42
    assert describe(wire, group).group_state == "Stable"


def test_a_group_that_is_not_of_consumers_stays_as_it_is(connect: Connect, group: str, four: Topic) -> None:
    member = Member(connect(), group, protocol_type="connect", protocols={"default": b"x"})
    member.join()
    assert code(Consumer(connect(), group, four.name).ask()) == "GROUP_ID_NOT_FOUND"
    assert member.heartbeat() == "NONE"


def test_classic_members_move_over_one_by_one(connect: Connect, wire: Wire, group: str, four: Topic) -> None:
    """Both protocols in one group: the broker assigns, and classic members hear of it in their own way."""
    old = Member(connect(), group, topics=(four.name,))
    old.join()
    assert code(old.sync({old.id: assignment(four.name, 0, 1, 2, 3)})) == "NONE"
    new = Consumer(connect(), group, four.name)
    new.beat()
    assert new.partitions(four) == set(), "everything is in use"
    found = describe(wire, group, 1)
    assert {each.member_id: each.member_type for each in found.members} == {
        old.id: CLASSIC_MEMBER,
        new.id: CONSUMER_MEMBER,
    }

    def asked_to_join_again() -> bool:
        new.beat()
        return old.heartbeat() == "REBALANCE_IN_PROGRESS"

    eventually(asked_to_join_again)
    old.protocols = {"range": subscription(four.name)}
    old.send_join()
    assert old.joined().leader in ("", old.id)
    synced = old.sync()
    assert code(synced) == "NONE"
    assert len(synced.assignment) > 0
    assert old.heartbeat() == "NONE"
    assert old.leave() == "NONE"
    settled(lambda: new.partitions(four) == ALL_FOUR, new)


def test_the_last_consumer_member_hands_a_mixed_group_back(
    connect: Connect, wire: Wire, group: str, four: Topic
) -> None:
    old = Member(connect(), group, topics=(four.name,))
    old.join()
    assert code(old.sync({old.id: assignment(four.name, 0, 1, 2, 3)})) == "NONE"
    new = Consumer(connect(), group, four.name)
    new.beat()
    assert code(describe(wire, group)) == "NONE"
    assert new.leave() == "NONE"
    (found,) = eventually(
        lambda: [
            each for each in wire.ask(DescribeGroupsRequest(groups=[group])).groups if not each.error_code
        ]
    )
    assert [each.member_id for each in found.members] == [old.id]
    assert code(describe(wire, group)) == "GROUP_ID_NOT_FOUND"


# ---- what only a broker of one's own shows


def test_silent_members_are_removed(launch: Any, group: str) -> None:
    broker: OwnBroker = launch(
        group_consumer_min_session_timeout_ms=500,
        group_consumer_session_timeout_ms=1000,
        group_consumer_min_heartbeat_interval_ms=100,
        group_consumer_heartbeat_interval_ms=200,
    )
    await_coordinators(broker.port)
    topic = broker.connect().create("t", 4)
    silent = alone(broker.connect, group, topic)
    other = Consumer(broker.connect(), group, topic.name)
    assert other.beat().heartbeat_interval_ms == 200
    settled(lambda: other.partitions(topic) == ALL_FOUR, other)
    assert code(silent.ask()) == "UNKNOWN_MEMBER_ID"


def test_a_consumer_group_has_a_largest_size(launch: Any, group: str) -> None:
    broker: OwnBroker = launch(group_consumer_max_size=1)
    await_coordinators(broker.port)
    Consumer(broker.connect(), group, "t").beat()
    assert code(Consumer(broker.connect(), group, "t").ask()) == "GROUP_MAX_SIZE_REACHED"


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_members_and_assignments_survive_a_restart(launch: Any, group: str, clean: bool) -> None:
    broker: OwnBroker = launch()
    await_coordinators(broker.port)
    topic = broker.connect().create("t", 4)
    first, second = pair(broker.connect, group, topic)
    before = [(member.epoch, member.owned) for member in (first, second)]
    broker.restart(clean=clean)
    await_coordinators(broker.port)
    for member in (first, second):
        member.wire = broker.connect()
        member.beat()
    assert [(member.epoch, member.owned) for member in (first, second)] == before
