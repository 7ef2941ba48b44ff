"""Asking a Tidelog broker why the segments of a partition are still there: a request that Kafka does not have.

It is not advertised, so it is sent unasked, on a connection of its own: a broker that does not know it hangs up.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.client.cluster import ClusterClient
from tidelog.client.connection import VersionRange
from tidelog.client.errors import ConnectionLostError, MalformedResponseError, check
from tidelog.client.metadata import TopicPartition
from tidelog.wire.api import ApiKey
from tidelog.wire.tidelog_api import ExplainTopicRequest, ExplainTopicResponse


class SegmentInfo(NamedTuple):
    base_offset: int
    end_offset: int
    size: int
    newest_timestamp: int | None
    age_ms: int
    fate: str
    until_ms: int | None
    """When the fate changes by the passing of time alone; None: it does not."""
    explanation: str


class PartitionSegments(NamedTuple):
    partition: int
    now_ms: int
    """The broker's wall clock, which ages and times go by."""
    cleanup_policy: str
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    segments: tuple[SegmentInfo, ...]


async def ask_segments(cluster: ClusterClient, tp: TopicPartition) -> PartitionSegments | None:
    """None: this broker is no Tidelog, and tells nothing of its segments."""

    async def ask() -> PartitionSegments | None:
        (node,) = await cluster.by_leader([tp])
        connection = await cluster.connection(node, lane="explain")
        connection.versions.setdefault(ApiKey.EXPLAIN_TOPIC, VersionRange(0, 0))
        request = ExplainTopicRequest(topic=tp.topic, partition=tp.partition)
        try:
            response: ExplainTopicResponse = await connection.request(ApiKey.EXPLAIN_TOPIC, request)
        except (ConnectionLostError, MalformedResponseError):
            return None
        check(response.error_code, f"the segments of {tp.topic}-{tp.partition}", response.error_message)
        return PartitionSegments(
            tp.partition,
            response.now_ms,
            response.cleanup_policy,
            response.log_start_offset,
            response.last_stable_offset,
            response.high_watermark,
            response.log_end_offset,
            tuple(
                SegmentInfo(
                    each.base_offset,
                    each.end_offset,
                    each.size,
                    each.newest_timestamp if each.newest_timestamp >= 0 else None,
                    each.age_ms,
                    each.fate,
                    each.until_ms if each.until_ms >= 0 else None,
                    each.explanation,
                )
                for each in response.segments
            ),
        )

    return await cluster.retrying(ask)
