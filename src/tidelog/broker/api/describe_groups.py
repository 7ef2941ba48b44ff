"""DescribeGroups (15), versions 0-6: state and members of classic groups.

3  authorized operations      4  instance ids      5  flexible      6  GROUP_ID_NOT_FOUND with a message (KIP-1043)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.api.authorized_operations import GROUP_OPERATIONS
from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_coordinator import Question, client_of
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.coordinator.group.world import Client
from tidelog.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: DescribeGroupsRequest) -> Pending:
    client = client_of(context)

    def finish(groups: list[DescribedGroup]) -> DescribeGroupsResponse:
        if request.include_authorized_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=groups)

    return broker.groups.answer_all(
        context, [_question(group_id, client) for group_id in request.groups], finish
    )


def _question(group_id: str, client: Client) -> Question:
    return Question(
        group_id,
        lambda shard, waiter, now: shard.describe_group(group_id, client, waiter),
        refusals.describe_group(group_id),
    )
