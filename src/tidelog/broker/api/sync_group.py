"""SyncGroup (14), versions 0-5: the leader brings what each member of a classic group gets, everybody else asks for it.

3  static members (KIP-345)       4  flexible       5  protocol type and name
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_coordinator import client_of
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.wire.messages.sync_group import SyncGroupRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: SyncGroupRequest) -> Pending:
    client = client_of(context)
    return broker.groups.answer(
        context,
        request.group_id,
        lambda shard, waiter, now: shard.sync_group(request, client, waiter, now),
        refusals.sync_group,
        alone=True,
    )
