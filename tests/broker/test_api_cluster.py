"""The cluster, its partitions page by page, its directories, producer ids, and what is told before anything else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Wire, batch, code
from tidelog.wire.messages import describe_topic_partitions as pages
from tidelog.wire.messages.api_versions import ApiVersionsRequest
from tidelog.wire.messages.describe_cluster import DescribeClusterRequest
from tidelog.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest

NOT_ASKED = -(2**31)

# ---- DescribeCluster


@pytest.mark.parametrize(
    ("endpoint_type", "expected"),
    [
        (1, "NONE"),
        (2, "MISMATCHED_ENDPOINT_TYPE"),
        (3, "UNSUPPORTED_ENDPOINT_TYPE"),
        (0, "UNSUPPORTED_ENDPOINT_TYPE"),
    ],
)
def test_endpoint_types(wire: Wire, endpoint_type: int, expected: str) -> None:
    response = wire.ask(DescribeClusterRequest(endpoint_type=endpoint_type))
    assert code(response) == expected
    assert len(response.brokers) == (expected == "NONE")
    assert code(wire.ask(DescribeClusterRequest(endpoint_type=endpoint_type), 0)) == "NONE"


def test_cluster_operations_are_told_on_request(wire: Wire) -> None:
    assert wire.ask(DescribeClusterRequest()).cluster_authorized_operations == NOT_ASKED
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert wire.ask(request).cluster_authorized_operations == 8096


# ---- DescribeTopicPartitions


class Book:
    """Topics A with three partitions and B with two."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire = wire
        self.names = {"A": name + "-a", "B": name + "-b"}
        wire.create(self.names["A"], 3)
        wire.create(self.names["B"], 2)

    def page(
        self, *topics: str, limit: int = 2000, cursor: tuple[str, int] | None = None
    ) -> tuple[list[tuple[str, str, list[int]]], tuple[str, int] | None]:
        request = pages.DescribeTopicPartitionsRequest(
            topics=[pages.TopicRequest(name=self.names.get(topic, topic)) for topic in topics],
            response_partition_limit=limit,
        )
        if cursor is not None:
            request.cursor = pages.Cursor(
                topic_name=self.names.get(cursor[0], cursor[0]), partition_index=cursor[1]
            )
        response = self.wire.ask(request)
        short = {full: short for short, full in self.names.items()}
        found = [
            (short.get(topic.name, topic.name), code(topic), [p.partition_index for p in topic.partitions])
            for topic in response.topics
        ]
        following = response.next_cursor
        return found, following and (
            short.get(following.topic_name, following.topic_name),
            following.partition_index,
        )


@pytest.fixture
def book(wire: Wire, name: str) -> Book:
    return Book(wire, name)


ALL = [("A", "NONE", [0, 1, 2]), ("B", "NONE", [0, 1])]


def test_pages_are_in_order_of_names(book: Book) -> None:
    assert book.page("B", "A") == (ALL, None)
    assert book.page("A", "A", "B") == (ALL, None)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (5, (ALL, None)),
        (4, ([ALL[0], ("B", "NONE", [0])], ("B", 1))),
        (3, ([ALL[0]], ("B", 0))),
        (2, ([("A", "NONE", [0, 1])], ("A", 2))),
        (0, ([("A", "NONE", [0])], ("A", 1))),
        (-1, ([("A", "NONE", [0])], ("A", 1))),
    ],
)
def test_a_page_has_a_limit(book: Book, limit: int, expected: Any) -> None:
    assert book.page("A", "B", limit=limit) == expected


def test_paging_through(book: Book) -> None:
    seen, cursor = [], None
    for _ in range(3):
        found, cursor = book.page("A", "B", limit=2, cursor=cursor)
        seen += [(name, index) for name, _, indexes in found for index in indexes]
    assert cursor is None
    assert seen == [("A", 0), ("A", 1), ("A", 2), ("B", 0), ("B", 1)]


def test_cursors(book: Book) -> None:
    assert book.page("A", "B", cursor=("A", 2)) == ([("A", "NONE", [2]), ALL[1]], None)
    assert book.page("A", "B", cursor=("B", 1)) == ([("B", "NONE", [1])], None)
    refused = [("A", "INVALID_REQUEST", []), ("B", "INVALID_REQUEST", [])]
    for bad in (("A", -1), ("zz", 0), ("0", 0)):
        assert book.page("A", "B", cursor=bad) == (refused, None)


def test_unknown_topics(book: Book) -> None:
    unknown = ("zzz", "UNKNOWN_TOPIC_OR_PARTITION", [])
    assert book.page("zzz") == ([unknown], None)
    assert book.page("A", "zzz") == ([ALL[0], unknown], None)
    assert book.page("A", "zzz", limit=3) == ([ALL[0]], ("zzz", 0))


def test_all_topics(launch: Any) -> None:
    wire = launch().connect()
    for topic in ("c", "a", "b"):
        wire.create(topic)
    response = wire.ask(pages.DescribeTopicPartitionsRequest(response_partition_limit=2))
    assert [topic.name for topic in response.topics] == ["a", "b"]
    response = wire.ask(pages.DescribeTopicPartitionsRequest(cursor=response.next_cursor))
    assert [topic.name for topic in response.topics] == ["c"]


# ---- DescribeLogDirs


def log_dirs(wire: Wire, *topics: DescribableLogDirTopic) -> dict[tuple[str, int], int]:
    (result,) = wire.ask(DescribeLogDirsRequest(topics=list(topics))).results
    assert result.error_code == 0 and not result.is_cordoned
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in result.topics
        for partition in topic.partitions
        if not partition.is_future_key and partition.offset_lag == 0
    }


def test_log_dirs(wire: Wire, name: str) -> None:
    topic = wire.create(name, 3)
    for _ in range(2):
        wire.produce(topic, batch(), partition=2)
    assert log_dirs(wire, DescribableLogDirTopic(topic=name, partitions=[0, 2, 9])) == {
        (name, 0): 0,
        (name, 2): 2 * len(batch()),
    }
    assert log_dirs(wire, DescribableLogDirTopic(topic=name, partitions=[])) == {}
    assert log_dirs(wire, DescribableLogDirTopic(topic="nope", partitions=[0])) == {}
    assert log_dirs(wire) == {}
    (everything,) = wire.ask(DescribeLogDirsRequest(topics=None)).results
    assert name in {topic.name for topic in everything.topics}
    assert 0 < everything.usable_bytes <= everything.total_bytes


# ---- InitProducerId


def init(wire: Wire, **more: Any) -> tuple[str, bool, int]:
    response = wire.ask(InitProducerIdRequest(transaction_timeout_ms=1000, **more))
    return code(response), response.producer_id >= 0, response.producer_epoch


def test_producer_ids_are_never_given_twice(launch: Any) -> None:
    """Neither by one connection, nor by several, nor over restarts, clean or not (I39)."""
    broker: OwnBroker = launch()
    seen: list[int] = []
    for _ in range(3):
        wires = [broker.connect() for _ in range(3)]
        for wire in wires:
            for _ in range(5):
                wire.send(InitProducerIdRequest(transactional_id=None))
        answers = [wire.receive() for wire in wires for _ in range(5)]
        assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
        seen += [answer.producer_id for answer in answers]
        broker.restart()
    assert len(set(seen)) == len(seen) == 45


def test_a_block_of_producer_ids_is_used_up(launch: Any) -> None:
    wire = launch().connect()
    for _ in range(1005):
        wire.send(InitProducerIdRequest(transactional_id=None))
    ids = {wire.receive().producer_id for _ in range(1005)}
    assert len(ids) == 1005 and min(ids) >= 0


def test_producer_ids_that_make_no_sense(wire: Wire, foreign: bool) -> None:
    assert init(wire, transactional_id="") == ("INVALID_REQUEST", False, -1)
    assert init(wire, transactional_id=None, producer_id=5) == ("INVALID_REQUEST", False, -1)
    assert init(wire, transactional_id=None, producer_epoch=5) == ("INVALID_REQUEST", False, -1)
    if not foreign:
        assert init(wire, transactional_id=None, producer_id=5, producer_epoch=3) == ("NONE", True, 0)
        assert init(wire, transactional_id="t") == ("UNSUPPORTED_VERSION", False, -1)


# ---- FindCoordinator


def test_there_is_no_coordinator_of_transactions_yet(wire: Wire, foreign: bool) -> None:
    if foreign:
        pytest.skip("Kafka has coordinators")
    request = FindCoordinatorRequest(coordinator_keys=["a", "b"], key_type=1)
    assert [(found.key, code(found), found.node_id) for found in wire.ask(request).coordinators] == [
        ("a", "COORDINATOR_NOT_AVAILABLE", -1),
        ("b", "COORDINATOR_NOT_AVAILABLE", -1),
    ]


@pytest.mark.parametrize(("key_type", "version"), [(3, 6), (7, 4), (2, 5), (-1, 4)])
def test_key_types_that_do_not_exist(wire: Wire, key_type: int, version: int) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["g"], key_type=key_type)
    assert [code(found) for found in wire.ask(request, version).coordinators] == ["INVALID_REQUEST"]


# ---- ApiVersions


@pytest.mark.parametrize(
    ("name", "version", "accepted"),
    [
        ("x-1.y", "1", True),
        ("a", "v1.0-rc", True),
        ("", "1", False),
        ("-a", "1", False),
        ("a-", "1", False),
        ("a b", "1", False),
        ("é", "1", False),
        ("a", "", False),
        ("a", "1_0", False),
    ],
)
def test_software_names(wire: Wire, name: str, version: str, accepted: bool) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    for api_version in (3, 4):
        response = wire.ask(request, api_version)
        assert code(response) == ("NONE" if accepted else "INVALID_REQUEST")
        assert bool(response.api_keys) == accepted
    assert code(wire.ask(request, 2)) == "NONE", "older versions do not carry it"


def test_features(wire: Wire) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    old, new = wire.ask(request, 3), wire.ask(request, 4)
    assert all(feature.min_version > 0 for feature in old.supported_features), "KAFKA-17011"
    assert {"metadata.version"} <= {feature.name for feature in old.supported_features}
    assert {feature.name for feature in old.supported_features} < {
        feature.name for feature in new.supported_features
    }
    assert new.finalized_features_epoch >= 0
    finalized = {feature.name: feature.max_version_level for feature in new.finalized_features}
    assert finalized["metadata.version"] == 30
