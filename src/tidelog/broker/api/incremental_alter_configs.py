"""IncrementalAlterConfigs (44), versions 0-1: set, delete, append to and subtract from single settings.

1  flexible

Levels of loggers belong to this process and are changed here; everything else is metadata and goes to the controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker import loggers
from tidelog.broker.dispatch import RequestContext
from tidelog.broker.footgun_log import warn_of_settings
from tidelog.controller.image import ResourceType
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


async def handle(
    broker: Broker, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    own = [resource for resource in request.resources if resource.resource_type == ResourceType.BROKER_LOGGER]
    request.resources = [
        resource for resource in request.resources if resource.resource_type != ResourceType.BROKER_LOGGER
    ]
    answers = [_alter_loggers(broker, resource, validate_only=request.validate_only) for resource in own]
    response: IncrementalAlterConfigsResponse = await broker.metadata.submit(
        lambda controller: controller.incremental_alter_configs(request), entries=len(request.resources)
    )
    for changed in response.responses if not request.validate_only else ():
        if not changed.error_code:
            warn_of_settings(broker, changed.resource_type, changed.resource_name)
    response.responses += answers
    return response


def _alter_loggers(
    broker: Broker, resource: AlterConfigsResource, *, validate_only: bool
) -> AlterConfigsResourceResponse:
    answer = AlterConfigsResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
    )
    try:
        if resource.resource_name != str(broker.node_id):
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f"loggers of {resource.resource_name!r} cannot be changed at broker {broker.node_id}",
            )
        loggers.alter(
            [(config.name, config.config_operation, config.value) for config in resource.configs],
            validate_only=validate_only,
        )
    except RequestError as error:
        answer.error_code = error.code
        answer.error_message = error.message
    return answer
