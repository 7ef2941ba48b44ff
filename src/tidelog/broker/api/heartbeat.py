"""Heartbeat (12), versions 0-4: a member of a classic group is alive, and hears of a rebalance.

3  static members (KIP-345)       4  flexible

Answered at once, or as soon as there is something to tell (`held_answers.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_coordinator import client_of
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.wire.messages.heartbeat import HeartbeatRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: HeartbeatRequest) -> Pending:
    client = client_of(context)
    return broker.groups.answer_in_time(
        context,
        request,
        lambda shard, waiter, now: shard.heartbeat(request, client, waiter, now),
        refusals.heartbeat,
        lambda shard: shard.heartbeat_patience_ms(request),
    )
