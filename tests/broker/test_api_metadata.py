"""Metadata: which topics are answered, with which error, and which are created on the way."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, code
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.wire.types import ZERO_UUID

NOT_ASKED = -(2**31)


def ask(wire: Wire, *topics: MetadataRequestTopic, version: int | None = None, create: bool = False) -> Any:
    request = MetadataRequest(topics=list(topics), allow_auto_topic_creation=create)
    return wire.ask(request, version).topics


def named(name: str) -> MetadataRequestTopic:
    return MetadataRequestTopic(name=name)


def with_id(topic_id: bytes, name: str | None = None) -> MetadataRequestTopic:
    return MetadataRequestTopic(topic_id=topic_id, name=name)


def test_no_topics_is_not_all_topics(wire: Wire, topic: Topic) -> None:
    """Version 0 has no null: there an empty list asks for everything."""
    assert wire.ask(MetadataRequest(topics=[]), 1).topics == []
    assert wire.ask(MetadataRequest(topics=[])).topics == []
    for request, version in ((MetadataRequest(topics=[]), 0), (MetadataRequest(topics=None), 1)):
        assert topic.name in {found.name for found in wire.ask(request, version).topics}
    assert topic.name in {found.name for found in wire.ask(MetadataRequest(topics=None)).topics}


def test_a_partition_is_described_in_full(wire: Wire, name: str) -> None:
    wire.create(name, 2)
    response = wire.metadata(name)
    node_id = response.brokers[0].node_id
    for index, partition in enumerate(response.topics[0].partitions):
        assert (partition.error_code, partition.partition_index) == (0, index)
        assert (partition.leader_id, partition.leader_epoch) == (node_id, 0)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == (
            [node_id],
            [node_id],
            [],
        )


def test_by_id(wire: Wire, topic: Topic) -> None:
    (found,) = ask(wire, with_id(topic.id))
    assert (code(found), found.name, found.topic_id) == ("NONE", topic.name, topic.id)


def test_ids_win_over_names(wire: Wire, topic: Topic, nowhere: Topic) -> None:
    (found,) = ask(wire, with_id(topic.id, "another-name"))
    assert (code(found), found.name) == ("NONE", topic.name)
    assert [found.name for found in ask(wire, with_id(topic.id), named(nowhere.name))] == [topic.name]


def test_an_unknown_id(wire: Wire) -> None:
    wanted = uuid.uuid4().bytes
    (found,) = ask(wire, with_id(wanted))
    assert (code(found), found.name, found.topic_id) == ("UNKNOWN_TOPIC_ID", None, wanted)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_refused_before_version_12(wire: Wire, topic: Topic, version: int) -> None:
    (found,) = ask(wire, with_id(topic.id, topic.name), version=version)
    assert (code(found), found.name) == ("INVALID_REQUEST", topic.name)
    (found,) = ask(wire, with_id(topic.id, None), version=version)
    assert (code(found), found.name) == ("INVALID_REQUEST", "")


@pytest.mark.parametrize("version", [4, 9, 13])
def test_an_unknown_topic_is_not_created_when_the_client_forbids_it(
    wire: Wire, nowhere: Topic, version: int
) -> None:
    for _ in range(2):
        (found,) = ask(wire, named(nowhere.name), version=version)
        assert (code(found), found.name) == ("UNKNOWN_TOPIC_OR_PARTITION", nowhere.name)
        assert (found.topic_id, found.partitions) == (ZERO_UUID, [])


@pytest.mark.parametrize("name", ["bad name", "..", ".", "", "a" * 250, "a/b", "ä"])
@pytest.mark.parametrize("create", [True, False])
def test_an_invalid_name(wire: Wire, name: str, create: bool) -> None:
    (found,) = ask(wire, named(name), create=create)
    assert (code(found), found.name) == ("INVALID_TOPIC_EXCEPTION", name)


def test_a_name_asked_for_twice_is_answered_once(wire: Wire, topic: Topic) -> None:
    assert [found.name for found in ask(wire, named(topic.name), named(topic.name))] == [topic.name]


def test_authorized_operations_are_told_on_request(wire: Wire, topic: Topic) -> None:
    request = MetadataRequest(
        topics=[named(topic.name)],
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    response = wire.ask(request, 8)
    assert (response.cluster_authorized_operations, response.topics[0].topic_authorized_operations) == (
        8096,
        3576,
    )
    response = wire.ask(MetadataRequest(topics=[named(topic.name)]), 8)
    assert response.cluster_authorized_operations == NOT_ASKED
    assert response.topics[0].topic_authorized_operations == NOT_ASKED


# ---- creation on the way: ours answers at once with a leader, where Kafka makes the client ask again


@pytest.mark.parametrize("version", [0, 3, 4, 13])
def test_auto_creation_shows_in_the_next_answer(launch: Any, version: int) -> None:
    """The request that creates the topic still says that it was not there: kafka-go's users poll for a deleted topic so."""
    broker: OwnBroker = launch(num_partitions=3)
    wire = broker.connect()
    (found,) = ask(wire, named("orders"), version=version, create=True)
    assert (code(found), found.partitions) == ("UNKNOWN_TOPIC_OR_PARTITION", [])
    (found,) = ask(wire, named("orders"), version=version, create=True)
    assert (code(found), len(found.partitions)) == ("NONE", 3)
    assert all(partition.leader_id == broker.broker.node_id for partition in found.partitions)


def test_auto_creation_can_be_switched_off(launch: Any) -> None:
    wire = launch(auto_create_topics_enable="false").connect()
    for _ in range(2):
        (found,) = ask(wire, named("orders"), create=True)
        assert code(found) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_auto_creation_of_several_topics_some_of_them_bad(launch: Any) -> None:
    wire = launch().connect()
    wire.create("metrics.cpu")
    asked = (named("a"), named("metrics_cpu"), named("b b"), named("c"))
    ask(wire, *asked, create=True)
    found = ask(wire, *asked, create=True)
    assert [(topic.name, code(topic)) for topic in found] == [
        ("a", "NONE"),
        ("metrics_cpu", "INVALID_TOPIC_EXCEPTION"),
        ("b b", "INVALID_TOPIC_EXCEPTION"),
        ("c", "NONE"),
    ]


@pytest.mark.parametrize(
    "internal", ["__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"]
)
def test_internal_topics_are_never_created_by_asking(launch: Any, internal: str) -> None:
    """With one partition instead of fifty, every group would later be looked for in the wrong place."""
    wire = launch().connect()
    (found,) = ask(wire, named(internal), create=True)
    assert (code(found), found.is_internal) == (
        "UNKNOWN_TOPIC_OR_PARTITION",
        internal != "__cluster_metadata",
    )
    assert wire.ask(MetadataRequest(topics=None)).topics == []
