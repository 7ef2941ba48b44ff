"""ConsumerGroupDescribe (69), versions 0-1: state, members and assignments of consumer groups (KIP-848).

1  the protocol that each member speaks (KIP-1099)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.api.authorized_operations import GROUP_OPERATIONS
from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_coordinator import Question
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: ConsumerGroupDescribeRequest) -> Pending:
    def finish(groups: list[DescribedGroup]) -> ConsumerGroupDescribeResponse:
        if request.include_authorized_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
        return ConsumerGroupDescribeResponse(groups=groups)

    return broker.groups.answer_all(context, [_question(group_id) for group_id in request.group_ids], finish)


def _question(group_id: str) -> Question:
    return Question(
        group_id,
        lambda shard, waiter, now: shard.describe_consumer_group(group_id, waiter),
        refusals.describe_consumer_group(group_id),
    )
