"""KIP-392: with a replica selector, consumers that say where they are read from the follower in their rack; nothing that they see depends on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from tests.cluster.racks import RACKS, TOPIC, Sent, sent, three_racks  # noqa: F401 - a fixture
from tidelog.client.blocking import Consumer, Producer
from tidelog.testing import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SECONDS_MAX = 60.0
NEAR = 2
"""The broker in `west`, a follower."""
Poll = Callable[[], list[tuple[int, bytes | None]]]


class OwnReader:
    client_id = "own"

    def __init__(self, cluster: Cluster, rack: str) -> None:
        self._consumer = Consumer(
            cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            client_rack=rack,
            client_id=self.client_id,
            fetch_max_wait_ms=200,
        )
        self._consumer.assign([(TOPIC, 0)])

    def poll(self) -> list[tuple[int, bytes | None]]:
        return [(record.offset, record.value) for record in self._consumer.poll(timeout_ms=200)]

    def close(self) -> None:
        self._consumer.close()


class LibrdkafkaReader:
    client_id = "librdkafka"

    def __init__(self, cluster: Cluster, rack: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "client.rack": rack,
                "client.id": self.client_id,
                "fetch.wait.max.ms": 200,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 1000,
                "log_level": 0,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])

    def poll(self) -> list[tuple[int, bytes | None]]:
        return [
            (message.offset(), message.value())
            for message in self._consumer.consume(500, 0.2)
            if message.error() is None
        ]

    def close(self) -> None:
        self._consumer.close()


READERS: list[Any] = [OwnReader, LibrdkafkaReader]


def read_until(reader: Any, found: list[tuple[int, bytes | None]], count: int) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        found += reader.poll()


def values(count: int, start: int = 0) -> list[tuple[int, bytes | None]]:
    return [(number, b"%d" % number) for number in range(start, start + count)]


def send(producer: Producer, count: int, start: int = 0) -> None:
    futures = [producer.send(TOPIC, b"%d" % number) for number in range(start, start + count)]
    producer.flush()
    assert [future.result().offset for future in futures] == list(range(start, start + count))


@pytest.mark.parametrize("reader_kind", READERS)
def test_a_consumer_reads_from_the_follower_in_its_rack(reader_kind: Any, sent: Sent) -> None:  # noqa: F811
    with three_racks() as cluster, Producer(cluster.bootstrap_servers) as producer:
        reader = reader_kind(cluster, RACKS[NEAR])
        found: list[tuple[int, bytes | None]] = []
        send(producer, 100)
        read_until(reader, found, 100)
        send(producer, 100, start=100)
        read_until(reader, found, 200)
        reader.close()
        assert found == values(200)
        assert sent.to(reader.client_id).keys() == {NEAR}, "all of it came from there"


@pytest.mark.parametrize("reader_kind", READERS)
@pytest.mark.parametrize("rack", ["", RACKS[0], "elsewhere"])
def test_who_says_nothing_or_stands_near_the_leader_reads_from_that(
    reader_kind: Any,
    rack: str,
    sent: Sent,  # noqa: F811
) -> None:
    with three_racks() as cluster, Producer(cluster.bootstrap_servers) as producer:
        send(producer, 10)
        reader = reader_kind(cluster, rack)
        found: list[tuple[int, bytes | None]] = []
        read_until(reader, found, 10)
        reader.close()
        assert found == values(10)
        assert sent.to(reader.client_id).keys() == {0}


def test_without_a_selector_everybody_reads_from_the_leader(sent: Sent) -> None:  # noqa: F811
    with (
        Cluster(brokers=3, racks=RACKS) as cluster,
        Producer(cluster.bootstrap_servers) as producer,
    ):
        cluster.create_topic(TOPIC, replicas=[[0, 1, 2]])
        send(producer, 10)
        reader = OwnReader(cluster, RACKS[NEAR])
        found: list[tuple[int, bytes | None]] = []
        read_until(reader, found, 10)
        reader.close()
        assert sent.to(reader.client_id).keys() == {0}


@pytest.mark.parametrize("reader_kind", READERS)
def test_when_that_follower_dies_reading_goes_on(reader_kind: Any, sent: Sent) -> None:  # noqa: F811
    with three_racks() as cluster, Producer(cluster.bootstrap_servers) as producer:
        reader = reader_kind(cluster, RACKS[NEAR])
        found: list[tuple[int, bytes | None]] = []
        send(producer, 50)
        read_until(reader, found, 50)
        assert sent.to(reader.client_id).keys() == {NEAR}
        cluster.kill(NEAR)
        send(producer, 50, start=50)
        read_until(reader, found, 100)
        assert sent.to(reader.client_id).keys() == {0, NEAR}, "the leader has taken over"
        reader.close()
        assert found == values(100)


@pytest.mark.parametrize("reader_kind", READERS)
def test_under_load_with_leaders_and_followers_that_die_no_offset_changes_its_value(
    reader_kind: Any,
    sent: Sent,  # noqa: F811
) -> None:
    """One reader in each rack, and every broker is killed and comes back meanwhile."""
    with three_racks() as cluster, Producer(cluster.bootstrap_servers) as producer:
        stop = threading.Event()
        stored: dict[int, bytes] = {}

        def produce() -> None:
            number = 0
            while not stop.is_set():
                value = b"%d" % number
                stored[producer.send_and_wait(TOPIC, value).offset] = value
                number += 1

        writer = threading.Thread(target=produce)
        writer.start()
        readers = [reader_kind(cluster, rack) for rack in RACKS]
        found: list[list[tuple[int, bytes | None]]] = [[] for _ in readers]
        for node in range(3):
            until = time.monotonic() + 1
            while time.monotonic() < until:
                for reader, records in zip(readers, found, strict=True):
                    records += reader.poll()
            cluster.kill(node)
            cluster.restart(node)
        stop.set()
        writer.join()
        for reader, records in zip(readers, found, strict=True):
            read_until(reader, records, len(stored))
            reader.close()
            assert records == sorted(stored.items())


def test_a_follower_tells_only_what_is_committed_and_soon(sent: Sent) -> None:  # noqa: F811
    """A record is seen at the follower about as soon as at the leader, although followers wait half a second for news when nothing is written."""
    with three_racks(**{"replica.fetch.wait.max.ms": 20_000}) as cluster:
        with Producer(cluster.bootstrap_servers) as producer:
            reader = OwnReader(cluster, RACKS[NEAR])
            found: list[tuple[int, bytes | None]] = []
            for number in range(5):
                send(producer, 1, start=number)
                begun = time.monotonic()
                read_until(reader, found, number + 1)
                assert time.monotonic() - begun < 5
            reader.close()
        assert sent.to(reader.client_id).keys() == {NEAR}
