"""The settings that one partition's log obeys, already resolved to plain values.

Owns names, units and Kafka's defaults. It never parses: `tidelog.config` resolves a topic's settings and hands the result over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = -1
NEVER: Final = (1 << 63) - 1
_DAY_MS: Final = 24 * 60 * 60 * 1000
SEGMENT_INDEX_BYTES_MIN: Final = 12
"""One entry of a time index."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Fields are named as Kafka's topic settings, dots as underscores; a negative retention means no limit."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    preallocate: bool = False

    delete_policy: bool = True
    compact_policy: bool = False
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = UNLIMITED
    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000

    flush_messages: int = NEVER
    flush_ms: int = NEVER

    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = NEVER
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    compression_type: str = "producer"

    producer_id_expiration_ms: int = _DAY_MS

    @property
    def segment_ms_max(self) -> int:
        """What is not sealed cannot be compacted: a topic with a `max.compaction.lag.ms` seals its segments in time."""
        if self.compact_policy and 0 < self.max_compaction_lag_ms < self.segment_ms:
            return self.max_compaction_lag_ms
        return self.segment_ms

    def __post_init__(self) -> None:
        if self.segment_bytes < 1:
            raise ValueError(f"segment.bytes must be at least 1, not {self.segment_bytes}")
        if self.segment_index_bytes < SEGMENT_INDEX_BYTES_MIN:
            raise ValueError(
                f"segment.index.bytes must hold one entry (12 bytes), not {self.segment_index_bytes}"
            )
        if self.index_interval_bytes < 0:
            raise ValueError(f"index.interval.bytes must not be negative: {self.index_interval_bytes}")
