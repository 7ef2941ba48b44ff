"""CreatePartitions (37), versions 0-3: more partitions for existing topics.

2  flexible            3  quota errors
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


async def handle(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    # A partition is a tenth of the work of a topic.
    entries = len(request.topics) + sum(max(0, topic.count) for topic in request.topics) // 10
    return await broker.metadata.submit(
        lambda controller: controller.create_partitions(request), entries=entries
    )
