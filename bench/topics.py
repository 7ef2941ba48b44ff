"""Making a topic for one measurement, and taking it away so thoroughly that the next one does not notice."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tools.peers.process import Peer
from tools.peers.raw import RawConnection

LEADER_SECONDS_MAX = 60.0
DELETION_SECONDS_MAX = 20.0
# Broker settings of every peer: files of deleted topics go soon, or the disk would fill (both wait a minute by default).
QUICK_DELETION = {"log.segment.delete.delay.ms": "100"}


def create_topic(bootstrap: str, topic: str, *, partitions: int = 1, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(30)
    for number in range(partitions):
        _wait_for_leader(bootstrap, topic, number)


def _wait_for_leader(bootstrap: str, topic: str, partition: int) -> None:
    """Kafka says that a topic is created a moment before it serves it."""
    deadline = time.monotonic() + LEADER_SECONDS_MAX
    while True:
        try:
            _end_offset(bootstrap, topic, partition)
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _end_offset(bootstrap: str, topic: str, partition: int) -> int:
    """As the partition's leader says it, whichever of the brokers that is. RuntimeError: none of them leads it."""
    complaint: RuntimeError | None = None
    for address in bootstrap.split(","):
        with RawConnection(address) as connection:
            try:
                return connection.list_offset(topic, -1, partition=partition)
            except RuntimeError as error:
                complaint = error
    raise complaint or RuntimeError("no address was given")


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)


def stored_records(bootstrap: str, topic: str, partitions: int = 1) -> int:
    return sum(_end_offset(bootstrap, topic, number) for number in range(partitions))


@contextlib.contextmanager
def topic_of(peer: Peer, what: str, *, partitions: int = 1, large: bool = False) -> Iterator[str]:
    """A fresh topic, and no trace of it afterwards. `large`: so much will be written that its removal must be waited for."""
    topic = f"bench-{what}-{time.time_ns()}"
    create_topic(peer.bootstrap, topic, partitions=partitions)
    try:
        yield topic
    finally:
        delete_topic(peer.bootstrap, topic)
        if large:
            _wait_until_deleted(peer, topic)
            os.sync()  # one peer's dirty pages must not be written back in the other's time


def _wait_until_deleted(peer: Peer, topic: str) -> None:
    deadline = time.monotonic() + DELETION_SECONDS_MAX
    while time.monotonic() < deadline:
        if not any(entry.name.startswith(topic) for entry in os.scandir(peer.log_dir)):
            return
        time.sleep(0.05)
