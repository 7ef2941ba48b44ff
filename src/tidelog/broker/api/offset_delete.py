"""OffsetDelete (47), version 0: forget what a group has committed for some partitions (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.wire.messages.offset_delete import OffsetDeleteRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: OffsetDeleteRequest) -> Pending:
    return broker.groups.answer(
        context,
        request.group_id,
        lambda shard, waiter, now: shard.offset_delete(request, waiter, now),
        refusals.offset_delete,
    )
