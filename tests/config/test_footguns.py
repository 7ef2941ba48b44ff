"""Warnings come where something will surprise, and stay away where nothing will."""

from __future__ import annotations

import pytest

from tidelog.config import BrokerConfig, TopicConfig
from tidelog.config.footguns import default_warnings, more_partitions_warnings, topic_warnings


def warnings(overrides: dict[str, str], *, replicas: int = 1, partitions: int = 1, brokers: int = 1) -> str:
    values = TopicConfig.resolve(overrides, BrokerConfig.load())
    return " ".join(
        topic_warnings(values, replication_factor=replicas, partitions=partitions, brokers=brokers)
    )


@pytest.mark.parametrize("partitions", [1, 1000, 10_000])
def test_defaults_warn_of_nothing(partitions: int) -> None:
    assert warnings({}, partitions=partitions) == ""
    assert warnings({"cleanup.policy": "compact"}, partitions=partitions) == ""
    assert warnings({"min.insync.replicas": "2"}, replicas=3, partitions=partitions) == ""


def test_retention_far_below_the_roll_time() -> None:
    text = warnings({"retention.ms": "60000"})
    assert "retention.ms is 1 min" in text and "7 d (segment.ms)" in text and "Lower segment.ms" in text
    assert warnings({"retention.ms": "60000", "segment.ms": "60000"}) == ""
    assert warnings({"retention.ms": "60000", "cleanup.policy": "compact"}) == ""
    assert warnings({"retention.ms": "-1"}) == ""


def test_retention_bytes_below_a_segment() -> None:
    text = warnings({"retention.bytes": "1048576"})
    assert "retention.bytes is 1 MiB" in text and "1 GiB" in text
    assert warnings({"retention.bytes": str(10 << 30)}) == ""


def test_segments_so_short_that_files_run_out() -> None:
    text = warnings({"segment.ms": "60000"}, partitions=10)
    assert "segment.ms of 1 min" in text and "10080 segments" in text and "302400 files" in text
    assert "segment.ms of 1 min" in warnings(
        {"segment.ms": "60000", "cleanup.policy": "compact"}, partitions=10
    )
    assert warnings({"segment.ms": "3600000"}, partitions=10) == ""


def test_segments_so_small_that_files_run_out() -> None:
    text = warnings({"segment.bytes": "1048576", "retention.bytes": str(100 << 30)})
    assert "segment.bytes of 1 MiB" in text and "102400 segments" in text
    assert "every GiB of records takes 3072 files" in warnings({"segment.bytes": "1048576"})
    assert "segment.bytes is 100 B" in warnings({"internal.segment.bytes": "100"})


def test_minimum_of_replicas() -> None:
    assert "leader alone" in warnings({"min.insync.replicas": "1"}, replicas=3)
    assert "one broker is down" in warnings({"min.insync.replicas": "3"}, replicas=3)
    assert "2 lets one be away." in warnings({"min.insync.replicas": "3"}, replicas=3)
    assert "it counts as 1, and every record has one copy" in warnings(
        {"min.insync.replicas": "2"}, replicas=1
    )
    assert "it counts as 3, and writes with acks=all stop" in warnings(
        {"min.insync.replicas": "4"}, replicas=3
    )


def test_one_replica_among_several_brokers() -> None:
    assert "the replication factor is 1 in a cluster of 3 brokers" in warnings({}, replicas=1, brokers=3)
    assert warnings({"min.insync.replicas": "2"}, replicas=3, brokers=3) == ""


def test_settings_of_brokers_are_those_of_topics_without_their_own() -> None:
    (single,) = default_warnings({"min.insync.replicas": "1"}, brokers=3)
    assert "min.insync.replicas is 1 for every topic without a setting of its own" in single
    assert default_warnings({"min.insync.replicas": "1"}, brokers=1) == []
    (unclean,) = default_warnings({"unclean.leader.election.enable": "true"}, brokers=3)
    assert "acknowledged records are lost" in unclean
    assert default_warnings({"min.insync.replicas": "2", "log.retention.ms": "1"}, brokers=3) == []


def test_unclean_elections() -> None:
    assert "acknowledged records are lost" in warnings({"unclean.leader.election.enable": "true"})


def test_more_partitions_move_keys() -> None:
    (moved,) = more_partitions_warnings("orders", before=3, after=6, compacted=False)
    assert "orders" in moved and "from 3 to 6" in moved and "key" in moved
    assert "compacted" in more_partitions_warnings("orders", before=3, after=6, compacted=True)[1]
    assert more_partitions_warnings("orders", before=3, after=3, compacted=True) == []
