"""The clusters that `bench.cluster` compares: three nodes each, measured together, and paused while another cluster is asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.topics import QUICK_DELETION, create_topic, delete_topic
from tools.peers.kafka_cluster import KafkaCluster
from tools.peers.leaders import Led, partitions_of
from tools.peers.process import Peer, PeerFailedError
from tools.peers.tidelog_cluster import TidelogCluster

BROKERS = 3
SETTINGS = QUICK_DELETION | {
    "default.replication.factor": str(BROKERS),
    "min.insync.replicas": "2",
    # All nodes of a cluster are paused together while others are measured, which none must take for the death of another.
    "broker.session.timeout.ms": "3600000",
}
SYNC_SECONDS_MAX = 60.0
DELETION_SECONDS_MAX = 20.0
SETTLE_SECONDS = 3.0
"""After a pause: the quorum has found a leader again, followers are in touch with theirs."""


class MeasuredCluster:
    """Three brokers as one thing that is measured."""

    def __init__(self, name: str, cluster: KafkaCluster | TidelogCluster) -> None:
        self.name = name
        self._cluster = cluster
        self.nodes: list[Peer] = list(cluster.nodes)

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def start(self) -> None:
        self._cluster.__enter__()

    def stop(self) -> None:
        self._cluster.close()

    @property
    def is_running(self) -> bool:
        return all(node.is_running for node in self.nodes)

    def cpu_seconds(self) -> float:
        """Of the three together."""
        return sum(node.cpu_seconds() for node in self.nodes)

    def rss_peak_bytes(self) -> int:
        return sum(node.rss_peak_bytes() for node in self.nodes)

    def pause(self) -> None:
        for node in self.nodes:
            node.pause()

    def resume(self) -> None:
        for node in self.nodes:
            node.resume()
        time.sleep(SETTLE_SECONDS)

    @contextmanager
    def topic(self, what: str, *, partitions: int) -> Iterator[str]:
        """A fresh topic with a replica on every node and as many leaders on each, all in sync; and no trace of it afterwards."""
        topic = f"bench-{what}-{time.time_ns()}"
        create_topic(self.bootstrap, topic, partitions=partitions, replicas=BROKERS)
        try:
            self._wait_until_in_sync(topic, partitions)
            yield topic
        finally:
            delete_topic(self.bootstrap, topic)
            self._wait_until_deleted(topic)
            os.sync()  # one cluster's dirty pages must not be written back in the other's time

    def _wait_until_in_sync(self, topic: str, partitions: int) -> None:
        deadline = time.monotonic() + SYNC_SECONDS_MAX
        while not all(
            self._is_well_placed(partitions_of(node.bootstrap, topic), partitions) for node in self.nodes
        ):
            if time.monotonic() > deadline:
                placed = partitions_of(self.nodes[0].bootstrap, topic)
                raise PeerFailedError(
                    f"{topic} of {self.name} is not in sync with leaders everywhere: {placed}"
                )
            time.sleep(0.05)

    def _is_well_placed(self, placed: dict[int, Led], partitions: int) -> bool:
        leaders = [led.leader for led in placed.values()]
        most = max((leaders.count(leader) for leader in leaders), default=0)
        return (
            len(placed) == partitions
            and all(len(led.isr) == BROKERS for led in placed.values())
            and most <= -(-partitions // BROKERS)
        )

    def _wait_until_deleted(self, topic: str) -> None:
        deadline = time.monotonic() + DELETION_SECONDS_MAX
        while time.monotonic() < deadline:
            names = (entry.name for node in self.nodes for entry in os.scandir(node.log_dir))
            if not any(name.startswith(topic) for name in names):
                return
            time.sleep(0.05)


def _tidelog(durability: str) -> MeasuredCluster:
    cluster = TidelogCluster(BROKERS, durability=durability, settings=SETTINGS)
    return MeasuredCluster(f"tidelog-{durability}", cluster)


CLUSTERS: dict[str, Callable[[], MeasuredCluster]] = {
    "kafka": lambda: MeasuredCluster("kafka", KafkaCluster(BROKERS, SETTINGS, stock=True)),
    "tidelog-replicated": lambda: _tidelog("replicated"),
    "tidelog-fsync": lambda: _tidelog("fsync"),
}
