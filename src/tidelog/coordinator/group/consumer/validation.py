"""What a ConsumerGroupHeartbeat must be before anybody looks at the group: pure checks of the request alone, in Kafka's order.

Versions: 0 lets the server choose the id of a member that joins; since 1 the client brings its own (KIP-1082), and may subscribe by pattern.
"""

from __future__ import annotations

from typing import Final

from tidelog.coordinator.group.consumer.member import JOINING, LEAVING, LEFT_FOR_NOW
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

NOT_GIVEN: Final = -1
"""The rebalance timeout of a heartbeat that says nothing about it."""
_FIRST_WITH_CLIENTS_MEMBER_ID: Final = 1


def validate(request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    epoch = request.member_epoch
    if version >= _FIRST_WITH_CLIENTS_MEMBER_ID or epoch > JOINING or epoch == LEAVING:
        _refuse_blank(request.member_id, "MemberId")
    _refuse_blank(request.group_id, "GroupId")
    _refuse_blank(request.instance_id, "InstanceId")
    _refuse_blank(request.rack_id, "RackId")
    if epoch == JOINING:
        _validate_join(request)
    elif epoch == LEFT_FOR_NOW:
        if request.instance_id is None:
            raise _invalid("InstanceId must be given with MemberEpoch -2: only a static member can come back")
    elif epoch < LEFT_FOR_NOW:
        raise _invalid(
            f"MemberEpoch {epoch} means nothing: 0 joins, -1 leaves, -2 leaves for now, others are the member's"
        )
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise RequestError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not known here: use one of {', '.join(assignors)}",
        )


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """With everything that a member must say when it joins. Clients also say it all when they cannot know what arrived."""
    return (
        request.rebalance_timeout_ms != NOT_GIVEN
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def _validate_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == NOT_GIVEN:
        raise _invalid("RebalanceTimeoutMs must be given by a member that joins")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty in the request of a member that joins: it owns none")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid(
            "SubscribedTopicNames or SubscribedTopicRegex must be given by a member that joins, even if empty"
        )


def _refuse_blank(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise _invalid(f"{name} must not be empty")


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message)
