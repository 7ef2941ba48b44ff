"""ListOffsets (2), versions 1-11: which offset is first, last, or at a point in time.

2  isolation level      4  leader epochs (KIP-320)     6  flexible      7  max timestamp (-3)
8  earliest local (-4)  9  latest tiered (-5)          10 timeout for tiered look-ups      11 earliest pending upload (-6)

This broker keeps everything on its own disks, so the tiered questions are answered as a broker without tiers does.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.limited_log import LimitedLog
from tidelog.errors import CorruptDataError, RequestError
from tidelog.replication.partition import Partition
from tidelog.storage.disk import DiskError
from tidelog.storage.log import Log
from tidelog.storage.segment_times import Slice, unknown_times
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
FIRST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
READ_COMMITTED = 1
DEBUG_REPLICA = -2

complaints = LimitedLog(logging.getLogger("tidelog.broker"), lines_per_second=2)


def handle(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
    unknown = [part for log in _searched_logs(broker, request) for part in unknown_times(log)]
    return (
        _find_times_first(broker, context, request, unknown) if unknown else _handle(broker, context, request)
    )


def _searched_logs(broker: Broker, request: ListOffsetsRequest) -> Iterator[Log]:
    for topic in request.topics:
        for asked in topic.partitions:
            if asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP:
                partition = broker.partitions.find(topic.name, asked.partition_index)
                if partition is not None:
                    yield partition.log


async def _find_times_first(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest, unknown: list[Slice]
) -> ListOffsetsResponse:
    """The first question about time to a log of very many segments."""
    for part in unknown:
        await broker.read_in_thread(part.warm)
        part.load()
    return _handle(broker, context, request)


def _handle(broker: Broker, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    asked = Counter(
        (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    )
    response = ListOffsetsResponse()
    for topic in request.topics:
        answers = []
        for partition in topic.partitions:
            answer = ListOffsetsPartitionResponse(
                partition_index=partition.partition_index, timestamp=-1, offset=-1, leader_epoch=-1
            )
            answers.append(answer)
            try:
                if asked[topic.name, partition.partition_index] > 1:
                    raise RequestError(ErrorCode.INVALID_REQUEST)
                _answer(broker, context, request, topic.name, partition, answer)
            except RequestError as error:
                answer.error_code = error.code
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return response


def _answer(
    broker: Broker,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    asked: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
) -> None:
    timestamp = asked.timestamp
    if timestamp < 0 and context.version < FIRST_VERSION.get(timestamp, 1):
        raise RequestError(ErrorCode.UNSUPPORTED_VERSION)
    partition = broker.partitions.leader_of(topic, asked.partition_index)
    partition.check_leader_epoch(asked.current_leader_epoch)
    end = _readable_end(partition, request)
    try:
        found = _look_up(partition, timestamp, end)
        if found is None or timestamp == LATEST:
            _check_end_is_known(partition, request, context.version)
    except DiskError as error:
        broker.partitions.disk_failed(partition, error)
        raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR) from error
    except CorruptDataError as error:
        complaints.error("%r cannot be searched for timestamp %d: %s", partition, timestamp, error)
        raise RequestError(ErrorCode.CORRUPT_MESSAGE) from error
    if found is not None:
        answer.timestamp, answer.offset, answer.leader_epoch = found


def _readable_end(partition: Partition, request: ListOffsetsRequest) -> int:
    if request.replica_id == DEBUG_REPLICA or request.replica_id >= 0:
        return partition.log.log_end_offset
    return partition.visible_end(committed_only=request.isolation_level == READ_COMMITTED)


def _check_end_is_known(partition: Partition, request: ListOffsetsRequest, version: int) -> None:
    """A new leader may not know yet all that its predecessor had committed: consumers are not sent back because of it (I49)."""
    if request.replica_id < 0 and request.replica_id != DEBUG_REPLICA:
        try:
            partition.check_latest()
        except RequestError as error:
            # Clients of before KIP-207 know this one.
            code = error.code if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
            raise RequestError(code, error.message) from error


def _epoch_at(partition: Partition, offset: int) -> int:
    epoch = partition.log.epochs.epoch_for_offset(offset)
    return partition.leader_epoch if epoch is None else epoch


def _look_up(partition: Partition, timestamp: int, end: int) -> tuple[int, int, int] | None:
    """(timestamp, offset, leader epoch), or None when no record answers the question."""
    log = partition.log
    if timestamp == LATEST:
        return -1, end, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, _epoch_at(partition, log.log_start_offset)
    if timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp_offset()
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    elif timestamp < 0:
        raise RequestError(ErrorCode.UNSUPPORTED_VERSION)
    else:
        found = log.offset_for_timestamp(timestamp)
    return None if found is None or found[1] >= end else found
