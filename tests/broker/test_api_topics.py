"""Topics: created, given more partitions, emptied and deleted."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, batch, code
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.wire.types import ZERO_UUID

THIS_BROKER, NO_BROKER = 0, 1


def node_ids(wire: Wire, brokers: Sequence[int]) -> list[int]:
    """In the tests 0 is the broker there is, whatever its id, and 1 one that does not exist."""
    node_id = wire.metadata().brokers[0].node_id
    return [node_id if broker == THIS_BROKER else node_id + 77 for broker in brokers]


def create(
    wire: Wire,
    name: str,
    *,
    partitions: int = 1,
    replicas: int = 1,
    assignments: Sequence[tuple[int, Sequence[int]]] = (),
    configs: Sequence[tuple[str, str | None]] = (),
    validate_only: bool = False,
    version: int | None = None,
) -> Any:
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=node_ids(wire, brokers))
            for index, brokers in assignments
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=9000, validate_only=validate_only)
    (result,) = wire.ask(request, version).topics
    return result


def exists(wire: Wire, name: str) -> bool:
    return code(wire.metadata(name).topics[0]) == "NONE"


# ---- CreateTopics


def test_defaults(launch: Any) -> None:
    wire = launch(num_partitions=4).connect()
    result = create(wire, "t", partitions=-1, replicas=-1)
    assert (code(result), result.num_partitions, result.replication_factor) == ("NONE", 4, 1)
    assert wire.metadata("t").topics[0].topic_id == result.topic_id != ZERO_UUID


def test_validate_only_creates_nothing(wire: Wire, name: str) -> None:
    assert code(create(wire, name, validate_only=True)) == "NONE"
    assert not exists(wire, name)
    assert code(create(wire, name)) == "NONE"
    assert code(create(wire, name, validate_only=True)) == "TOPIC_ALREADY_EXISTS"


def test_a_topic_is_ready_when_its_creation_is_answered(launch: Any) -> None:
    wire = launch().connect()
    for number in range(20):
        result = create(wire, f"t{number}", partitions=3)
        topic = Topic(result.name, result.topic_id)
        assert [code(wire.produce(topic, batch(), partition=index)) for index in range(3)] == ["NONE"] * 3


@pytest.mark.parametrize("bad", ["a b", "", "..", ".", "a" * 250, "a/b", "ü"])
def test_invalid_names(wire: Wire, bad: str) -> None:
    result = create(wire, bad)
    assert (code(result), result.topic_id) == ("INVALID_TOPIC_EXCEPTION", ZERO_UUID)
    assert result.error_message


def test_the_longest_name(wire: Wire) -> None:
    name = uuid.uuid4().hex.ljust(249, "x")
    topic = wire.create(name)
    assert code(wire.produce(topic, batch())) == "NONE"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"partitions": 0}, "INVALID_PARTITIONS"),
        ({"partitions": -2}, "INVALID_PARTITIONS"),
        ({"replicas": 0}, "INVALID_REPLICATION_FACTOR"),
        ({"replicas": 2}, "INVALID_REPLICATION_FACTOR"),
        ({"configs": [("foo", "bar")]}, "INVALID_CONFIG"),
        ({"configs": [("retention.ms", "x")]}, "INVALID_CONFIG"),
        ({"configs": [("retention.ms", None)]}, "INVALID_CONFIG"),
        ({"configs": [("min.compaction.lag.ms", "9"), ("max.compaction.lag.ms", "3")]}, "INVALID_CONFIG"),
        ({"assignments": [(0, [0]), (1, [0])], "partitions": 2, "replicas": -1}, "INVALID_REQUEST"),
        ({"assignments": [(0, [0])], "partitions": -1, "replicas": 1}, "INVALID_REQUEST"),
    ],
)
def test_refused(wire: Wire, name: str, wanted: dict[str, Any], expected: str) -> None:
    result = create(wire, name, **wanted)
    assert code(result) == expected
    assert not exists(wire, name)


@pytest.mark.parametrize(
    "assignments", [[(0, [0]), (2, [0])], [(0, [0, 0])], [(0, [1])], [(0, [])], [(1, [0])]]
)
def test_refused_assignments(wire: Wire, name: str, assignments: list[tuple[int, list[int]]]) -> None:
    result = create(wire, name, partitions=-1, replicas=-1, assignments=assignments)
    assert code(result) == "INVALID_REPLICA_ASSIGNMENT"


def test_a_manual_assignment(wire: Wire, name: str) -> None:
    result = create(wire, name, partitions=-1, replicas=-1, assignments=[(1, [0]), (0, [0])])
    assert (code(result), result.num_partitions, result.replication_factor) == ("NONE", 2, 1)


def test_names_that_exist_or_collide(wire: Wire, name: str) -> None:
    wire.create("a." + name)
    assert code(create(wire, "a." + name)) == "TOPIC_ALREADY_EXISTS"
    assert code(create(wire, "a_" + name)) == "INVALID_TOPIC_EXCEPTION"
    assert code(create(wire, "__cluster_metadata")) == "INVALID_REQUEST"


def test_a_name_twice_in_a_request_spoils_only_itself(wire: Wire, name: str) -> None:
    topics = [
        CreatableTopic(name=wanted, num_partitions=1, replication_factor=1)
        for wanted in (name, name, name + "-other")
    ]
    results = wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=9000)).topics
    assert {(result.name, code(result)) for result in results} == {
        (name, "INVALID_REQUEST"),
        (name + "-other", "NONE"),
    }


# ---- DeleteTopics


def delete(wire: Wire, *topics: DeleteTopicState) -> list[Any]:
    responses: list[Any] = wire.ask(DeleteTopicsRequest(topics=list(topics), timeout_ms=9000)).responses
    return responses


def test_deletion_by_name_and_by_id(wire: Wire, name: str) -> None:
    one, two = wire.create(name + "-1"), wire.create(name + "-2")
    results = delete(wire, DeleteTopicState(name=one.name), DeleteTopicState(name=None, topic_id=two.id))
    assert {(result.name, result.topic_id, code(result)) for result in results} == {
        (one.name, one.id, "NONE"),
        (two.name, two.id, "NONE"),
    }
    assert not exists(wire, one.name) and not exists(wire, two.name)


def test_deletions_that_cannot_be(wire: Wire, topic: Topic, nowhere: Topic) -> None:
    assert [code(r) for r in delete(wire, DeleteTopicState(name=nowhere.name))] == [
        "UNKNOWN_TOPIC_OR_PARTITION"
    ]
    (unknown,) = delete(wire, DeleteTopicState(name=None, topic_id=nowhere.id))
    assert (code(unknown), unknown.topic_id, unknown.name) == ("UNKNOWN_TOPIC_ID", nowhere.id, None)
    for bad in (
        [DeleteTopicState(name=None)],
        [DeleteTopicState(name=topic.name, topic_id=topic.id)],
        [DeleteTopicState(name=topic.name), DeleteTopicState(name=topic.name)],
        [DeleteTopicState(name=topic.name), DeleteTopicState(name=None, topic_id=topic.id)],
    ):
        assert {code(result) for result in delete(wire, *bad)} == {"INVALID_REQUEST"}
    assert exists(wire, topic.name)


def test_deletion_can_be_switched_off(launch: Any) -> None:
    wire = launch(delete_topic_enable="false").connect()
    topic = wire.create("t")
    assert [code(result) for result in delete(wire, DeleteTopicState(name="t"))] == [
        "TOPIC_DELETION_DISABLED"
    ]
    assert code(wire.produce(topic, batch())) == "NONE"


def test_a_topic_created_again_is_another_one(launch: Any) -> None:
    """New id, empty log, no memory of producers: also after a restart (franz-go #1362)."""
    broker: OwnBroker = launch()
    wire = broker.connect()
    old = wire.create("t")
    known = batch(b"a", b"b", producer_id=7, producer_epoch=3, base_sequence=0)
    wire.produce(old, known)
    assert code(delete(wire, DeleteTopicState(name="t"))[0]) == "NONE"
    assert code(wire.produce(old, batch())) == "UNKNOWN_TOPIC_ID"
    assert code(wire.produce(old, batch(), version=12)) == "UNKNOWN_TOPIC_OR_PARTITION"
    new = wire.create("t")
    assert new.id != old.id
    for restarted in (False, True):
        if restarted:
            broker.restart()
            wire = broker.connect()
        assert code(wire.produce(old, batch())) == "UNKNOWN_TOPIC_ID"
        assert code(wire.fetch(old)) == "UNKNOWN_TOPIC_ID"
        assert wire.offset_at(new, -1).offset == (1 if restarted else 0)
        if not restarted:
            older_epoch = batch(producer_id=7, producer_epoch=2, base_sequence=9)
            assert wire.produce(new, older_epoch).base_offset == 0, "the old topic's epoch 3 is forgotten"


def test_deleting_while_a_produce_waits(launch: Any) -> None:
    """Each of them is answered, whichever way the race goes."""
    broker: OwnBroker = launch(durability="fsync")
    wire, other = broker.connect(), broker.connect()
    topic = wire.create("t")
    for _ in range(20):
        wire.send(wire.produce_request(topic, batch()))
    delete(other, DeleteTopicState(name="t"))
    answers = [wire.receive().responses[0].partition_responses[0] for _ in range(20)]
    assert {code(answer) for answer in answers} <= {"NONE", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID"}


# ---- CreatePartitions


def grow(
    wire: Wire,
    name: str,
    count: int,
    assignments: Sequence[Sequence[int]] | None = None,
    *,
    validate_only: bool = False,
) -> str:
    given = (
        None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=node_ids(wire, brokers)) for brokers in assignments]
    )
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=given)],
        timeout_ms=9000,
        validate_only=validate_only,
    )
    (result,) = wire.ask(request).results
    return code(result)


def partition_count(wire: Wire, name: str) -> int:
    return len(wire.metadata(name).topics[0].partitions)


def test_more_partitions(wire: Wire, topic: Topic, foreign: bool) -> None:
    wire.produce(topic, batch())
    assert grow(wire, topic.name, 3, validate_only=True) == "NONE"
    assert partition_count(wire, topic.name) == 1
    assert grow(wire, topic.name, 2) == "NONE"
    assert grow(wire, topic.name, 3, [[0]]) == "NONE"
    assert partition_count(wire, topic.name) == 3
    assert wire.offset_at(topic, -1).offset == 1
    if not foreign:
        assert wire.produce(topic, batch(), partition=2).base_offset == 0


def test_partitions_that_cannot_be(wire: Wire, name: str, nowhere: Topic) -> None:
    topic = wire.create(name, 2)
    for count in (2, 1, 0, -1):
        assert grow(wire, topic.name, count) == "INVALID_PARTITIONS"
    assert grow(wire, nowhere.name, 3) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert grow(wire, "a b", 3) == "UNKNOWN_TOPIC_OR_PARTITION"
    for bad in ([[0]], [[1], [0]], [[0, 0], [0]], [[], [0]]):
        assert grow(wire, topic.name, 4, bad) == "INVALID_REPLICA_ASSIGNMENT"
    twice = [CreatePartitionsTopic(name=topic.name, count=9, assignments=None)] * 2
    results = wire.ask(CreatePartitionsRequest(topics=twice, timeout_ms=9000)).results
    assert {code(result) for result in results} == {"INVALID_REQUEST"}
    assert partition_count(wire, topic.name) == 2


# ---- DeleteRecords


def delete_records(wire: Wire, topic: str, offset: int, partition: int = 0) -> tuple[str, int]:
    asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[asked])], timeout_ms=9000
    )
    result = wire.ask(request).topics[0].partitions[0]
    return code(result), result.low_watermark


@pytest.fixture
def five(wire: Wire, topic: Topic) -> Topic:
    for _ in range(5):
        wire.produce(topic, batch())
    return topic


def test_deleting_records(wire: Wire, five: Topic) -> None:
    assert delete_records(wire, five.name, 2) == ("NONE", 2)
    assert delete_records(wire, five.name, 1) == ("NONE", 2), "never backwards"
    assert delete_records(wire, five.name, 0) == ("NONE", 2)
    assert code(wire.fetch(five, 1)) == "OFFSET_OUT_OF_RANGE"
    assert wire.fetch(five, 2).log_start_offset == 2
    assert wire.offset_at(five, -2).offset == 2
    assert delete_records(wire, five.name, -1) == ("NONE", 5)
    assert delete_records(wire, five.name, -1) == ("NONE", 5)
    answer = wire.produce(five, batch())
    assert (answer.base_offset, answer.log_start_offset) == (5, 5)


def test_records_that_cannot_be_deleted(wire: Wire, five: Topic, nowhere: Topic, name: str) -> None:
    assert delete_records(wire, five.name, 6) == ("OFFSET_OUT_OF_RANGE", -1)
    assert delete_records(wire, five.name, -2) == ("OFFSET_OUT_OF_RANGE", -1)
    assert delete_records(wire, five.name, 1, partition=9) == ("UNKNOWN_TOPIC_OR_PARTITION", -1)
    assert delete_records(wire, nowhere.name, 1) == ("UNKNOWN_TOPIC_OR_PARTITION", -1)
    compacted = wire.create(name + "-compacted", cleanup_policy="compact")
    assert delete_records(wire, compacted.name, 0) == ("POLICY_VIOLATION", -1)
    assert wire.offset_at(five, -2).offset == 0


def test_a_duplicate_of_a_deleted_batch_is_still_a_duplicate(wire: Wire, topic: Topic) -> None:
    records = batch(producer_id=9, producer_epoch=0, base_sequence=0)
    wire.produce(topic, records)
    delete_records(wire, topic.name, -1)
    answer = wire.produce(topic, records)
    assert (code(answer), answer.base_offset) == ("NONE", 0)
    assert wire.offset_at(topic, -1).offset == 1
