"""Kafka's command line tools against the broker: what an operator types must work."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.libraries.confluent import ConfluentLibrary
from tests.clients.rows import Row
from tools.peers.kafka import run_tool
from tools.peers.process import Peer


@pytest.fixture
def tool(broker: Peer, client_version: str) -> Callable[..., str]:
    """Run a tool against the broker and return what it printed; anything but success fails the test."""

    def run(name: str, *arguments: str, stdin: bytes | None = None) -> str:
        done = run_tool(
            name, "--bootstrap-server", broker.bootstrap, *arguments, version=client_version, stdin=stdin
        )
        assert done.returncode == 0, f"{name} {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
        assert "Exception" not in done.stdout + done.stderr, f"{name}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def topic(broker: Peer, new_topic_name: Callable[[str], str]) -> str:
    name = new_topic_name("tools")
    ConfluentLibrary().create_topic(broker.bootstrap, name)
    return name


def write_hundred(broker: Peer, topic: str) -> int:
    first_ms = int(time.time() * 1000) - 10_000
    rows = [Row(None, b"value %d" % number, (), first_ms + number) for number in range(100)]
    ConfluentLibrary().write(broker.bootstrap, topic, rows, codec="lz4", acks="all")
    return first_ms


def test_kafka_topics(tool: Callable[..., str], new_topic_name: Callable[[str], str]) -> None:
    name = new_topic_name("made-by-tool")
    tool(
        "kafka-topics", "--create", "--topic", name, "--partitions", "3", "--replication-factor", "1",
        "--config", "retention.ms=3600000",
    )  # fmt: skip
    assert name in tool("kafka-topics", "--list").splitlines()
    described = tool("kafka-topics", "--describe", "--topic", name)
    assert "PartitionCount: 3" in described
    assert "retention.ms=3600000" in described
    assert len(re.findall(r"Leader: 0\s+Replicas: 0\s+Isr: 0", described)) == 3
    assert re.search(r"TopicId: (?!AAAAAAAAAAAAAAAAAAAAAA)\S{22}", described)
    tool("kafka-topics", "--alter", "--topic", name, "--partitions", "5")
    assert "PartitionCount: 5" in tool("kafka-topics", "--describe", "--topic", name)
    tool("kafka-topics", "--delete", "--topic", name)
    assert name not in tool("kafka-topics", "--list").splitlines()


def test_kafka_topics_explains_a_refusal(broker: Peer, client_version: str, topic: str) -> None:
    again = run_tool(
        "kafka-topics",
        "--bootstrap-server",
        broker.bootstrap,
        "--create",
        "--topic",
        topic,
        version=client_version,
    )
    assert again.returncode == 1
    assert "already exists" in again.stdout + again.stderr


def test_kafka_configs(tool: Callable[..., str], topic: str) -> None:
    about = ("--entity-type", "topics", "--entity-name", topic)
    tool(
        "kafka-configs",
        *about,
        "--alter",
        "--add-config",
        "segment.bytes=2097152,cleanup.policy=[compact,delete]",
    )
    described = tool("kafka-configs", *about, "--describe")
    assert "segment.bytes=2097152" in described
    assert "cleanup.policy=compact,delete" in described
    tool("kafka-configs", *about, "--alter", "--delete-config", "segment.bytes")
    assert "segment.bytes" not in tool("kafka-configs", *about, "--describe")
    everything = tool("kafka-configs", *about, "--describe", "--all")
    assert "max.message.bytes=1048588" in everything
    broker_configs = tool(
        "kafka-configs", "--entity-type", "brokers", "--entity-name", "0", "--describe", "--all"
    )
    assert "log.retention.hours=168" in broker_configs


def test_kafka_configs_of_the_broker(tool: Callable[..., str]) -> None:
    about = ("--entity-type", "brokers", "--entity-name", "0")
    tool("kafka-configs", *about, "--alter", "--add-config", "log.retention.ms=99000000")
    assert "log.retention.ms=99000000" in tool("kafka-configs", *about, "--describe")
    tool("kafka-configs", *about, "--alter", "--delete-config", "log.retention.ms")
    assert "log.retention.ms=99000000" not in tool("kafka-configs", *about, "--describe")


@pytest.mark.parametrize("time_spec", ["-1", "-2", "-3", "by time"])
def test_kafka_get_offsets(tool: Callable[..., str], broker: Peer, topic: str, time_spec: str) -> None:
    first_ms = write_hundred(broker, topic)
    expected = {"-1": 100, "-2": 0, "-3": 99, "by time": 40}[time_spec]
    asked = str(first_ms + 40) if time_spec == "by time" else time_spec
    answer = tool("kafka-get-offsets", "--topic-partitions", f"{topic}:0", "--time", asked)
    assert answer.split() == [f"{topic}:0:{expected}"]


def test_kafka_delete_records(tool: Callable[..., str], broker: Peer, topic: str, tmp_path: Path) -> None:
    write_hundred(broker, topic)
    wish = tmp_path / "wish.json"
    wish.write_text(
        json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 60}], "version": 1})
    )
    assert "low_watermark: 60" in tool("kafka-delete-records", "--offset-json-file", str(wish))
    answer = tool("kafka-get-offsets", "--topic-partitions", f"{topic}:0", "--time", "-2")
    assert answer.split() == [f"{topic}:0:60"]


def test_kafka_log_dirs(tool: Callable[..., str], broker: Peer, topic: str) -> None:
    write_hundred(broker, topic)
    answer = tool("kafka-log-dirs", "--describe", "--topic-list", topic)
    (line,) = [line for line in answer.splitlines() if line.startswith("{")]
    (described,) = json.loads(line)["brokers"]
    (directory,) = described["logDirs"]
    (partition,) = directory["partitions"]
    assert directory["error"] is None
    assert partition["partition"] == f"{topic}-0"
    size_on_disk = sum(path.stat().st_size for path in broker.log_dir.glob(f"{topic}-0/*.log"))
    assert partition["size"] == size_on_disk > 0


def test_kafka_broker_api_versions(tool: Callable[..., str], broker: Peer) -> None:
    answer = tool("kafka-broker-api-versions")
    assert f"{broker.bootstrap} (id: 0 rack: null" in answer
    for api in (
        "Produce(0): 0 to 13",
        "Fetch(1): 4 to 18",
        "CreateTopics(19): 2 to 7",
        "InitProducerId(22): 0 to ",
    ):
        assert api in answer


def test_kafka_cluster_id(broker: Peer, client_version: str) -> None:
    done = run_tool(
        "kafka-cluster", "cluster-id", "--bootstrap-server", broker.bootstrap, version=client_version
    )
    assert re.search(r"Cluster ID: \S{22}", done.stdout), done.stdout + done.stderr


def test_console_producer_and_consumer(tool: Callable[..., str], topic: str) -> None:
    lines = [f"key{number}:line {number} äöü" for number in range(500)]
    tool(
        "kafka-console-producer", "--topic", topic, "--property", "parse.key=true", "--property", "key.separator=:",
        stdin="\n".join(lines).encode() + b"\n",
    )  # fmt: skip
    read = tool(
        "kafka-console-consumer", "--topic", topic, "--partition", "0", "--offset", "earliest",
        "--max-messages", "500", "--timeout-ms", "20000",
        "--property", "print.key=true", "--property", "key.separator=:",
    )  # fmt: skip
    # The newer release prefers another name for --property and says so on its standard output.
    assert [line for line in read.splitlines() if "deprecated" not in line] == lines


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_java_perf_producer(broker: Peer, client_version: str, topic: str, codec: str) -> None:
    done = run_tool(
        "kafka-producer-perf-test", "--topic", topic, "--num-records", "20000", "--record-size", "100",
        "--throughput", "-1", "--producer-props", f"bootstrap.servers={broker.bootstrap}", "acks=all",
        f"compression.type={codec}",
        version=client_version,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20000 records sent" in done.stdout, done.stdout + done.stderr
    rows = ConfluentLibrary().read(broker.bootstrap, topic, start=0, count=20_000)
    assert len(rows) == 20_000
    assert {len(row.value or b"") for row in rows} == {100}


def test_the_verifiable_producer(broker: Peer, client_version: str, topic: str) -> None:
    done = run_tool(
        "kafka-verifiable-producer", "--bootstrap-server", broker.bootstrap, "--topic", topic,
        "--max-messages", "5000",
        version=client_version,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    assert (summary["sent"], summary["acked"]) == (5000, 5000)
