"""ConsumerGroupHeartbeat (68), versions 0-1: join, stay in, and leave a consumer group (KIP-848).

1  patterns (KIP-848's regular expressions), and members that choose their own id (KIP-1082)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_coordinator import client_of
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> Pending:
    client = client_of(context)
    return broker.groups.answer(
        context,
        request.group_id,
        lambda shard, waiter, now: shard.consumer_group_heartbeat(request, client, waiter, now),
        refusals.consumer_group_heartbeat,
    )
