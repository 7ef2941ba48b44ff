"""CreateTopics, DeleteTopics and CreatePartitions answer as an Apache Kafka 4.3.1 controller does.

The codes in the tables were recorded from a real broker with the same requests.
"""

from __future__ import annotations

import pytest

from tests.controller.world import World, topic
from tidelog.controller.image import ResourceType
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from tidelog.wire.messages.create_topics import CreatableTopic, CreatableTopicResult, CreateTopicsRequest
from tidelog.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState

NO_ID = bytes(16)


@pytest.fixture
def world() -> World:
    world = World(num_partitions=4)
    world.add_broker(1)
    assert world.create(topic("a", 3), topic("a.b"), topic("k", 2)) == [0, 0, 0]
    return world


def creation(
    world: World, *topics: CreatableTopic, validate_only: bool = False
) -> list[CreatableTopicResult]:
    return world.do(
        world.controller.create_topics(CreateTopicsRequest(list(topics), validate_only=validate_only))
    ).topics


# ---- CreateTopics

REFUSED = [
    (topic("a"), E.TOPIC_ALREADY_EXISTS, "'a' already exists"),
    (topic("a", 0, 9), E.TOPIC_ALREADY_EXISTS, "'a' already exists"),
    (topic("a_b"), E.INVALID_TOPIC_EXCEPTION, "'a.b'"),
    (topic(".."), E.INVALID_TOPIC_EXCEPTION, "'..'"),
    (topic("."), E.INVALID_TOPIC_EXCEPTION, "'.'"),
    (topic(""), E.INVALID_TOPIC_EXCEPTION, "empty"),
    (topic("x" * 250), E.INVALID_TOPIC_EXCEPTION, "249"),
    (topic("a b"), E.INVALID_TOPIC_EXCEPTION, "'a b'"),
    (topic("é", 0), E.INVALID_TOPIC_EXCEPTION, "ASCII"),
    (topic("__cluster_metadata"), E.INVALID_REQUEST, "__cluster_metadata"),
    (topic("n", 0), E.INVALID_PARTITIONS, "not 0"),
    (topic("n", -2), E.INVALID_PARTITIONS, "not -2"),
    (topic("n", 1, 0), E.INVALID_REPLICATION_FACTOR, "not 0"),
    (topic("n", 1, -2), E.INVALID_REPLICATION_FACTOR, "not -2"),
    (topic("n", 0, 0), E.INVALID_REPLICATION_FACTOR, "not 0"),
    (topic("n", 1, 2), E.INVALID_REPLICATION_FACTOR, "only 1"),
    (topic("n", 20_000), E.POLICY_VIOLATION, "20000"),
    (topic("n", 9_999 + 1), E.POLICY_VIOLATION, "10001 metadata records"),
    (topic("n", 2, -1, assignments={0: [1], 1: [1]}), E.INVALID_REQUEST, "partition count"),
    (topic("n", -1, 1, assignments={0: [1]}), E.INVALID_REQUEST, "replication factor"),
    (topic("n", 1, 1, assignments={0: [1]}), E.INVALID_REQUEST, "replication factor"),
    (topic("n", -1, -1, assignments={0: [1], 2: [1]}), E.INVALID_REPLICA_ASSIGNMENT, "0 to 1"),
    (topic("n", -1, -1, assignments={-1: [1]}), E.INVALID_REPLICA_ASSIGNMENT, "without a gap"),
    (topic("n", -1, -1, assignments=[(0, [1]), (0, [1])]), E.INVALID_REPLICA_ASSIGNMENT, "partition 0"),
    (topic("n", -1, -1, assignments={0: [1, 1]}), E.INVALID_REPLICA_ASSIGNMENT, "broker 1"),
    (topic("n", -1, -1, assignments={0: [9]}), E.INVALID_REPLICA_ASSIGNMENT, "broker 9"),
    (topic("n", -1, -1, assignments={0: [-1]}), E.INVALID_REPLICA_ASSIGNMENT, "broker -1"),
    (topic("n", -1, -1, assignments={0: []}), E.INVALID_REPLICA_ASSIGNMENT, "no broker"),
    (topic("n", -1, -1, assignments={0: [1], 1: [1, 9]}), E.INVALID_REPLICA_ASSIGNMENT, "broker 9"),
    (topic("n", configs={"nope": "x"}), E.INVALID_CONFIG, "nope"),
    (topic("n", 0, configs={"nope": "x"}), E.INVALID_CONFIG, "nope"),
    (topic("n", configs={"retention.ms": "x"}), E.INVALID_CONFIG, "retention.ms"),
    (topic("n", configs={"retention.ms": None}), E.INVALID_CONFIG, "no value"),
]


@pytest.mark.parametrize(("wanted", "code", "says"), REFUSED, ids=lambda value: getattr(value, "name", None))
def test_a_topic_that_cannot_be_is_refused(world: World, wanted: CreatableTopic, code: E, says: str) -> None:
    before = world.image
    (result,) = creation(world, wanted)
    assert E(result.error_code) == code
    assert says in (result.error_message or "")
    assert (result.num_partitions, result.replication_factor, result.topic_id) == (-1, -1, NO_ID)
    assert world.image is before


def test_a_new_topic_is_in_the_image_as_it_was_asked_for(world: World) -> None:
    (result,) = creation(world, topic("t", 3, configs=[("retention.ms", "1"), ("retention.ms", "2")]))
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    assert result.configs is not None
    created = world.image.topics_by_name["t"]
    assert created.topic_id == result.topic_id != NO_ID
    assert list(created.partitions) == [0, 1, 2]
    partition = created.partitions[0]
    assert (partition.replicas, partition.isr, partition.leader) == ((1,), (1,), 1)
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert partition.directories == world.image.brokers[1].log_dirs
    assert world.image.config(ResourceType.TOPIC, "t") == {
        "retention.ms": "2"
    }  # the last one counts, as in Kafka


def test_minus_one_means_the_defaults(world: World) -> None:
    (result,) = creation(world, topic("t", -1, -1))
    assert (result.num_partitions, result.replication_factor) == (4, 1)


@pytest.mark.parametrize("name", ["x" * 249, "__x", "__consumer_offsets", "A-Z_0.9"])
def test_unusual_names_are_allowed(world: World, name: str) -> None:
    assert world.create(topic(name)) == [0]


def test_each_topic_of_a_request_stands_for_itself(world: World) -> None:
    results = creation(world, topic("bad name"), topic("good"), topic("twice"), topic("twice", 2))
    assert [(result.name, E(result.error_code)) for result in results] == [
        ("bad name", E.INVALID_TOPIC_EXCEPTION),
        ("good", E.NONE),
        ("twice", E.INVALID_REQUEST),
    ]
    assert "good" in world.image.topics_by_name
    assert "twice" not in world.image.topics_by_name


def test_names_that_collide_within_one_request_are_refused_too(world: World) -> None:
    assert world.create(topic("x.y"), topic("x_y")) == [0, E.INVALID_TOPIC_EXCEPTION]


def test_validate_only_answers_the_same_and_writes_nothing(world: World) -> None:
    before = world.image
    results = creation(world, topic("t", 3), topic("a"), validate_only=True)
    assert [(E(result.error_code), result.num_partitions) for result in results] == [
        (E.NONE, 3),
        (E.TOPIC_ALREADY_EXISTS, -1),
    ]
    assert world.image is before


def test_too_much_at_once_refuses_every_topic_of_the_request(world: World) -> None:
    results = creation(world, topic("s"), topic("l", 9_999))
    assert [E(result.error_code) for result in results] == [E.POLICY_VIOLATION] * 2
    assert "s" not in world.image.topics_by_name


def test_the_cluster_has_a_limit_of_partitions() -> None:
    world = World(partitions_per_cluster_max=10)
    world.add_broker(1)
    assert world.create(topic("t", 8)) == [0]
    assert world.create(topic("u", 3)) == [E.POLICY_VIOLATION]
    assert world.create(topic("u", 2)) == [0]
    (grown,) = growth(world, ("u", 3))
    assert E(grown.error_code) == E.POLICY_VIOLATION


def test_without_a_broker_that_can_lead_no_topic_is_created() -> None:
    world = World()
    assert world.create(topic("t")) == [E.INVALID_REPLICATION_FACTOR]
    world.add_broker(1, unfence=False)
    assert world.create(topic("t")) == [E.INVALID_REPLICATION_FACTOR]
    assert world.create(topic("t", -1, -1, assignments={0: [1]})) == [E.INVALID_REPLICA_ASSIGNMENT]


def test_a_manual_assignment_is_taken_as_it_is_and_only_active_brokers_are_in_sync() -> None:
    world = World()
    for broker in (1, 2):
        world.add_broker(broker)
    world.add_broker(3, unfence=False)
    (result,) = creation(world, topic("t", -1, -1, assignments={0: [3, 2], 1: [1, 2]}))
    assert (result.num_partitions, result.replication_factor) == (2, 2)
    first, second = world.image.topics_by_name["t"].partitions.values()
    assert (first.replicas, first.isr, first.leader) == ((3, 2), (2,), 2)
    assert (second.replicas, second.isr, second.leader) == ((1, 2), (1, 2), 1)
    assert world.create(topic("u", -1, -1, assignments={0: [1, 2], 1: [1]})) == [E.INVALID_REPLICA_ASSIGNMENT]


# ---- DeleteTopics


def deletion(world: World, *states: tuple[str | None, bytes]) -> list[tuple[str | None, bytes, E]]:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name, topic_id) for name, topic_id in states])
    return [_summary(result) for result in world.do(world.controller.delete_topics(request)).responses]


def _summary(result: DeletableTopicResult) -> tuple[str | None, bytes, E]:
    assert (result.error_message is None) == (result.error_code == 0)
    return result.name, result.topic_id, E(result.error_code)


def test_topics_are_deleted_by_name_and_by_id(world: World) -> None:
    a, k = world.image.topics_by_name["a"].topic_id, world.image.topics_by_name["k"].topic_id
    assert deletion(world, ("a", NO_ID), (None, k)) == [("a", a, E.NONE), ("k", k, E.NONE)]
    assert list(world.image.topics_by_name) == ["a.b"]


def test_what_is_not_there_cannot_be_deleted(world: World) -> None:
    other = b"o" * 16
    assert deletion(world, ("nope", NO_ID), ("a b", NO_ID), ("", NO_ID), (None, other)) == [
        ("nope", NO_ID, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", NO_ID, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("", NO_ID, E.UNKNOWN_TOPIC_OR_PARTITION),
        (None, other, E.UNKNOWN_TOPIC_ID),
    ]


def test_a_topic_to_delete_has_one_of_name_and_id(world: World) -> None:
    a = world.image.topics_by_name["a"].topic_id
    assert deletion(world, ("a", a)) == [("a", a, E.INVALID_REQUEST)]
    assert deletion(world, (None, NO_ID)) == [(None, NO_ID, E.INVALID_REQUEST)]
    assert "a" in world.image.topics_by_name


def test_a_topic_named_twice_is_not_deleted(world: World) -> None:
    a, k = world.image.topics_by_name["a"].topic_id, world.image.topics_by_name["k"].topic_id
    assert deletion(world, ("a", NO_ID), ("a", NO_ID), ("a.b", NO_ID))[0] == ("a", NO_ID, E.INVALID_REQUEST)
    assert deletion(world, (None, k), (None, k)) == [(None, k, E.INVALID_REQUEST)]
    assert deletion(world, ("a", NO_ID), (None, a)) == [
        ("a", NO_ID, E.INVALID_REQUEST),
        (None, a, E.INVALID_REQUEST),
    ]
    assert sorted(world.image.topics_by_name) == ["a", "k"]


def test_old_requests_name_topics_in_another_field(world: World) -> None:
    response = world.do(world.controller.delete_topics(DeleteTopicsRequest(topic_names=["a", "nope"])))
    assert [E(result.error_code) for result in response.responses] == [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION]


def test_deletion_can_be_switched_off() -> None:
    world = World(delete_topic_enable=False)
    world.add_broker(1)
    world.create(topic("t"))
    assert deletion(world, ("t", NO_ID)) == [("t", NO_ID, E.TOPIC_DELETION_DISABLED)]


# ---- CreatePartitions


def growth(
    world: World, *topics: tuple[str, int] | tuple[str, int, list[list[int]]], validate_only: bool = False
) -> list[CreatePartitionsTopicResult]:
    wanted = [
        CreatePartitionsTopic(
            name, count, [CreatePartitionsAssignment(brokers) for brokers in manual[0]] if manual else None
        )
        for name, count, *manual in topics
    ]
    request = CreatePartitionsRequest(wanted, validate_only=validate_only)
    return world.do(world.controller.create_partitions(request)).results


@pytest.mark.parametrize(
    ("wanted", "code", "says"),
    [
        (("k", 2), E.INVALID_PARTITIONS, "has 2 partitions"),
        (("k", 1), E.INVALID_PARTITIONS, "1 would not be more"),
        (("k", 0), E.INVALID_PARTITIONS, "0 would"),
        (("k", -1), E.INVALID_PARTITIONS, "-1 would"),
        (("nope", 3), E.UNKNOWN_TOPIC_OR_PARTITION, "'nope'"),
        (("", 3), E.UNKNOWN_TOPIC_OR_PARTITION, "''"),
        (("k", 4, [[1]]), E.INVALID_REPLICA_ASSIGNMENT, "1 assignments"),
        (("k", 4, [[1], [1], [1]]), E.INVALID_REPLICA_ASSIGNMENT, "3 assignments"),
        (("k", 4, []), E.INVALID_REPLICA_ASSIGNMENT, "0 assignments"),
        (("k", 4, [[1], [9]]), E.INVALID_REPLICA_ASSIGNMENT, "broker 9"),
        (("k", 4, [[1], [1, 1]]), E.INVALID_REPLICA_ASSIGNMENT, "more than once"),
        (("k", 4, [[1], []]), E.INVALID_REPLICA_ASSIGNMENT, "no broker"),
        (("k", 20_000), E.POLICY_VIOLATION, "19998"),
    ],
)
def test_partitions_that_cannot_be_added(
    world: World, wanted: tuple[str, int] | tuple[str, int, list[list[int]]], code: E, says: str
) -> None:
    before = world.image
    (result,) = growth(world, wanted)
    assert E(result.error_code) == code
    assert says in (result.error_message or "")
    assert world.image is before


def test_partitions_are_added_behind_the_others(world: World) -> None:
    before = world.image.topics_by_name["k"]
    first, second = growth(world, ("k", 5), ("a", 5, [[1], [1]]))
    assert (first.error_code, first.error_message, second.error_code) == (0, None, 0)
    after = world.image.topics_by_name["k"]
    assert list(after.partitions) == [0, 1, 2, 3, 4]
    assert after.topic_id == before.topic_id
    assert after.partitions[0] is before.partitions[0]
    assert len(world.image.topics_by_name["a"].partitions) == 5


def test_growth_refuses_what_is_named_twice_and_only_validates_when_asked(world: World) -> None:
    results = growth(world, ("k", 4), ("k", 5), ("a", 9), validate_only=True)
    assert [(result.name, E(result.error_code)) for result in results] == [
        ("k", E.INVALID_REQUEST),
        ("a", E.NONE),
    ]
    assert len(world.image.topics_by_name["a"].partitions) == 3


def test_a_different_number_of_replicas_for_new_partitions_is_refused() -> None:
    world = World()
    world.add_broker(1)
    world.add_broker(2)
    world.create(topic("t", 1, 2))
    (result,) = growth(world, ("t", 2, [[1]]))
    assert E(result.error_code) == E.INVALID_REPLICA_ASSIGNMENT
    assert "1 replicas" in (result.error_message or "")
