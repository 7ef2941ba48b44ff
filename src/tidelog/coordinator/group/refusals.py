"""An error in the shape of each group API: for a request that the coordinator refuses, and for one that never reached it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import consumer_group_describe, describe_groups
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from tidelog.wire.messages.delete_groups import DeletableGroupResult
from tidelog.wire.messages.heartbeat import HeartbeatResponse
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.wire.messages.leave_group import LeaveGroupResponse
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.wire.messages.offset_delete import OffsetDeleteResponse
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tidelog.wire.messages.sync_group import SyncGroupResponse

Refuse: TypeAlias = Callable[[ErrorCode, str], Any]
"""Error and reason to a response."""

NO_OFFSET = -1
FIRST_WITH_GROUP_ERROR = 2
"""OffsetFetch: the first version with an error of its own; before it every partition carries it."""


def join_group(request: JoinGroupRequest) -> Refuse:
    return lambda code, _: JoinGroupResponse(error_code=code, generation_id=-1, member_id=request.member_id)


def sync_group(code: ErrorCode, _message: str) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)


def heartbeat(code: ErrorCode, _message: str) -> HeartbeatResponse:
    """While the group is loaded nobody can know better than the member: it is told that all is well, as by Kafka. Some clients take any
    other answer for the end of their session.
    """
    loads = code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if loads else code)


def leave_group(code: ErrorCode, _message: str) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)


def consumer_group_heartbeat(code: ErrorCode, message: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message or None)


def offset_commit(request: OffsetCommitRequest) -> Refuse:
    """The response has no place for an error but at each partition."""
    return lambda code, _: OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def offset_fetch(request: OffsetFetchRequestGroup, version: int) -> Refuse:
    def refuse(code: ErrorCode, _message: str) -> OffsetFetchResponseGroup:
        topics = [] if version >= FIRST_WITH_GROUP_ERROR else request.topics or []
        return OffsetFetchResponseGroup(
            group_id=request.group_id,
            error_code=code,
            topics=[
                OffsetFetchResponseTopics(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartitions(
                            partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in topics
            ],
        )

    return refuse


def offset_delete(code: ErrorCode, _message: str) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code)


def delete_group(group_id: str) -> Refuse:
    return lambda code, _: DeletableGroupResult(group_id=group_id, error_code=code)


def describe_group(group_id: str) -> Refuse:
    return lambda code, message: describe_groups.DescribedGroup(
        group_id=group_id, error_code=code, error_message=message or None
    )


def describe_consumer_group(group_id: str) -> Refuse:
    return lambda code, message: consumer_group_describe.DescribedGroup(
        group_id=group_id, error_code=code, error_message=message or None
    )
