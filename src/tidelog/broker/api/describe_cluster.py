"""DescribeCluster (60), versions 0-2: the cluster's id, its brokers and who controls it.

1  endpoint type: brokers or controllers         2  fenced brokers on request
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.api.authorized_operations import CLUSTER_OPERATIONS
from tidelog.broker.dispatch import RequestContext
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

BROKERS = 1
CONTROLLERS = 2


def handle(
    broker: Broker, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        if request.endpoint_type == CONTROLLERS:
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
            message = "this endpoint serves brokers; ask a controller's endpoint for controllers"
        else:
            code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            message = f"endpoint type is 1 (brokers) or 2 (controllers), not {request.endpoint_type}"
        return DescribeClusterResponse(error_code=code, error_message=message)
    response = DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=[
            DescribeClusterBroker(broker_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in broker.view.endpoints(context.connection.listener_name)
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response
