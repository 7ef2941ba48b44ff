"""OffsetFetch (9), versions 1-10: how far groups have read.

2  everything (topics are null); an error of the whole     5  leader epochs     6  flexible     7  require stable (KIP-447)
8  several groups                                          9  member epochs (KIP-848)           10 topics by id

A group or a partition that nothing is known of is no error: its offset is -1 (CLIENTS trap 17).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_coordinator import Question, client_of
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import refusals
from tidelog.coordinator.group.refusals import FIRST_WITH_GROUP_ERROR
from tidelog.coordinator.group.world import Client
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

FIRST_WITH_GROUPS = 8


def handle(broker: Broker, context: RequestContext, request: OffsetFetchRequest) -> Pending:
    client = client_of(context)
    if context.version >= FIRST_WITH_GROUPS:
        questions = [_question(group, request.require_stable, client) for group in request.groups]
        return broker.groups.answer_all(context, questions, lambda groups: OffsetFetchResponse(groups=groups))
    group = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if request.topics is None
        else [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ],
    )
    return broker.groups.answer_all(
        context,
        [_question(group, request.require_stable, client)],
        lambda groups: _one_group(groups[0], context.version),
    )


def _question(group: OffsetFetchRequestGroup, require_stable: bool, client: Client) -> Question:
    return Question(
        group.group_id,
        lambda shard, waiter, now: shard.offset_fetch(group, require_stable, client, waiter, now),
        refusals.offset_fetch(group, client.version),
    )


def _one_group(group: OffsetFetchResponseGroup, version: int) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        error_code=group.error_code if version >= FIRST_WITH_GROUP_ERROR else 0,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )
