"""DeleteTopics (20), versions 1-6.

4  flexible            5  error messages            6  topics by id

The topic is gone for every client when the answer leaves; its files follow in the background.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


async def handle(
    broker: Broker, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    return await broker.metadata.submit(
        lambda controller: controller.delete_topics(request),
        entries=len(request.topics) + len(request.topic_names),
    )
