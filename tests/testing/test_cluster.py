"""`tidelog.testing.Cluster`: what a user's test relies on."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tidelog.broker.node_shell import StartError
from tidelog.config.errors import ConfigError
from tidelog.errors import RequestError
from tidelog.testing import Cluster


def produce(cluster: Cluster, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def consume(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        messages = consumer.consume(count, 20)
        assert all(message.error() is None for message in messages)
        return [message.value() for message in messages]
    finally:
        consumer.close()


def topics(cluster: Cluster) -> dict[str, int]:
    found = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=20).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def broker_threads() -> int:
    return sum(thread.name == "tidelog-broker" for thread in threading.enumerate())


def test_a_record_there_and_back() -> None:
    with Cluster(topics=["orders"]) as cluster:
        produce(cluster, "orders", b"pizza", b"sushi")
        assert consume(cluster, "orders", 2) == [b"pizza", b"sushi"]


def test_topics_up_front() -> None:
    with Cluster(topics={"orders": 3, "riders": 1}) as cluster:
        assert topics(cluster) == {"orders": 3, "riders": 1}
    with Cluster(topics="orders") as cluster:
        assert topics(cluster) == {"orders": 1}, "one name is a name, not six letters"


def test_topics_later() -> None:
    with Cluster() as cluster:
        assert cluster.create_topic("a", 2, config={"retention.ms": 1000}) == "a"
        assert topics(cluster) == {"a": 2}
        with pytest.raises(RequestError, match="exists"):
            cluster.create_topic("a")
        cluster.create_topic("a", exist_ok=True)
        with pytest.raises(RequestError, match=r"retention\.ms"):
            cluster.create_topic("b", config={"retention.ms": "soon"})
        cluster.delete_topic("a")
        assert topics(cluster) == {}
        with pytest.raises(RequestError, match="no topic"):
            cluster.delete_topic("a")


def test_settings_of_any_type() -> None:
    with Cluster(config={"num.partitions": 4, "auto.create.topics.enable": False}) as cluster:
        cluster.create_topic("a", -1)
        assert topics(cluster) == {"a": 4}
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        assert admin.list_topics("b", timeout=20).topics["b"].error is not None


def test_a_bad_setting_is_named_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match=r"num\.partitions"), Cluster(config={"num.partitions": "many"}):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_topic_that_cannot_be_created_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`with` never enters its block then, so nobody else would stop the broker."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running = broker_threads()
    with pytest.raises(RequestError, match="topic name"), Cluster(topics=["good", "not a name"]):
        pass
    assert broker_threads() == running
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_directory_goes_with_the_cluster() -> None:
    cluster = Cluster(topics=["a"]).start()
    data_dir = cluster.data_dir
    assert (data_dir / "a-0").is_dir()
    cluster.stop()
    assert (data_dir / "a-0").is_dir(), "stopped, not closed"
    cluster.close()
    assert not data_dir.exists()
    cluster.close()


def test_a_given_directory_stays(tmp_path: Path) -> None:
    with Cluster(data_dir=tmp_path, topics=["a"]) as cluster:
        produce(cluster, "a", b"kept")
    with Cluster(data_dir=str(tmp_path)) as cluster:
        assert consume(cluster, "a", 1) == [b"kept"]


def test_durability_by_kind_of_directory(tmp_path: Path) -> None:
    """What is thrown away need not be synced; what stays is as durable as with `tidelog start`."""
    for cluster, expected in (
        (Cluster(), "replicated"),
        (Cluster(config={"durability": "fsync"}), "fsync"),
        (Cluster(data_dir=tmp_path), "fsync"),
    ):
        with cluster:
            assert cluster._running.broker.config.str("durability") == expected


def test_a_restart_keeps_data_and_address() -> None:
    with Cluster(topics=["a"]) as cluster:
        address = cluster.bootstrap_servers
        produce(cluster, "a", b"kept")
        cluster.restart()
        assert cluster.bootstrap_servers == address
        assert consume(cluster, "a", 1) == [b"kept"]


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with Cluster(data_dir=tmp_path), pytest.raises(StartError, match=r"in use|lock"):
        Cluster(data_dir=tmp_path).start()


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"{port}.*port"):
            Cluster(data_dir=tmp_path, port=port).start()
    with Cluster(data_dir=tmp_path, port=port) as cluster:
        assert cluster.bootstrap_servers == f"127.0.0.1:{port}"


def test_misuse_is_explained() -> None:
    cluster = Cluster()
    with pytest.raises(RuntimeError, match="not running"):
        _ = cluster.bootstrap_servers
    with pytest.raises(RuntimeError, match="not been started"):
        _ = cluster.data_dir
    with pytest.raises(RuntimeError, match="not running"):
        cluster.create_topic("a")
    cluster.stop()
    with cluster, pytest.raises(RuntimeError, match="already"):
        cluster.start()


async def test_in_an_async_test() -> None:
    """The loop of the test stays free: the broker has its own."""
    async with Cluster(topics=["a"]) as cluster:
        host, _, port = cluster.bootstrap_servers.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\0\0\0\x0b\0\x12\0\0\0\0\0\x07\0\x01x")
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 10), "big")
        answer = await reader.readexactly(size)
        assert answer[:6] == b"\0\0\0\x07\0\0"
        writer.close()


def test_several_at_once() -> None:
    with Cluster(topics=["a"]) as one, Cluster(topics=["a"]) as two:
        assert one.bootstrap_servers != two.bootstrap_servers
        produce(one, "a", b"one")
        produce(two, "a", b"two")
        assert (consume(one, "a", 1), consume(two, "a", 1)) == ([b"one"], [b"two"])


def test_nothing_stays_open(tmp_path: Path) -> None:
    def open_files() -> set[str]:
        found = set()
        for number in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                continue
        return found

    running = broker_threads()
    with Cluster(data_dir=tmp_path, topics={"a": 5}) as cluster:
        produce(cluster, "a", b"x")
        assert any(str(tmp_path) in path for path in open_files())
    assert not any(str(tmp_path) in path for path in open_files())
    assert broker_threads() == running
