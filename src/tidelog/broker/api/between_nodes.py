"""Requests between the nodes of a cluster, served at the controllers' listener: handed to this node's quorum or to its controller, which answer when they can.

Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54), Fetch (1) of the metadata log and FetchSnapshot (59): the quorum.
BrokerRegistration (62), BrokerHeartbeat (63), AlterPartition (56), AllocateProducerIds (67), ControllerRegistration (70): the controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.pending import Pending
from tidelog.cluster.local_first import refusal
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def to_quorum(broker: Broker, context: RequestContext, request: Any) -> Pending:
    pending = context.defer()
    broker.node.quorum.handle(request, lambda response: _answer(context, pending, response))
    return pending


def to_controller(broker: Broker, context: RequestContext, request: Any) -> Pending:
    controller = broker.node.controller
    if controller is None:
        raise RequestError(ErrorCode.NOT_CONTROLLER, "this node is no controller")
    pending = context.defer()

    def answered(response: Any) -> None:
        told = refusal(request, response) if isinstance(response, RequestError) else response
        _answer(context, pending, told)

    if isinstance(request, BrokerHeartbeatRequest):
        broker_id = request.broker_id
        # A process that is killed closes its connections, long before its session would end.
        context.connection.when_closed = lambda: controller.connection_lost(broker_id)
    controller.handle(request, answered)
    return pending


def _answer(context: RequestContext, pending: Pending, response: Any) -> None:
    if not pending.done and not context.connection.closed:
        context.answer(pending, response)
