"""DeleteGroups (42), versions 0-2: groups without members go, with everything they have committed.

2  flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_coordinator import Question
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: DeleteGroupsRequest) -> Pending:
    return broker.groups.answer_all(
        context,
        [_question(group_id) for group_id in request.groups_names],
        lambda results: DeleteGroupsResponse(results=results),
    )


def _question(group_id: str) -> Question:
    return Question(
        group_id,
        lambda shard, waiter, now: shard.delete_group(group_id, waiter, now),
        refusals.delete_group(group_id),
    )
