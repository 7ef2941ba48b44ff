"""DescribeTopicPartitions (75), version 0: topics with their partitions, page by page (KIP-966).

Topics come in the order of their names. A page ends at `response_partition_limit` partitions and names where to go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.api.authorized_operations import TOPIC_OPERATIONS
from tidelog.broker.dispatch import RequestContext
from tidelog.controller.image import TopicImage
from tidelog.internal_topics import is_internal_topic
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import describe_topic_partitions as messages
from tidelog.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    image = broker.image
    cursor = request.cursor
    asked = {topic.name for topic in request.topics}
    names = sorted(asked or image.topics_by_name)
    first_partition = 0
    if cursor is not None:
        if cursor.partition_index < 0 or (asked and cursor.topic_name not in asked):
            return DescribeTopicPartitionsResponse(
                topics=[_failed(topic.name, ErrorCode.INVALID_REQUEST) for topic in request.topics]
            )
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first_partition = cursor.partition_index
    limit = min(request.response_partition_limit, broker.config.int("max.request.partition.size.limit"))
    left = max(limit, 1)  # a page without a partition would lead nowhere
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if left <= 0:
            response.next_cursor = messages.Cursor(topic_name=name, partition_index=first_partition)
            break
        topic = image.topic(name)
        if topic is None:
            response.topics.append(_failed(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        indexes = [index for index in topic.partitions if index >= first_partition]
        first_partition = 0
        response.topics.append(_describe(broker, topic, indexes[:left]))
        if len(indexes) > left:
            response.next_cursor = messages.Cursor(topic_name=name, partition_index=indexes[left])
            break
        left -= len(indexes)
    return response


def _failed(name: str | None, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name)


def _describe(broker: Broker, topic: TopicImage, indexes: list[int]) -> DescribeTopicPartitionsResponseTopic:
    response = DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal_topic(topic.name),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
    for index in indexes:
        partition = topic.partitions[index]
        leader = broker.view.live_leader(topic, index, partition)
        response.partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=broker.view.offline_replicas(topic, index, partition),
            )
        )
    return response
