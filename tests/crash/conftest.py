"""The broker that the crash tests kill. `TIDELOG_TEST_BROKER=kafka` puts Apache Kafka in its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tools.peers.kafka import KafkaPeer
from tools.peers.process import Peer
from tools.peers.tidelog import TidelogPeer

SEGMENT_BYTES = 1 << 20  # the least Kafka allows: segments roll every second or two under load


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[[str], Peer]]:
    """A broker on a directory and port that stay the same over its restarts."""
    peers: list[Peer] = []

    def make(durability: str) -> Peer:
        peer: Peer
        if os.environ.get("TIDELOG_TEST_BROKER") == "kafka":
            peer = KafkaPeer(data_dir=tmp_path / "broker")
        else:
            peer = TidelogPeer(data_dir=tmp_path / "broker", durability=durability)
        peers.append(peer)
        return peer

    yield make
    for peer in peers:
        peer.kill()


def create_topic(peer: Peer, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    new = NewTopic(topic, 1, 1, config={"segment.bytes": str(SEGMENT_BYTES)})
    admin.create_topics([new])[topic].result(30)
