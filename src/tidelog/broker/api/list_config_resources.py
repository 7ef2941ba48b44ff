"""ListConfigResources (74), versions 0-1: what has, or may have, settings of its own.

0  client metrics subscriptions only          1  every resource type, chosen by number; none chosen means all
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.controller.image import ResourceType
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

LISTED = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)


def handle(
    broker: Broker, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    asked = (
        [ResourceType.CLIENT_METRICS] if context.version == 0 else (request.resource_types or list(LISTED))
    )
    if not set(asked) <= set(LISTED):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in LISTED
            if resource_type in asked
            for name in _names(broker, resource_type)
        ]
    )


def _names(broker: Broker, resource_type: ResourceType) -> list[str]:
    image = broker.image
    if resource_type == ResourceType.TOPIC:
        return list(image.topics_by_name)
    if resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(node_id) for node_id in image.brokers]
    return [key.name for key in image.configs if key.type == resource_type]
