"""Our client against Apache Kafka: the tests that it passes against our own broker, and keys where Java and librdkafka put them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin

from tests.client.broker_settings import BROKER_SETTINGS
from tidelog.client.partitioner import partition_for_key
from tools.peers.kafka import KafkaPeer
from tools.peers.maven import java, kafka_jars
from tools.peers.process import Peer

ROOT = Path(__file__).parents[2]
SUITES = [
    "tests/client/producer/test_producer.py",
    "tests/client/consumer/test_consumer.py",
    "tests/client/consumer/test_group_trouble.py",
    "tests/client/consumer/test_group_topics.py",
    "tests/client/consumer/test_group_sharing.py",
    "tests/client/consumer/test_group_positions.py",
    "tests/client/consumer/test_group_ways.py",
    "tests/client/consumer/test_parallel.py",
    "tests/client/test_arrow.py",
    "tests/client/test_frames.py",
    "tests/client/test_admin.py",
    "tests/client/test_blocking.py",
]
KEYS = 100_000
PARTITIONS = 17

_JAVA = """
import java.io.*;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

public class Placement {
    public static void main(String[] arguments) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        for (String key = in.readLine(); key != null; key = in.readLine())
            out.append(BuiltInPartitioner.partitionForKey(key.getBytes(StandardCharsets.UTF_8), Integer.parseInt(arguments[0]))).append('\\n');
        System.out.print(out);
    }
}
"""


def keys() -> list[str]:
    return [f"{'kunde-ü' if n % 3 else ''}{n * 7919:x}{'x' * (n % 23)}" for n in range(KEYS)]


def test_our_client_passes_its_tests_against_kafka(kafka_version: str) -> None:
    with KafkaPeer(overrides=BROKER_SETTINGS) as peer:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *SUITES, "-q", "--timeout", "120", "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**os.environ, "TIDELOG_TEST_BOOTSTRAP": peer.bootstrap},
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stdout[-6000:]


def test_keys_are_where_java_puts_them(kafka_version: str, tmp_path: Path) -> None:
    source = tmp_path / "Placement.java"
    source.write_text(_JAVA)
    done = subprocess.run(
        [java(), "-cp", f"{kafka_jars(kafka_version)}/*", str(source), str(PARTITIONS)],
        input="\n".join(keys()),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert list(map(int, done.stdout.split())) == [
        partition_for_key(key.encode(), PARTITIONS) for key in keys()
    ]


def test_keys_are_where_librdkafka_puts_them(broker: Peer) -> None:
    bootstrap, topic = broker.bootstrap, f"t-{uuid.uuid4().hex[:12]}"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([confluent_kafka.admin.NewTopic(topic, PARTITIONS, 1)]).values():
        future.result()
    placed: dict[bytes, int] = {}

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        assert error is None, error
        placed[message.key()] = message.partition()

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 2 * KEYS,
        }
    )
    for key in keys():
        producer.produce(topic, None, key.encode(), on_delivery=delivered)
        producer.poll(0)
    producer.flush()
    assert placed == {key.encode(): partition_for_key(key.encode(), PARTITIONS) for key in keys()}
