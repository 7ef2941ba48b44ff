"""SyncGroup (14), versions 0-5: the leader brings what each member of a classic group gets, everybody else asks for it.

3  static members (KIP-345)       4  flexible       5  protocol type and name

Whom the assignment changes nothing for may be answered a moment later, when it is already time to join again (`held_answers.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_coordinator import client_of
from tidelog.broker.held_answers import joins_again_at_once
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.wire.messages.sync_group import SyncGroupRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: SyncGroupRequest) -> Pending:
    client = client_of(context)
    newcomers_too = joins_again_at_once(context.connection.client_software)
    return broker.groups.answer_in_time(
        context,
        request,
        lambda shard, waiter, now: shard.sync_group(request, client, waiter, now),
        refusals.sync_group,
        lambda shard: shard.sync_patience_ms(request, newcomers_too=newcomers_too),
        alone=True,
    )
