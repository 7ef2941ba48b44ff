"""A partition that the metadata knows and the disk does not: new and never flushed, or lost. The two are told apart (I6)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.scale.kit import restarted_by_force
from tidelog.errors import RequestError
from tidelog.testing import Cluster
from tidelog.wire.error_codes import ErrorCode


def produce(cluster: Cluster, topic: str, *, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    failed: list[object] = []
    producer.produce(
        topic, b"ramen", partition=partition, on_delivery=lambda error, _: error and failed.append(error)
    )
    assert producer.flush(10) == 0
    assert not failed


def end_offset(cluster: Cluster, topic: str, partition: int = 0) -> int:
    return cluster._running.broker.partitions.leader_of(topic, partition).log.log_end_offset


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_a_partition_that_was_never_flushed_starts_empty(tmp_path: Path, stop: str) -> None:
    """What a power cut leaves of a partition that was just made."""
    with Cluster(data_dir=tmp_path, topics={"orders": 3}) as cluster:
        produce(cluster, "orders", partition=1)
        cluster._stop(clean=stop == "clean")
        shutil.rmtree(tmp_path / "orders-0")
        (tmp_path / "orders-2" / "partition.metadata").write_bytes(b"")
        (tmp_path / "orders-2" / "00000000000000000000.log").unlink()
        cluster.start()
        assert [end_offset(cluster, "orders", number) for number in range(3)] == [0, 1, 0]
        for number in range(3):
            produce(cluster, "orders", partition=number)
        restarted_by_force(cluster)
        assert [end_offset(cluster, "orders", number) for number in range(3)] == [1, 2, 1]


def test_a_partition_with_records_is_not_replaced_by_an_empty_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(data_dir=tmp_path, topics={"orders": 2}) as cluster:
        produce(cluster, "orders")
        cluster.stop()
        (tmp_path / "orders-0").rename(tmp_path.parent / "orders-0.away")
        for _ in range(2):  # a checkpoint in between does not forget it
            cluster.start()
            with pytest.raises(RequestError) as refused:
                end_offset(cluster, "orders")
            assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
            assert not (tmp_path / "orders-0").exists()
            produce(cluster, "orders", partition=1)
            cluster.stop()
        assert "its directory is gone" in caplog.text
        (tmp_path.parent / "orders-0.away").rename(tmp_path / "orders-0")
        cluster.start()
        assert end_offset(cluster, "orders") == 1


def test_deleting_the_topic_is_the_way_on(tmp_path: Path) -> None:
    with Cluster(data_dir=tmp_path, topics={"orders": 1}) as cluster:
        produce(cluster, "orders")
        cluster.stop()
        shutil.rmtree(tmp_path / "orders-0")
        cluster.start()
        cluster.delete_topic("orders")
        cluster.create_topic("orders")
        produce(cluster, "orders")
        restarted_by_force(cluster)
        assert end_offset(cluster, "orders") == 1


def test_a_topic_made_again_under_its_old_name_is_not_taken_for_lost(tmp_path: Path) -> None:
    """The checkpoint that knew the first one must not speak of the second, whose directory a power cut then takes."""
    with Cluster(data_dir=tmp_path, topics={"orders": 1}) as cluster:
        produce(cluster, "orders")
        cluster.restart()
        cluster.delete_topic("orders")
        cluster.create_topic("orders")
        cluster._stop(clean=False)
        shutil.rmtree(tmp_path / "orders-0")
        cluster.start()
        assert end_offset(cluster, "orders") == 0


def test_a_log_that_cannot_be_opened_keeps_its_place_in_the_checkpoints(tmp_path: Path) -> None:
    """Its log start would be forgotten otherwise, and deleted records come back when it is repaired."""
    with Cluster(data_dir=tmp_path, topics={"orders": 1, "other": 1}) as cluster:
        for _ in range(3):
            produce(cluster, "orders")
        broker = cluster._running.broker
        partition = broker.partitions.leader_of("orders", 0)
        partition.delete_records(2)
        cluster.stop()
        note = tmp_path / "orders-0" / "truncation-intent"
        note.write_text("nonsense")
        for _ in range(2):
            cluster.start()
            with pytest.raises(RequestError):
                end_offset(cluster, "orders")
            produce(cluster, "other")
            cluster.stop()
        note.unlink()
        cluster.start()
        assert cluster._running.broker.partitions.leader_of("orders", 0).log.log_start_offset == 2


def test_a_client_hears_of_a_lost_partition(tmp_path: Path) -> None:
    with Cluster(data_dir=tmp_path, topics={"orders": 1}) as cluster:
        produce(cluster, "orders")
        cluster.stop()
        shutil.rmtree(tmp_path / "orders-0")
        cluster.start()
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, "message.timeout.ms": 1500}
        )
        told: list[object] = []
        producer.produce("orders", b"soba", partition=0, on_delivery=lambda error, _: told.append(error))
        producer.flush(10)
        assert told and told[0] is not None
