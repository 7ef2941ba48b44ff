"""`Cluster(brokers=3)`: three brokers in a test's own process, and the faults that it can throw at them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from tidelog.client.addresses import Address, parse_address
from tidelog.client.blocking import Consumer, Producer
from tidelog.client.cluster import ClusterClient
from tidelog.client.connection import Connection
from tidelog.testing import Cluster
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tools.peers.raw import build_batch

TOPIC = "orders"
SECONDS_MAX = 60.0


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def read(cluster: Cluster, count: int) -> list[bytes | None]:
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest", group_id="readers") as consumer:
        consumer.subscribe([TOPIC])
        found: list[bytes | None] = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(found) < count and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(timeout_ms=500)]
        return found


@pytest.mark.timeout(180)
def test_the_others_go_on_when_one_is_killed_and_it_comes_back() -> None:
    with Cluster(brokers=3, topics={TOPIC: 1}) as cluster, Producer(cluster.bootstrap_servers) as producer:
        assert cluster.in_sync(TOPIC, 0) == {0, 1, 2}
        producer.send_and_wait(TOPIC, b"before")
        killed = cluster.leader_of(TOPIC, 0)
        cluster.kill(killed)
        assert producer.send_and_wait(TOPIC, b"meanwhile").offset == 1
        assert cluster.leader_of(TOPIC, 0) != killed
        assert killed not in cluster.in_sync(TOPIC, 0)
        cluster.restart(killed)
        wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1, 2})
        assert producer.send_and_wait(TOPIC, b"after").offset == 2
        assert read(cluster, 3) == [b"before", b"meanwhile", b"after"]


@pytest.mark.timeout(180)
def test_a_broker_that_is_stopped_hands_over_first() -> None:
    with Cluster(brokers=3, topics={TOPIC: 1}) as cluster, Producer(cluster.bootstrap_servers) as producer:
        producer.send_and_wait(TOPIC, b"before")
        for node in range(3):
            cluster.restart(node)
            wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1, 2})
        assert producer.send_and_wait(TOPIC, b"after").offset == 1


@pytest.mark.timeout(180)
def test_a_follower_that_is_cut_off_leaves_and_comes_back() -> None:
    settings = {"replica.lag.time.max.ms": 1000, "replica.fetch.wait.max.ms": 200}
    with (
        Cluster(brokers=3, topics={TOPIC: 1}, config=settings) as cluster,
        Producer(cluster.bootstrap_servers) as producer,
    ):
        leader = cluster.leader_of(TOPIC, 0)
        # Not the controller: a leader that does not reach that is fenced, and somebody else leads.
        follower = next(node for node in range(3) if node not in (leader, cluster.controller))
        cluster.partition(leader, follower)
        producer.send_and_wait(TOPIC, b"without it")
        assert follower not in cluster.in_sync(TOPIC, 0)
        cluster.heal()
        wait_until(lambda: cluster.in_sync(TOPIC, 0) == {0, 1, 2})


@pytest.mark.timeout(180)
def test_all_of_them_come_back_after_they_were_killed_together() -> None:
    with Cluster(brokers=3, topics={TOPIC: 1}, config={"durability": "fsync"}) as cluster:
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send_and_wait(TOPIC, b"durable")
        for node in range(3):
            cluster.kill(node)
        cluster.start()
        assert read(cluster, 1) == [b"durable"]


@pytest.mark.timeout(180)
def test_a_batch_that_went_to_the_wrong_broker_is_told_where_it_should_go() -> None:
    """KIP-951: the client need not ask for metadata first."""

    async def misdirected(address: Address, version: int) -> ProduceResponse:
        connection = await Connection.open(address)
        try:
            batch = build_batch([b"x"], timestamp_ms=int(time.time() * 1000))
            topic = TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, batch)])
            request = ProduceRequest(None, -1, 1000, [topic])
            response: ProduceResponse = await connection.request(ApiKey.PRODUCE, request, at_most=version)
            return response
        finally:
            connection.abort()

    with Cluster(brokers=3, topics={TOPIC: 1}) as cluster:
        addresses = [parse_address(each) for each in cluster.bootstrap_servers.split(",")]
        leader = cluster.leader_of(TOPIC, 0)
        follower = next(node for node in range(3) if node != leader)
        for version in (9, 11):
            response = asyncio.run(misdirected(addresses[follower], version))
            (partition,) = response.responses[0].partition_responses
            assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            told = (partition.current_leader.leader_id, partition.current_leader.leader_epoch)
            endpoints = [(each.node_id, each.port) for each in response.node_endpoints]
            if version < 10:
                assert (told, endpoints) == ((-1, -1), [])
            else:
                assert told[0] == leader and told[1] >= 0
                assert endpoints == [(leader, addresses[leader].port)]


@pytest.mark.timeout(180)
def test_a_reader_that_came_to_the_wrong_broker_is_told_where_to_go() -> None:
    """KIP-951 again, for fetches; a follower would serve them, so the topic has one replica."""

    async def misdirected(address: Address, topic_id: bytes, version: int) -> FetchResponse:
        connection = await Connection.open(address)
        try:
            wanted = FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)
            topic = FetchTopic(TOPIC, topic_id=topic_id, partitions=[wanted])
            request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic])
            response: FetchResponse = await connection.request(ApiKey.FETCH, request, at_most=version)
            return response
        finally:
            connection.abort()

    async def topic_id_of(servers: str) -> bytes:
        async with ClusterClient(servers) as client:
            return (await client.topic(TOPIC)).topic_id

    with Cluster(brokers=3) as cluster:
        cluster.create_topic(TOPIC, replicas=[[1]])
        addresses = [parse_address(each) for each in cluster.bootstrap_servers.split(",")]
        topic_id = asyncio.run(topic_id_of(cluster.bootstrap_servers))
        leader = cluster.leader_of(TOPIC, 0)
        other = next(node for node in range(3) if node != leader)
        for version in (15, 16, 17):
            response = asyncio.run(misdirected(addresses[other], topic_id, version))
            (partition,) = response.responses[0].partitions
            assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            told = (partition.current_leader.leader_id, partition.current_leader.leader_epoch)
            endpoints = [(each.node_id, each.port) for each in response.node_endpoints]
            if version < 16:
                assert (told, endpoints) == ((-1, -1), [])
            else:
                assert told[0] == leader and told[1] >= 0
                assert endpoints == [(leader, addresses[leader].port)]
