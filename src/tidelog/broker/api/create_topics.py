"""CreateTopics (19), versions 2-7.

4  -1 partitions or replicas take the broker's defaults      5  flexible; the new topic's settings are returned      7  topic ids

A topic is ready for use when the answer leaves: its metadata is durable and its partitions are open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.footgun_log import warn_of_topics
from tidelog.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


async def handle(
    broker: Broker, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    # A partition is a tenth of the work of a topic.
    entries = len(request.topics) + sum(max(0, topic.num_partitions) for topic in request.topics) // 10
    response: CreateTopicsResponse = await broker.metadata.submit(
        lambda controller: controller.create_topics(request), entries=entries
    )
    if not request.validate_only:
        warn_of_topics(broker, [topic.name for topic in response.topics if not topic.error_code])
    return response
