"""FindCoordinator (10), versions 0-6: which broker coordinates a group or a transaction.

1  key types (groups, transactions)      3  flexible      4  several keys at once      5  newer errors      6  share groups

There are no coordinators yet, and every key is answered with COORDINATOR_NOT_AVAILABLE, which is the truth. The API is
served all the same because librdkafka turns lz4 off for brokers that do not list it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

GROUP, TRANSACTION, SHARE = 0, 1, 2
REASON = "this broker coordinates neither consumer groups nor transactions; assign partitions instead of subscribing"


def handle(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    known = (GROUP, TRANSACTION, SHARE) if context.version >= 6 else (GROUP, TRANSACTION)
    if request.key_type in known:
        code, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, REASON
    else:
        code, message = ErrorCode.INVALID_REQUEST, f"there is no key type {request.key_type}"
    if context.version < 4:
        return FindCoordinatorResponse(error_code=code, error_message=message, node_id=-1, host="", port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)
            for key in request.coordinator_keys
        ]
    )
