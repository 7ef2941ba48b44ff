"""AlterConfigs (33), versions 0-2: replaces all settings of a resource. Clients should use IncrementalAlterConfigs.

2  flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.footgun_log import warn_of_settings
from tidelog.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


async def handle(
    broker: Broker, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    response: AlterConfigsResponse = await broker.metadata.submit(
        lambda controller: controller.alter_configs(request), entries=len(request.resources)
    )
    for changed in response.responses if not request.validate_only else ():
        if not changed.error_code:
            warn_of_settings(broker, changed.resource_type, changed.resource_name)
    return response
