"""LeaveGroup (13), versions 0-5: members go, and the others need not wait for their silence.

3  several members, static ones by their instance id (KIP-345)       4  flexible       5  reason (KIP-800)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_coordinator import client_of
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.wire.messages.leave_group import LeaveGroupRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: LeaveGroupRequest) -> Pending:
    client = client_of(context)
    return broker.groups.answer(
        context,
        request.group_id,
        lambda shard, waiter, now: shard.leave_group(request, client, waiter, now),
        refusals.leave_group,
    )
