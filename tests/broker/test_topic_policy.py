"""A topic's settings as its log, its validator and its partition see them."""

from __future__ import annotations

import pytest

from tidelog.cluster.topic_policy import TopicPolicy, topic_policy
from tidelog.config.resolve import BrokerConfig, TopicConfig
from tidelog.records.batch import TimestampType
from tidelog.records.compression import Codec


def policy(**overrides: str) -> TopicPolicy:
    settings = {name.replace("_", "."): value for name, value in overrides.items()}
    return topic_policy(TopicConfig.resolve(settings, BrokerConfig.load({})), producer_id_expiration_ms=1000)


def test_the_defaults() -> None:
    found = policy()
    assert found.durable
    assert (found.log.segment_bytes, found.log.retention_ms) == (1 << 30, 7 * 86_400_000)
    assert (found.log.delete_policy, found.log.compact_policy) == (True, False)
    assert found.rules.compression_type is None


@pytest.mark.parametrize(
    ("settings", "durable"),
    [
        ({"durability": "replicated"}, False),
        ({"durability": "fsync"}, True),
        ({"durability": "replicated", "flush_messages": "1"}, True),
        ({"durability": "replicated", "flush_messages": "2"}, False),
    ],
)
def test_a_flush_after_every_record_means_durable(settings: dict[str, str], durable: bool) -> None:
    assert policy(**settings).durable is durable


def test_the_size_for_tests_wins_over_segment_bytes() -> None:
    assert policy(internal_segment_bytes="200").log.segment_bytes == 200


@pytest.mark.parametrize(
    ("value", "delete", "compact"),
    [("delete", True, False), ("compact", False, True), ("compact,delete", True, True)],
)
def test_cleanup_policies(value: str, delete: bool, compact: bool) -> None:
    found = policy(cleanup_policy=value)
    assert (found.log.delete_policy, found.log.compact_policy, found.rules.compacted) == (
        delete,
        compact,
        compact,
    )


def test_compression_and_timestamps() -> None:
    found = policy(
        compression_type="zstd", compression_zstd_level="7", message_timestamp_type="LogAppendTime"
    )
    assert (found.rules.compression_type, found.rules.compression_level) == (Codec.ZSTD, 7)
    assert found.rules.timestamp_type == TimestampType.LOG_APPEND_TIME
