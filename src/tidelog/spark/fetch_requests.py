"""One fetch of several partitions from one broker, without a session: what tasks read by, and what sizes are measured by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.client.cluster import ClusterClient
from tidelog.client.errors import check
from tidelog.client.metadata import ZERO_ID, TopicPartition
from tidelog.wire.api import ApiKey
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

LANE: Final = "spark"
LAST_VERSION_WITH_NAMES: Final = 12
NO_SESSION: Final = -1


async def fetch(
    cluster: ClusterClient,
    node: int,
    offsets: Mapping[TopicPartition, int],
    *,
    partition_bytes: Mapping[TopicPartition, int],
    bytes_max: int,
    wait_ms: int,
    timeout_ms: int | None = None,
    reads_committed: bool = False,
    rack: str = "",
) -> list[tuple[TopicPartition, PartitionData]]:
    """What the broker has from these offsets on, in the order in which they are given as far as it fits. Of partitions whose topics the metadata knows."""
    topics: dict[str, FetchTopic] = {}
    for tp, offset in offsets.items():
        info = cluster.metadata.topics[tp.topic]
        topic = topics.setdefault(tp.topic, FetchTopic(topic=tp.topic, topic_id=info.topic_id, partitions=[]))
        topic.partitions.append(
            FetchPartition(
                partition=tp.partition,
                current_leader_epoch=info.partitions[tp.partition].leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=partition_bytes[tp],
            )
        )
    names = {topic.topic_id: topic.topic for topic in topics.values()}
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=1 if reads_committed else 0,
        session_id=0,
        session_epoch=NO_SESSION,
        topics=list(topics.values()),
        forgotten_topics_data=[],
        rack_id=rack,
    )
    connection = await cluster.connection(node, lane=LANE)
    response: FetchResponse = await connection.request(
        ApiKey.FETCH,
        request,
        at_most=LAST_VERSION_WITH_NAMES if ZERO_ID in names else None,
        timeout_ms=timeout_ms,
    )
    check(response.error_code, f"fetching from broker {node}")
    return [
        (TopicPartition(answer.topic or names.get(answer.topic_id, ""), data.partition_index), data)
        for answer in response.responses
        for data in answer.partitions
    ]
