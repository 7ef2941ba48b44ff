"""DeleteRecords (21), versions 0-2: move the start of partitions up; what is below is gone.

2  flexible

The new log start is written to its checkpoint before the answer, so deleted records do not come back after a crash.

Only what is committed can be deleted. A producer with acks=1 is answered before its records are, and whoever then asks to delete them has not asked for too much, only
early: the request waits for the commit, as long as it allows. Kafka without replicas commits as it writes, so its clients expect no refusal.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.cluster.partitions import log_dir_of
from tidelog.errors import RequestError
from tidelog.internal_topics import is_internal_topic
from tidelog.replication.partition import Partition
from tidelog.replication.purgatory import CommitWait
from tidelog.storage.disk import DiskError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


async def handle(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    await _until_committed(broker, request)
    moved: list[tuple[Partition, DeleteRecordsPartitionResult]] = []
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_delete(broker, topic.name, asked, moved) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )
    unwritten = await broker.checkpoint() if moved else frozenset()
    for partition, result in moved:
        if partition.stopped_with is not None:  # the checkpoint failed, or the topic was deleted meanwhile
            result.error_code, result.low_watermark = partition.stopped_with, -1
        elif (
            log_dir_of(partition) in unwritten
        ):  # the disk is full: the records would come back after a crash
            result.error_code, result.low_watermark = ErrorCode.KAFKA_STORAGE_ERROR, -1
    return response


async def _until_committed(broker: Broker, request: DeleteRecordsRequest) -> None:
    """Wait for records that are to be deleted and are in the log, but not committed yet; what became of them is judged afterwards."""
    early: list[tuple[Partition, int]] = []
    for topic in request.topics:
        for asked in topic.partitions:
            try:
                partition = broker.partitions.leader_of(topic.name, asked.partition_index)
            except RequestError:
                continue
            if _is_early(partition, asked.offset):
                early.append((partition, asked.offset - 1))
    if not early:
        return
    over = asyncio.Event()
    wait = CommitWait(over.set)
    for partition, last_offset in early:
        wait.add(partition, last_offset, lambda _: None)
    wait.arm(broker.scheduler, timeout_ms=request.timeout_ms)
    await over.wait()


def _is_early(partition: Partition, before_offset: int) -> bool:
    leader = partition.leader
    if leader is None or leader.isr.below_min:  # nobody knows when, or whether, it will be committed
        return False
    return partition.log.high_watermark < before_offset <= partition.log.log_end_offset


def _delete(
    broker: Broker,
    topic: str,
    asked: DeleteRecordsPartition,
    moved: list[tuple[Partition, DeleteRecordsPartitionResult]],
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
    try:
        if is_internal_topic(topic):
            raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal")
        partition = broker.partitions.leader_of(topic, asked.partition_index)
        if not partition.log.config.delete_policy:
            raise RequestError(
                ErrorCode.POLICY_VIOLATION, f"{topic} is compacted only; records cannot be deleted by offset"
            )
        try:
            result.low_watermark = partition.delete_records(asked.offset)
            moved.append((partition, result))
        except DiskError as error:
            broker.partitions.disk_failed(partition, error)
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR) from error
    except RequestError as error:
        result.error_code = error.code
    return result
