"""OffsetCommit, OffsetFetch and OffsetDelete: what a group has read, kept as it was told, and refused from whoever has no say in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, code
from tests.broker.group_wire import (
    NOTHING,
    Committed,
    Connect,
    await_coordinators,
    commit,
    commit_request,
    committed,
    committed_offset,
    eventually,
    fetch_request,
    group_broker,
    joined_together,
    new_id,
    stable,
    subscription,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest

COMMIT_VERSIONS = range(2, 11)
FETCH_VERSIONS = range(1, 11)


@pytest.fixture(scope="module")
def shared_broker(foreign: bool) -> Iterator[tuple[str, int]]:
    yield from group_broker(foreign)


@pytest.fixture
def group() -> str:
    return new_id()


@pytest.fixture
def three(wire: Wire, name: str) -> Topic:
    """A topic with three partitions."""
    return wire.create(name, 3)


# ---- every version


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_commits_in_every_version(wire: Wire, group: str, topic: Topic, version: int) -> None:
    assert commit(wire, group, topic, 1234, version=version, leader_epoch=5, metadata="so far") == "NONE"
    leader_epoch = 5 if version >= 6 else -1
    assert committed(wire, group, {topic: [0]}) == {
        (topic.id, 0): Committed("NONE", 1234, leader_epoch, "so far")
    }


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetches_in_every_version(wire: Wire, group: str, three: Topic, version: int) -> None:
    assert commit(wire, group, three, 1234, partition=2, leader_epoch=5, metadata="so far") == "NONE"
    topic = three.id if version >= 10 else three.name
    leader_epoch = 5 if version >= 5 else -1
    expected = {
        (topic, 2): Committed("NONE", 1234, leader_epoch, "so far"),
        (topic, 1): NOTHING,
        (topic, 7): NOTHING,
    }
    assert committed(wire, group, {three: [2, 1, 7]}, version) == expected
    assert committed(wire, new_id(), {three: [0, 1]}, version) == {(topic, 0): NOTHING, (topic, 1): NOTHING}
    if version >= 2:
        assert committed(wire, group, None, version) == {(topic, 2): expected[topic, 2]}, (
            "all that is committed"
        )
        assert committed(wire, new_id(), None, version) == {}
    if version >= 7:
        assert committed(wire, group, {three: [2]}, version, require_stable=True) == {
            (topic, 2): expected[topic, 2]
        }


def test_several_groups_at_once(wire: Wire, three: Topic) -> None:
    groups = [new_id() for _ in range(4)]
    for number, group in enumerate(groups[:3]):
        assert commit(wire, group, three, 10 + number, partition=number) == "NONE"
    for version in (8, 9, 10):
        asked = [fetch_request(group, {three: [0, 1, 2]}).groups[0] for group in groups]
        asked[1].topics = None
        answers = wire.ask(OffsetFetchRequest(groups=asked), version).groups
        found = {
            answer.group_id: {
                each.partition_index: each.committed_offset
                for topic in answer.topics
                for each in topic.partitions
            }
            for answer in answers
        }
        assert {code(answer) for answer in answers} == {"NONE"}
        assert found == {
            groups[0]: {0: 10, 1: -1, 2: -1},
            groups[1]: {1: 11},
            groups[2]: {0: -1, 1: -1, 2: 12},
            groups[3]: {0: -1, 1: -1, 2: -1},
        }


def test_topics_by_id_that_do_not_exist(wire: Wire, group: str, topic: Topic, nowhere: Topic) -> None:
    assert commit(wire, group, topic, 7) == "NONE"
    assert committed(wire, group, {topic: [0], nowhere: [0]}) == {
        (topic.id, 0): Committed("NONE", 7, -1, ""),
        (nowhere.id, 0): Committed("UNKNOWN_TOPIC_ID", -1, -1, ""),
    }
    assert committed(wire, group, {nowhere: [0]}, 9) == {(nowhere.name, 0): NOTHING}


# ---- what is kept


def test_the_last_commit_counts(wire: Wire, group: str, topic: Topic) -> None:
    for offset, metadata in ((5, "a"), (9, "b"), (3, ""), (0, "äöü 🌊")):
        assert commit(wire, group, topic, offset, metadata=metadata) == "NONE"
        assert committed(wire, group, {topic: [0]}) == {
            (topic.id, 0): Committed("NONE", offset, -1, metadata)
        }


def test_no_metadata_is_empty_metadata(wire: Wire, group: str, topic: Topic) -> None:
    assert commit(wire, group, topic, 1, metadata=None) == "NONE"
    assert committed(wire, group, {topic: [0]}) == {(topic.id, 0): Committed("NONE", 1, -1, "")}


def test_metadata_has_a_largest_size(wire: Wire, group: str, three: Topic) -> None:
    assert commit(wire, group, three, 1, metadata="m" * 4096) == "NONE"
    assert commit(wire, group, three, 2, metadata="m" * 4097) == "OFFSET_METADATA_TOO_LARGE"
    assert commit(wire, group, three, 2, metadata="é" * 4096, partition=1) == "NONE", "in characters"
    request = commit_request(group, (three, 0, 3), (three, 2, 4), metadata="ok")
    request.topics[0].partitions[0].committed_metadata = "m" * 5000
    answers = wire.ask(request).topics
    assert [code(each) for topic in answers for each in topic.partitions] == [
        "OFFSET_METADATA_TOO_LARGE",
        "NONE",
    ]
    found = committed(wire, group, {three: [0, 2]})
    assert isinstance(found, dict)
    assert [each.offset for each in found.values()] == [1, 4], "the others are kept"


@pytest.mark.parametrize("version", [2, 9, 10])
def test_commits_for_what_does_not_exist(
    wire: Wire, group: str, topic: Topic, nowhere: Topic, version: int
) -> None:
    unknown = "UNKNOWN_TOPIC_ID" if version >= 10 else "UNKNOWN_TOPIC_OR_PARTITION"
    assert commit(wire, group, nowhere, 1, version=version) == unknown
    assert commit(wire, group, topic, 1, partition=3, version=version) == "UNKNOWN_TOPIC_OR_PARTITION"
    mixed = wire.ask(commit_request(group, (nowhere, 0, 1), (topic, 0, 11), (topic, 3, 1)), version)
    found = {
        (answer.topic_id if version >= 10 else answer.name, each.partition_index): code(each)
        for answer in mixed.topics
        for each in answer.partitions
    }
    by = (nowhere.id, topic.id) if version >= 10 else (nowhere.name, topic.name)
    assert found == {(by[0], 0): unknown, (by[1], 0): "NONE", (by[1], 3): "UNKNOWN_TOPIC_OR_PARTITION"}
    assert committed_offset(wire, group, topic) == 11, "the one that exists is kept"


def test_a_group_without_a_name_may_commit(wire: Wire, topic: Topic) -> None:
    """Consumers that assign partitions to themselves did so in old times."""
    assert commit(wire, "", topic, 3) == "NONE"
    assert committed_offset(wire, "", topic) == 3


def test_offsets_go_with_their_topic(wire: Wire, group: str, name: str) -> None:
    doomed, kept = wire.create(name + "-doomed"), wire.create(name + "-kept")
    for topic in (doomed, kept):
        assert commit(wire, group, topic, 8) == "NONE"
    wire.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=doomed.name)], timeout_ms=9000))
    eventually(lambda: committed(wire, group, {doomed: [0]}, 9) == {(doomed.name, 0): NOTHING})
    again = wire.create(doomed.name)
    assert committed_offset(wire, group, again) == -1
    assert committed_offset(wire, group, kept) == 8


def test_commits_on_one_connection_are_answered_in_order(wire: Wire, group: str, three: Topic) -> None:
    for number in range(60):
        wire.send(commit_request(group, (three, number % 3, number)))
    for _ in range(60):
        (answer,) = wire.receive().topics
        assert [code(each) for each in answer.partitions] == ["NONE"]
    assert [committed_offset(wire, group, three, number) for number in range(3)] == [57, 58, 59]


# ---- who may commit


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ({}, "NONE"),
        ({"epoch": 7}, "ILLEGAL_GENERATION"),
        ({"epoch": 0}, "ILLEGAL_GENERATION"),
        ({"epoch": -1}, "ILLEGAL_GENERATION"),
        ({"member_id": "who"}, "UNKNOWN_MEMBER_ID"),
        ({"member_id": "who", "epoch": -1}, "UNKNOWN_MEMBER_ID"),
        ({"member_id": "", "epoch": -1}, "UNKNOWN_MEMBER_ID"),
        ({"instance_id": "who"}, "UNKNOWN_MEMBER_ID"),
    ],
    ids=str,
)
@pytest.mark.parametrize("version", [2, 8, 10])
def test_a_group_with_members_takes_commits_only_from_them(
    connect: Connect, group: str, topic: Topic, version: int, who: dict[str, Any], expected: str
) -> None:
    (member,) = stable(connect, group)
    if version < 7 and "instance_id" in who:
        expected = "NONE"  # a field that it does not have
    assert member.commit(topic, 6, version=version, **who) == expected
    assert committed_offset(member.wire, group, topic) == (6 if expected == "NONE" else -1)


def test_nothing_is_committed_between_join_and_sync(connect: Connect, group: str, topic: Topic) -> None:
    (member,) = joined_together(connect, group, 1)
    assert member.commit(topic, 6) == "REBALANCE_IN_PROGRESS"
    member.sync({member.id: b""})
    assert member.commit(topic, 6) == "NONE"


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_a_generation_of_a_group_that_does_not_exist(
    wire: Wire, group: str, topic: Topic, version: int
) -> None:
    expected = "GROUP_ID_NOT_FOUND" if version >= 9 else "ILLEGAL_GENERATION"
    assert commit(wire, group, topic, 1, version=version, member_id="m", epoch=1) == expected
    assert committed_offset(wire, group, topic) == -1


def test_a_group_without_members_takes_commits_from_anybody(
    connect: Connect, group: str, topic: Topic
) -> None:
    (member,) = stable(connect, group)
    assert member.commit(topic, 6) == "NONE"
    assert member.leave() == "NONE"
    assert member.commit(topic, 7) == "UNKNOWN_MEMBER_ID"
    assert commit(member.wire, group, topic, 2) == "NONE"
    assert committed_offset(member.wire, group, topic) == 2


def test_classic_members_need_no_epoch_to_fetch(connect: Connect, group: str, topic: Topic) -> None:
    (member,) = stable(connect, group)
    assert member.commit(topic, 6) == "NONE"
    for member_id, epoch in ((None, -1), (member.id, member.generation), (member.id, 77), ("who", 1)):
        found = committed(member.wire, group, {topic: [0]}, member_id=member_id, member_epoch=epoch)
        assert found == {(topic.id, 0): Committed("NONE", 6, -1, "")}


# ---- OffsetDelete


def delete(wire: Wire, group_id: str, *wanted: tuple[Topic, int]) -> Any:
    """The errors by topic and partition; the name of the error when the whole request has one."""
    topics = [
        OffsetDeleteRequestTopic(
            name=topic.name, partitions=[OffsetDeleteRequestPartition(partition_index=number)]
        )
        for topic, number in wanted
    ]
    answer = wire.ask(OffsetDeleteRequest(group_id=group_id, topics=topics))
    if answer.error_code:
        return code(answer)
    return {
        (topic.name, each.partition_index): code(each) for topic in answer.topics for each in topic.partitions
    }


def test_deleting_offsets(wire: Wire, group: str, three: Topic, nowhere: Topic) -> None:
    for partition in (0, 1):
        assert commit(wire, group, three, 5, partition=partition) == "NONE"
    assert delete(wire, group, (three, 0), (three, 2), (nowhere, 0)) == {
        (three.name, 0): "NONE",
        (three.name, 2): "NONE",
        (nowhere.name, 0): "UNKNOWN_TOPIC_OR_PARTITION",
    }
    assert [committed_offset(wire, group, three, number) for number in range(3)] == [-1, 5, -1]


def test_deleting_offsets_of_groups_that_are_none(wire: Wire, topic: Topic) -> None:
    assert delete(wire, new_id(), (topic, 0)) == "GROUP_ID_NOT_FOUND"
    assert delete(wire, "", (topic, 0)) == "INVALID_GROUP_ID"


def test_offsets_of_subscribed_topics_stay(connect: Connect, wire: Wire, group: str, name: str) -> None:
    read, unread = wire.create(name + "-read"), wire.create(name + "-unread")
    (member,) = stable(connect, group, topics=(read.name,))
    for topic in (read, unread):
        assert member.commit(topic, 5) == "NONE"
    assert delete(wire, group, (read, 0), (unread, 0)) == {
        (read.name, 0): "GROUP_SUBSCRIBED_TO_TOPIC",
        (unread.name, 0): "NONE",
    }
    assert [committed_offset(wire, group, topic) for topic in (read, unread)] == [5, -1]
    assert member.leave() == "NONE"
    assert delete(wire, group, (read, 0)) == {(read.name, 0): "NONE"}


def test_offsets_of_other_kinds_of_groups_go_only_without_members(
    connect: Connect, wire: Wire, group: str, topic: Topic
) -> None:
    (member,) = stable(connect, group, protocol_type="connect", protocols={"default": b"x"})
    assert member.commit(topic, 5) == "NONE"
    assert delete(wire, group, (topic, 0)) == "NON_EMPTY_GROUP"
    assert member.leave() == "NONE"
    assert delete(wire, group, (topic, 0)) == {(topic.name, 0): "NONE"}


# ---- where a group is kept


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [
        ("g", 3),
        ("orders", 31),
        ("my-group", 12),
        ("payments", 13),
        ("polygenelubricants", 0),  # the one hash without a positive counterpart
        ("äöü-π", 1),
        ("🌊", 34),
        ("", 0),
    ],
)
def test_the_hash_of_a_group_says_where_it_is_kept(
    wire: Wire, topic: Topic, group_id: str, partition: int
) -> None:
    offsets = Topic("__consumer_offsets", wire.metadata("__consumer_offsets").topics[0].topic_id)
    end = wire.offset_at(offsets, -1, partition=partition).offset
    assert commit(wire, group_id, topic, 1, metadata="find me") == "NONE"
    records = bytes(wire.fetch(offsets, end, partition=partition).records)
    assert group_id.encode() in records and topic.name.encode() in records and b"find me" in records


def test_fifty_partitions_keep_the_groups(wire: Wire) -> None:
    (found,) = wire.metadata("__consumer_offsets").topics
    assert (len(found.partitions), found.is_internal) == (50, True)


# ---- what only a broker of one's own shows


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_offsets_survive_a_restart(launch: Any, group: str, clean: bool) -> None:
    broker: OwnBroker = launch()
    await_coordinators(broker.port)
    wire = broker.connect()
    topic = wire.create("t", 3)
    assert commit(wire, group, topic, 5, metadata="five", leader_epoch=0) == "NONE"
    assert commit(wire, group, topic, 6, partition=1) == "NONE"
    assert delete(wire, group, (topic, 1)) == {("t", 1): "NONE"}
    broker.restart(clean=clean)
    await_coordinators(broker.port)
    wire = broker.connect()
    assert committed(wire, group, None) == {(topic.id, 0): Committed("NONE", 5, 0, "five")}


def test_offsets_of_a_member_survive_a_restart(launch: Any, group: str) -> None:
    broker: OwnBroker = launch(group_initial_rebalance_delay_ms=0)
    await_coordinators(broker.port)
    topic = broker.connect().create("t")
    (member,) = stable(broker.connect, group, protocols={"range": subscription("t")})
    assert member.commit(topic, 5) == "NONE"
    broker.restart(clean=False)
    await_coordinators(broker.port)
    member.wire = broker.connect()
    assert committed_offset(member.wire, group, topic) == 5
    assert member.commit(topic, 6) == "NONE", "its generation is known, too"
