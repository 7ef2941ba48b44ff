"""The metadata log stays short: restarts add next to nothing, snapshots let old records go, and a damaged one costs no data."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.scale.kit import metadata_dir, restarted_by_force, snapshots
from tidelog.broker.node_shell import StartError
from tidelog.testing import Cluster

EAGER = {"metadata.log.max.record.bytes.between.snapshots": "3000"}
WAIT_SECONDS_MAX = 20.0


def create_topics(cluster: Cluster, first: int, count: int) -> None:
    for number in range(first, first + count):
        cluster.create_topic(f"topic-{number}", 5, config={"file.delete.delay.ms": "0"})


def topic_names(cluster: Cluster) -> set[str]:
    return set(cluster._running.broker.image.topics_by_name)


def wait_for_snapshots(path: Path, count: int) -> list[str]:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(snapshots(path)) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(snapshots(path)) >= count
    return snapshots(path)


def log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in metadata_dir(path).glob("*.log"))


def test_clean_restarts_add_one_record_each(tmp_path: Path) -> None:
    with Cluster(data_dir=tmp_path, topics={"orders": 300}) as cluster:
        epochs = leader_epochs(cluster)
        before = log_bytes(tmp_path)
        for _ in range(5):
            cluster.restart()
        assert leader_epochs(cluster) == epochs
    assert log_bytes(tmp_path) - before < 5 * 500


def test_a_restart_after_a_crash_adds_one_record_for_each_partition(tmp_path: Path) -> None:
    with Cluster(data_dir=tmp_path, topics={"orders": 300}) as cluster:
        before = log_bytes(tmp_path)
        restarted_by_force(cluster)
        assert leader_epochs(cluster) == {1}
    assert log_bytes(tmp_path) - before < 300 * 60


def leader_epochs(cluster: Cluster) -> set[int]:
    broker = cluster._running.broker
    epochs = {partition.leader_epoch for partition in broker.partitions.all()}
    assert epochs == {partition.leader_epoch for _, _, partition in broker.image.partitions()}
    return epochs


def test_snapshots_are_taken_and_old_records_go(tmp_path: Path) -> None:
    settings = EAGER | {"log.flush.offset.checkpoint.interval.ms": "200"}
    with Cluster(data_dir=tmp_path, config=settings) as cluster:
        create_topics(cluster, 0, 60)
        wait_for_snapshots(tmp_path, 2)
        log = cluster._running.broker.node.quorum.log.log
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        first = metadata_dir(tmp_path) / "00000000000000000000.log"
        while first.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert log.log_start_offset > 0
        assert not first.exists()
        assert len(snapshots(tmp_path)) == 2
        expected = cluster._running.broker.image
        cluster.restart()
        assert cluster._running.broker.image.topics_by_name == expected.topics_by_name
        assert cluster._running.broker.image.configs == expected.configs
        restarted_by_force(cluster)
        assert topic_names(cluster) == {f"topic-{number}" for number in range(60)}
        create_topics(cluster, 60, 1)


def test_a_damaged_snapshot_is_told_of_and_the_older_one_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(data_dir=tmp_path, config=EAGER) as cluster:
        create_topics(cluster, 0, 40)
        wait_for_snapshots(tmp_path, 2)
        names = topic_names(cluster)
    newest = metadata_dir(tmp_path) / snapshots(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-30])
    with Cluster(data_dir=tmp_path) as cluster:
        assert topic_names(cluster) == names
    assert str(newest) in caplog.text
    assert newest.exists()


def test_without_any_sound_snapshot_a_start_is_refused_and_no_partition_is_touched(tmp_path: Path) -> None:
    """M28: a broker that believed that its topics are gone would take their directories for strays."""
    settings = EAGER | {"log.flush.offset.checkpoint.interval.ms": "200"}
    with Cluster(data_dir=tmp_path, config=settings) as cluster:
        create_topics(cluster, 0, 40)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        producer.produce("topic-0", b"ramen", partition=0)
        assert producer.flush(10) == 0
        wait_for_snapshots(tmp_path, 2)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        log = cluster._running.broker.node.quorum.log.log
        while log.log_start_offset == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        create_topics(cluster, 40, 1)
        time.sleep(0.5)  # a checkpoint
    copies = {}
    for name in snapshots(tmp_path):
        path = metadata_dir(tmp_path) / name
        copies[path] = path.read_bytes()
        path.write_bytes(b"")
    before = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    with pytest.raises(StartError, match="no sound snapshot covers"):
        Cluster(data_dir=tmp_path).start()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == before
    for path, content in copies.items():
        path.write_bytes(content)
    with Cluster(data_dir=tmp_path) as cluster:
        assert topic_names(cluster) == {f"topic-{number}" for number in range(41)}
        assert cluster._running.broker.partitions.leader_of("topic-0", 0).log.log_end_offset == 1
