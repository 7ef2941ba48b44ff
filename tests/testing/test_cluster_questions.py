"""What three brokers answer about themselves: DescribeCluster and DescribeQuorum as Apache Kafka 4.3.1 answers them, warnings in their logs, ExplainReplicas."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import pytest

from tests.broker.conftest import Wire, code
from tidelog.testing import Cluster
from tidelog.wire.messages import describe_quorum as quorum
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tidelog.wire.messages.describe_cluster import DescribeClusterRequest
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tidelog.wire.tidelog_api import ExplainReplicasRequest, ExplainReplicasTopic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SECONDS_MAX = 60.0


def wait_until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, topics={"orders": 1}) as cluster:
        yield cluster


def ports(cluster: Cluster) -> list[int]:
    return [int(server.rpartition(":")[2]) for server in cluster.bootstrap_servers.split(",")]


def asked(*topics: tuple[str, list[int]]) -> quorum.DescribeQuorumRequest:
    return quorum.DescribeQuorumRequest(
        topics=[
            quorum.RequestTopicData(name, [quorum.RequestPartitionData(index) for index in indexes])
            for name, indexes in topics
        ]
    )


def test_every_broker_tells_of_the_quorum(cluster: Cluster) -> None:
    for port in ports(cluster):
        with Wire(port) as wire:
            response = wire.ask(asked(("__cluster_metadata", [0])))
        (part,) = response.topics[0].partitions
        assert (response.error_code, part.error_code, part.leader_id) == (0, 0, cluster.controller)
        assert [voter.replica_id for voter in part.current_voters] == [0, 1, 2]
        assert [node.node_id for node in response.nodes] == [0, 1, 2]
        assert [node.listeners[0].port for node in response.nodes] == cluster._controller_ports
        assert {node.listeners[0].name for node in response.nodes} == {"CONTROLLER"}


def test_only_the_metadata_has_a_quorum(cluster: Cluster) -> None:
    with Wire(ports(cluster)[0]) as wire:
        for question in (asked(("orders", [0, 1])), asked(("__cluster_metadata", [0, 1]))):
            response = wire.ask(question)
            assert [code(part) for part in response.topics[0].partitions] == [
                "UNKNOWN_TOPIC_OR_PARTITION"
            ] * 2
            assert response.nodes == []
        assert wire.ask(asked()).topics == []


def test_controllers_tell_of_controllers(cluster: Cluster) -> None:
    for port in cluster._controller_ports:
        with Wire(port) as wire:
            response = wire.ask(DescribeClusterRequest(endpoint_type=2))
            assert (response.error_code, response.endpoint_type) == (0, 2)
            assert response.controller_id == cluster.controller
            told = [(node.broker_id, node.port) for node in response.brokers]
            assert told == list(enumerate(cluster._controller_ports))
            assert code(wire.ask(DescribeClusterRequest(endpoint_type=1))) == "MISMATCHED_ENDPOINT_TYPE"
            assert code(wire.ask(DescribeClusterRequest(endpoint_type=7))) == "UNSUPPORTED_ENDPOINT_TYPE"


def test_fenced_brokers_are_told_to_those_who_ask() -> None:
    with Cluster(brokers=3) as cluster:
        gone = next(node for node in range(3) if node != cluster.controller)
        port = ports(cluster)[cluster.controller or 0]
        cluster.kill(gone)
        with Wire(port) as wire:
            every = DescribeClusterRequest(include_fenced_brokers=True)
            wait_until(lambda: {b.broker_id for b in wire.ask(every).brokers if b.is_fenced} == {gone})
            assert [b.broker_id for b in wire.ask(every).brokers] == [0, 1, 2]
            assert gone not in {b.broker_id for b in wire.ask(DescribeClusterRequest()).brokers}
            assert gone not in {b.broker_id for b in wire.ask(every, 1).brokers}, (
                "1 has no place for the word"
            )


def test_replicas_are_explained_by_every_broker(cluster: Cluster) -> None:
    leader = cluster.leader_of("orders", 0)
    for number, port in enumerate(ports(cluster)):
        with Wire(port) as wire:
            response = wire.ask(ExplainReplicasRequest())
            assert (response.error_code, response.broker_id) == (0, number)
            assert response.controller_id == cluster.controller
            assert [(each.broker_id, each.state) for each in response.brokers] == [
                (node, "active") for node in range(3)
            ]
            (found,) = [each for each in response.partitions if each.topic == "orders"]
            assert found.role == ("leader" if number == leader else "follower")
            assert len(found.replicas) == (3 if number == leader else 0)
            named = ExplainReplicasRequest(
                topics=[ExplainReplicasTopic("orders", [0, 7]), ExplainReplicasTopic("no", [0])]
            )
            assert [(p.topic, p.partition) for p in wire.ask(named).partitions] == [("orders", 0)]


def test_footguns_are_told_in_the_log_whoever_sets_them(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Sent to a broker that sends it on: the controller has decided on it, and says it once."""
    elsewhere = next(node for node in range(3) if node != cluster.controller)
    with caplog.at_level(logging.WARNING, logger="tidelog.broker"), Wire(ports(cluster)[elsewhere]) as wire:
        topic = CreatableTopic(
            "risky",
            1,
            3,
            [],
            [
                CreatableTopicConfig("min.insync.replicas", "1"),
                CreatableTopicConfig("unclean.leader.election.enable", "true"),
            ],
        )
        single = CreatableTopic("single", 1, 1, [], [])
        refused = CreatableTopic("refused", 1, 99, [], [])
        for validate_only in (True, False):
            caplog.clear()
            wire.ask(CreateTopicsRequest(topics=[topic, single, refused], validate_only=validate_only))
            told = [record.getMessage() for record in caplog.records if "topic " in record.getMessage()]
            assert len(told) == (0 if validate_only else 4), told
        assert "topic risky: min.insync.replicas is 1 with 3 replicas" in told[0]
        assert "topic risky: unclean.leader.election.enable is true" in told[1]
        assert "topic single: min.insync.replicas is 2 but of replicas there is only 1" in told[2]
        assert "topic single: the replication factor is 1 in a cluster of 3 brokers" in told[3]
        caplog.clear()
        change = AlterableConfig("min.insync.replicas", 0, "3")
        wire.ask(IncrementalAlterConfigsRequest([AlterConfigsResource(2, "orders", [change])]))
        assert any(
            "topic orders: min.insync.replicas equals the replication factor (3)" in r.getMessage()
            for r in caplog.records
        )
        caplog.clear()
        change = AlterableConfig("unclean.leader.election.enable", 0, "true")
        wire.ask(IncrementalAlterConfigsRequest([AlterConfigsResource(4, "", [change])]))
        assert any("settings of all brokers: for every topic" in r.getMessage() for r in caplog.records)
