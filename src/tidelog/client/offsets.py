"""Questions that only a partition's leader can answer: offsets by time, record deletion; and log directories.

Requests are grouped by leader and sent to all leaders at once; a leader that has moved makes the whole look-up start
again with fresh metadata, so an answer is complete or an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog.client.cluster import ClusterClient
from tidelog.client.errors import BrokerError, check
from tidelog.client.metadata import TopicPartition
from tidelog.wire.api import ApiKey
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """`offset` is -1 when no record is as late as the timestamp asked for."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    broker: int
    log_dir: str
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int


@dataclass(frozen=True, slots=True)
class LogDir:
    broker: int
    path: str
    error_code: int
    total_bytes: int
    usable_bytes: int
    replicas: tuple[ReplicaSize, ...]


async def list_offsets(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation_level: int = 0,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """For each partition the first record at or after a timestamp (ms), or EARLIEST, LATEST, MAX_TIMESTAMP.

    With isolation level 1 (read_committed) the latest is the last stable offset.
    """

    async def ask() -> dict[TopicPartition, FoundOffset]:
        groups = await cluster.by_leader(wanted)
        answers = await asyncio.gather(
            *(_list_from(cluster, node, tps, wanted, isolation_level) for node, tps in groups.items())
        )
        return {tp: found for answer in answers for tp, found in answer.items()}

    return await cluster.retrying(ask, timeout_ms=timeout_ms)


async def _list_from(
    cluster: ClusterClient,
    node: int,
    tps: list[TopicPartition],
    wanted: Mapping[TopicPartition, int],
    isolation_level: int,
) -> dict[TopicPartition, FoundOffset]:
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        timeout_ms=cluster.settings.request_timeout_ms,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(
                        partition_index=tp.partition,
                        current_leader_epoch=-1,
                        timestamp=wanted[tp],
                    )
                    for tp in partitions
                ],
            )
            for topic, partitions in _by_topic(tps).items()
        ],
    )
    response: ListOffsetsResponse = await cluster.request(ApiKey.LIST_OFFSETS, request, node=node)
    found: dict[TopicPartition, FoundOffset] = {}
    for topic in response.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            check(p.error_code, f"looking up an offset in {tp}")
            found[tp] = FoundOffset(p.offset, p.timestamp, p.leader_epoch)
    return found


async def end_of_epochs(
    cluster: ClusterClient, epochs: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, tuple[int, int]]:
    """For each partition, given (its leader's epoch, an epoch of ours): (end offset, epoch) of the leader's log up to ours (KIP-320).

    Without those whose leader has changed meanwhile: ask again when the metadata is fresh.
    """
    groups = await cluster.by_leader(epochs)
    answers = await asyncio.gather(
        *(_epochs_from(cluster, node, tps, epochs) for node, tps in groups.items())
    )
    return {tp: found for answer in answers for tp, found in answer.items()}


async def _epochs_from(
    cluster: ClusterClient,
    node: int,
    tps: list[TopicPartition],
    epochs: Mapping[TopicPartition, tuple[int, int]],
) -> dict[TopicPartition, tuple[int, int]]:
    request = OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderTopic(
                topic=topic,
                partitions=[
                    OffsetForLeaderPartition(
                        partition=tp.partition, current_leader_epoch=epochs[tp][0], leader_epoch=epochs[tp][1]
                    )
                    for tp in found
                ],
            )
            for topic, found in _by_topic(tps).items()
        ],
    )
    response: OffsetForLeaderEpochResponse = await cluster.request(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, request, node=node
    )
    ends: dict[TopicPartition, tuple[int, int]] = {}
    for topic in response.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.topic, p.partition)
            error = BrokerError(p.error_code, f"validating the position in {tp}")
            if p.error_code == 0:
                ends[tp] = (p.end_offset, p.leader_epoch)
            elif not error.retriable:
                raise error
    if len(ends) < len(tps):
        cluster.forget_leaders({tp.topic for tp in tps})
    return ends


async def delete_records(
    cluster: ClusterClient, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
) -> dict[TopicPartition, int]:
    """Delete every record below an offset (-1: up to the high watermark). Returns the new log start offsets."""

    async def ask() -> dict[TopicPartition, int]:
        groups = await cluster.by_leader(before)
        answers = await asyncio.gather(
            *(_delete_from(cluster, node, tps, before) for node, tps in groups.items())
        )
        return {tp: start for answer in answers for tp, start in answer.items()}

    return await cluster.retrying(ask, timeout_ms=timeout_ms)


async def _delete_from(
    cluster: ClusterClient, node: int, tps: list[TopicPartition], before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    request = DeleteRecordsRequest(
        timeout_ms=cluster.settings.request_timeout_ms,
        topics=[
            DeleteRecordsTopic(
                name=topic,
                partitions=[
                    DeleteRecordsPartition(partition_index=tp.partition, offset=before[tp]) for tp in found
                ],
            )
            for topic, found in _by_topic(tps).items()
        ],
    )
    response: DeleteRecordsResponse = await cluster.request(ApiKey.DELETE_RECORDS, request, node=node)
    starts: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            check(p.error_code, f"deleting records of {tp} below offset {before[tp]}")
            starts[tp] = p.low_watermark
    return starts


async def describe_log_dirs(cluster: ClusterClient, *, timeout_ms: int | None = None) -> list[LogDir]:
    """The log directories of every broker, with the size of every replica in them."""

    async def ask() -> list[LogDir]:
        await cluster.refresh_metadata([])
        answers = await asyncio.gather(
            *(log_dirs_of(cluster, node) for node in sorted(cluster.metadata.brokers))
        )
        return [log_dir for answer in answers for log_dir in answer]

    return await cluster.retrying(ask, timeout_ms=timeout_ms)


async def log_dirs_of(cluster: ClusterClient, node: int, *, timeout_ms: int | None = None) -> list[LogDir]:
    """Of one broker, asked once."""
    response: DescribeLogDirsResponse = await cluster.request(
        ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), node=node, timeout_ms=timeout_ms
    )
    check(response.error_code, f"log directories of broker {node}")
    return [
        LogDir(
            broker=node,
            path=d.log_dir,
            error_code=d.error_code,
            total_bytes=d.total_bytes,
            usable_bytes=d.usable_bytes,
            replicas=tuple(
                ReplicaSize(node, d.log_dir, topic.name, p.partition_index, p.partition_size, p.offset_lag)
                for topic in d.topics
                for p in topic.partitions
                if not p.is_future_key
            ),
        )
        for d in response.results
    ]


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    grouped: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        grouped.setdefault(tp.topic, []).append(tp)
    return grouped
