"""JoinGroup (11), versions 0-9: become a member of a classic group, and wait for the others.

1  rebalance timeout     4  MEMBER_ID_REQUIRED (KIP-394)     5  static members (KIP-345)     6  flexible
7  protocol type         8  reason (KIP-800)                 9  skip assignment (KIP-814)

The answer comes when the rebalance is over, so requests behind it on the connection wait, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_coordinator import client_of
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.wire.messages.join_group import JoinGroupRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: JoinGroupRequest) -> Pending:
    client = client_of(context)
    return broker.groups.answer(
        context,
        request.group_id,
        lambda shard, waiter, now: shard.join_group(request, client, waiter, now),
        refusals.join_group(request),
        alone=True,
    )
