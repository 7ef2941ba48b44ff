"""UpdateFeatures (57), versions 0-2: levels of features that the whole cluster agrees on. Decided by the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


async def handle(
    broker: Broker, context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    response: UpdateFeaturesResponse = await broker.metadata.decide(request)
    return response
