"""Time without a writable leader, in one process: what `bench.failover` measures, with room for a busy machine."""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import AdminClient

from tidelog.client.blocking import Producer
from tidelog.testing import Cluster

TOPIC = "orders"
SECONDS_MAX = 3.0

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(180)]


def named_brokers(cluster: Cluster, *, without: int) -> set[int]:
    """What the others say."""
    asked = next(node for node in cluster.running if node != without)
    address = cluster.bootstrap_servers.split(",")[asked]
    found = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(TOPIC, timeout=10)
    return set(found.brokers)


def wait_for_another_leader(cluster: Cluster, gone: int) -> float:
    """Seconds until the cluster names another leader."""
    began = time.monotonic()
    while cluster.leader_of(TOPIC, 0) in (gone, -1):
        assert time.monotonic() - began < 30
        time.sleep(0.005)
    return time.monotonic() - began


@pytest.mark.parametrize("of_controller", [False, True])
def test_a_killed_leader_is_replaced_long_before_its_session_ends(*, of_controller: bool) -> None:
    """The long session shows that it is the closed port that counts, also for the node of the active controller."""
    settings = {"broker.session.timeout.ms": 30_000, "controller.quorum.fetch.timeout.ms": 30_000}
    with Cluster(brokers=3, topics={TOPIC: 9}, config=settings) as cluster:
        leader = cluster.controller
        assert leader is not None
        if not of_controller:
            leader = next(node for node in range(3) if node != leader)
        led = next(number for number in range(9) if cluster.leader_of(TOPIC, number) == leader)
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send_and_wait(TOPIC, b"before", partition=led)
            began = time.monotonic()
            cluster.kill(leader)
            producer.send_and_wait(TOPIC, b"after", partition=led)
            assert time.monotonic() - began < SECONDS_MAX
        assert cluster.leader_of(TOPIC, led) != leader
        # librdkafka loses partitions of a broker that leaves the list in the answer that moves them.
        assert named_brokers(cluster, without=leader) == {0, 1, 2}


def test_a_leader_that_stands_still_is_replaced_when_its_session_ends() -> None:
    """Its connections stay open and its port takes more of them: only its silence tells."""
    with Cluster(brokers=3, topics={TOPIC: 1}) as cluster:
        leader = cluster.leader_of(TOPIC, 0)
        cluster.pause(leader)
        took = wait_for_another_leader(cluster, leader)
        # Whoever waits for its answers is to give them up, as soon as it is known that its port is open.
        deadline = time.monotonic() + 3.0
        while leader in named_brokers(cluster, without=leader):
            assert time.monotonic() < deadline
        cluster.resume(leader)
        assert took < 2 * SECONDS_MAX
