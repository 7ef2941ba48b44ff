"""OffsetCommit (8), versions 2-10: a group has read so far.

5  no retention time any more     6  leader epochs (KIP-320)     7  static members (KIP-345)     8  flexible
9  member epochs (KIP-848)        10 topics by id

Answered when the offsets are committed in `__consumer_offsets`, which is always fdatasync'ed (D10).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_coordinator import client_of
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.wire.messages.offset_commit import OffsetCommitRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: OffsetCommitRequest) -> Pending:
    client = client_of(context)
    return broker.groups.answer(
        context,
        request.group_id,
        lambda shard, waiter, now: shard.offset_commit(request, client, waiter, now),
        refusals.offset_commit(request),
    )
