"""FindCoordinator (10), versions 0-6: which broker coordinates a group or a transaction.

1  key types (groups, transactions)      3  flexible      4  several keys at once      5  newer errors      6  share groups

A group's coordinator is the leader of its partition of `__consumer_offsets`; the topic is made when the first group is asked for. There
are no coordinators of transactions and share groups yet: COORDINATOR_NOT_AVAILABLE, which is the truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.errors import RequestError
from tidelog.internal_topics import CONSUMER_OFFSETS
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

GROUP, TRANSACTION, SHARE = 0, 1, 2
FIRST_WITH_SHARE = 6
FIRST_WITH_KEYS = 4


async def handle(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.version >= FIRST_WITH_KEYS else [request.key]
    try:
        _check_type(request.key_type, context.version)
        if keys and broker.groups.topic is None:
            await _create_topic(broker)
        found = [_coordinator(broker, context, key) for key in keys]
    except RequestError as error:
        found = [_refused(key, error.code, error.message) for key in keys]
    if context.version >= FIRST_WITH_KEYS:
        return FindCoordinatorResponse(coordinators=found)
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _create_topic(broker: Broker) -> None:
    """What keeps it from being made is not the client's fault: it is to ask again."""
    try:
        await broker.groups.create_topic()
    except RequestError as error:
        raise RequestError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{CONSUMER_OFFSETS} cannot be made: {error.message}"
        ) from error


def _check_type(key_type: int, version: int) -> None:
    if key_type == GROUP:
        return
    if key_type == TRANSACTION or (key_type == SHARE and version >= FIRST_WITH_SHARE):
        raise RequestError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "this broker coordinates consumer groups, neither transactions nor share groups",
        )
    raise RequestError(ErrorCode.INVALID_REQUEST, f"there is no key type {key_type}")


def _coordinator(broker: Broker, context: RequestContext, group_id: str) -> Coordinator:
    topic = broker.groups.topic
    if topic is None:
        return _refused(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{CONSUMER_OFFSETS} is not there yet")
    index = broker.groups.partition_of(group_id)
    leader = broker.view.live_leader(topic, index, topic.partitions[index])
    for endpoint in broker.view.endpoints(context.connection.listener_name):
        if endpoint.node_id == leader:
            return Coordinator(
                key=group_id, node_id=leader, host=endpoint.host, port=endpoint.port, error_message=None
            )
    return _refused(
        group_id,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        f"{CONSUMER_OFFSETS}-{index} has no leader at the moment",
    )


def _refused(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)
