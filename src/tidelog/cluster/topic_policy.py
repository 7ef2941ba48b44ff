"""A topic's resolved settings, in the forms that its log, its validator and its partition take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidelog.records.batch import TimestampType
from tidelog.records.compression import Codec
from tidelog.records.validation import BatchRules
from tidelog.storage.log_config import SEGMENT_INDEX_BYTES_MIN, LogConfig

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


DECOMPRESSED_BYTES_MAX = 32 * 1024 * 1024
DECOMPRESSED_PER_BYTE = 4
"""What a batch may grow to where the broker has to look inside: this many times max.message.bytes, and 32 MiB in any case.

Producers bound a batch before they compress it (max.request.size, message.max.bytes), so that honest ones stay far below.
"""


class TopicPolicy(NamedTuple):
    log: LogConfig
    rules: BatchRules
    durable: bool
    """Acknowledge only what is fdatasync'ed (`durability=fsync`)."""
    min_isr: int = 1


def topic_policy(settings: Mapping[str, Any], *, producer_id_expiration_ms: int) -> TopicPolicy:
    """`settings` holds every topic setting with its value already typed."""
    cleanup = settings["cleanup.policy"]
    policies = (
        cleanup if isinstance(cleanup, (list, tuple)) else [part.strip() for part in cleanup.split(",")]
    )
    compacted = "compact" in policies
    append_time = settings["message.timestamp.type"] == "LogAppendTime"
    log = LogConfig(
        segment_bytes=max(1, settings["internal.segment.bytes"] or settings["segment.bytes"]),
        segment_ms=settings["segment.ms"],
        segment_jitter_ms=settings["segment.jitter.ms"],
        segment_index_bytes=max(SEGMENT_INDEX_BYTES_MIN, settings["segment.index.bytes"]),
        index_interval_bytes=settings["index.interval.bytes"],
        preallocate=settings["preallocate"],
        delete_policy="delete" in policies,
        compact_policy=compacted,
        retention_ms=settings["retention.ms"],
        retention_bytes=settings["retention.bytes"],
        delete_retention_ms=settings["delete.retention.ms"],
        min_compaction_lag_ms=settings["min.compaction.lag.ms"],
        max_compaction_lag_ms=settings["max.compaction.lag.ms"],
        min_cleanable_dirty_ratio=settings["min.cleanable.dirty.ratio"],
        file_delete_delay_ms=settings["file.delete.delay.ms"],
        flush_messages=settings["flush.messages"],
        flush_ms=settings["flush.ms"],
        max_message_bytes=settings["max.message.bytes"],
        message_timestamp_type=settings["message.timestamp.type"],
        message_timestamp_before_max_ms=settings["message.timestamp.before.max.ms"],
        message_timestamp_after_max_ms=settings["message.timestamp.after.max.ms"],
        compression_type=settings["compression.type"],
        producer_id_expiration_ms=producer_id_expiration_ms,
    )
    codec = _CODECS.get(settings["compression.type"])
    rules = BatchRules(
        max_message_bytes=settings["max.message.bytes"],
        compression_type=codec,
        compression_level=_level(settings, codec),
        timestamp_type=TimestampType.LOG_APPEND_TIME if append_time else TimestampType.CREATE_TIME,
        before_max_ms=settings["message.timestamp.before.max.ms"],
        after_max_ms=settings["message.timestamp.after.max.ms"],
        compacted=compacted,
        decompress_limit_bytes=max(
            DECOMPRESSED_BYTES_MAX, DECOMPRESSED_PER_BYTE * settings["max.message.bytes"]
        ),
    )
    # A flush after every record is what Kafka offers in place of durability=fsync, and must mean as much here.
    durable = settings["durability"] == "fsync" or settings["flush.messages"] == 1
    return TopicPolicy(log, rules, durable=durable, min_isr=settings["min.insync.replicas"])


def _level(settings: Mapping[str, Any], codec: Codec | None) -> int | None:
    if codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        level: int = settings[f"compression.{codec.name.lower()}.level"]
        return level
    return None
