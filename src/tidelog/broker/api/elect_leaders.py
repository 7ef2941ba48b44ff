"""ElectLeaders (43), versions 0-2: leaders chosen anew, the preferred ones or, where a topic is offline, any (unclean). Decided by the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


async def handle(
    broker: Broker, context: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    response: ElectLeadersResponse = await broker.metadata.decide(request)
    return response
