"""DescribeCluster (60), versions 0-2: the cluster's id, its brokers and who controls it.

1  endpoint type: brokers or controllers         2  fenced brokers on request
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.broker.api.authorized_operations import CLUSTER_OPERATIONS
from tidelog.broker.dispatch import RequestContext
from tidelog.broker.settings import voter_addresses
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

BROKERS: Final = 1
CONTROLLERS: Final = 2
_NAMES: Final = {BROKERS: "brokers", CONTROLLERS: "controllers"}


def at_broker(
    broker: Broker, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """At a listener for clients. As in Kafka, the controller that is named is a broker: it sends on what a controller has to decide."""
    refused = _refusal(request, serves=BROKERS)
    if refused is not None:
        return refused
    return _response(
        broker,
        request,
        controller_id=broker.node_id,
        nodes=[
            DescribeClusterBroker(
                broker_id=found.node_id,
                host=found.host,
                port=found.port,
                rack=found.rack,
                is_fenced=found.is_fenced,
            )
            for found in broker.view.endpoints(
                context.connection.listener_name, fenced_too=request.include_fenced_brokers
            )
        ],
    )


def at_controller(
    broker: Broker, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """At a listener for controllers: the voters, and which of them is the active controller."""
    refused = _refusal(request, serves=CONTROLLERS)
    if refused is not None:
        return refused
    leader_id = broker.node.metadata.leader_id
    return _response(
        broker,
        request,
        controller_id=-1 if leader_id is None else leader_id,
        nodes=[
            DescribeClusterBroker(broker_id=voter, host=address.host, port=address.port)
            for voter, address in sorted(voter_addresses(broker.config).items())
        ],
    )


def _refusal(request: DescribeClusterRequest, *, serves: int) -> DescribeClusterResponse | None:
    if request.endpoint_type == serves:
        return None
    if request.endpoint_type not in _NAMES:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type is 1 (brokers) or 2 (controllers), not {request.endpoint_type}",
        )
    return DescribeClusterResponse(
        error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
        error_message=f"this endpoint serves {_NAMES[serves]}; ask one that serves {_NAMES[request.endpoint_type]}",
    )


def _response(
    broker: Broker, request: DescribeClusterRequest, *, controller_id: int, nodes: list[DescribeClusterBroker]
) -> DescribeClusterResponse:
    response = DescribeClusterResponse(
        endpoint_type=request.endpoint_type,
        cluster_id=broker.cluster_id,
        controller_id=controller_id,
        brokers=nodes,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response
