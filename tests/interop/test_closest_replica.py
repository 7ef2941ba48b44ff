"""Kafka's Java consumer with `client.rack`: it reads from the follower in its rack, and goes on when that dies (KIP-392)."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.racks import RACKS, TOPIC, Sent, sent, three_racks  # noqa: F401 - a fixture
from tidelog.client.blocking import Producer
from tidelog.testing import Cluster
from tools.peers.kafka import class_path
from tools.peers.maven import java

SECONDS_MAX = 90.0
CLIENT_ID = "java"
NEAR = 2
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


class JavaConsumer:
    """The console consumer, from the first offset on, and the lines that it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._process = process
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while len(self.lines) < count:
            assert time.monotonic() < deadline, f"{len(self.lines)} of {count} records"
            assert self._process.poll() is None, "the consumer has ended"
            time.sleep(0.05)


@contextmanager
def java_consumer(cluster: Cluster, version: str, rack: str) -> Iterator[JavaConsumer]:
    properties = (f"client.rack={rack}", f"client.id={CLIENT_ID}", "reconnect.backoff.max.ms=200")
    command = [
        java(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", class_path(version), CONSUMER,
        "--bootstrap-server", cluster.bootstrap_servers, "--topic", TOPIC, "--partition", "0", "--offset", "earliest",
        *(word for each in properties for word in ("--command-property", each)),
        "--formatter-property", "print.offset=true", "--formatter-property", "print.value=true",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield JavaConsumer(process)
    finally:
        process.kill()
        process.wait()


def send(producer: Producer, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        assert producer.send_and_wait(TOPIC, b"%d" % number).offset == number


def lines(count: int) -> list[str]:
    return [f"Offset:{number}\t{number}" for number in range(count)]


def test_the_java_consumer_reads_from_its_rack_and_goes_on_when_that_dies(
    kafka_version: str,
    sent: Sent,  # noqa: F811
) -> None:
    with three_racks() as cluster, Producer(cluster.bootstrap_servers) as producer:
        send(producer, 100)
        with java_consumer(cluster, kafka_version, RACKS[NEAR]) as consumer:
            consumer.wait_for(100)
            send(producer, 100, start=100)
            consumer.wait_for(200)
            assert sent.to(CLIENT_ID).keys() == {NEAR}, "all of it came from there"
            cluster.kill(NEAR)
            send(producer, 100, start=200)
            consumer.wait_for(300)
            assert sent.to(CLIENT_ID).keys() == {0, NEAR}, "the leader has taken over"
            assert consumer.lines == lines(300)


def test_without_a_rack_it_reads_from_the_leader(
    kafka_version: str,
    sent: Sent,  # noqa: F811
) -> None:
    with three_racks() as cluster, Producer(cluster.bootstrap_servers) as producer:
        send(producer, 10)
        with java_consumer(cluster, kafka_version, "") as consumer:
            consumer.wait_for(10)
            assert consumer.lines == lines(10)
        assert sent.to(CLIENT_ID).keys() == {0}
