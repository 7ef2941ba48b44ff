"""OffsetForLeaderEpoch (23), versions 2-4: where an epoch ended, for readers that check their position (KIP-101, 279, 320).

3  replica id           4  flexible

An epoch that we never led is answered with the largest epoch below it and that epoch's end (KIP-279).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_of(broker, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_of(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=asked.partition, leader_epoch=-1, end_offset=-1)
    try:
        partition = broker.partitions.leader_of(topic, asked.partition)
        partition.check_leader_epoch(asked.current_leader_epoch)
    except RequestError as error:
        answer.error_code = error.code
        return answer
    answer.error_code = ErrorCode.NONE
    answer.leader_epoch, answer.end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
    return answer
