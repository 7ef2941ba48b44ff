"""ExplainGroup (20001), version 0: what happened to a group lately. Tidelog's own; never listed in ApiVersions (`wire/tidelog_api.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.pending import Pending
from tidelog.coordinator.group.shard import GroupShard
from tidelog.coordinator.outcome import Now, Outcome, Waiter, answered
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.tidelog_api import ExplainedEvent, ExplainGroupRequest, ExplainGroupResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: ExplainGroupRequest) -> Pending:
    def explain(shard: GroupShard, waiter: Waiter, _now: Now) -> Outcome:
        explained = shard.explain(request.group_id)
        if explained is None:
            raise RequestError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"nothing is known of a group {request.group_id}"
            )
        return answered(
            waiter,
            ExplainGroupResponse(
                group_type=explained.group_type,
                state=explained.state,
                protocol=explained.protocol,
                entries=[
                    ExplainedEvent(
                        wall_ms=entry.wall_ms,
                        event=entry.event.value,
                        generation=entry.generation,
                        member_id=entry.member_id,
                        client=entry.client,
                        detail=entry.detail,
                    )
                    for entry in explained.entries
                ],
            ),
        )

    return broker.groups.answer(
        context,
        request.group_id,
        explain,
        lambda code, message: ExplainGroupResponse(error_code=code, error_message=message or None),
    )
