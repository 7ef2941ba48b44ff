"""DescribeQuorum (55), versions 0-2: voters and observers of the metadata log, and how far each of them is. Only the quorum's leader knows.

1  times of the last fetch and of the last catching up      2  error messages, directory ids, where the voters listen
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.settings import voter_addresses
from tidelog.internal_topics import CLUSTER_METADATA
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ResponsePartitionData,
    ResponseTopicData,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

_THE_PARTITION: Final = [(CLUSTER_METADATA, [0])]


def handle(broker: Broker, context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    asked = [(topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in request.topics]
    if asked != _THE_PARTITION:
        return _refused(asked)
    response = broker.node.quorum.describe()
    if response.topics[0].partitions[0].error_code == ErrorCode.NONE:
        response.nodes = _voters(broker)
    return response


def _refused(asked: list[tuple[str, list[int]]]) -> DescribeQuorumResponse:
    """There is one partition with a quorum; a question about any other is refused as a whole, as Kafka does it."""
    return DescribeQuorumResponse(
        topics=[
            ResponseTopicData(
                name,
                [
                    ResponsePartitionData(
                        partition_index=index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message=f"only {CLUSTER_METADATA}-0 has a quorum",
                    )
                    for index in partitions
                ],
            )
            for name, partitions in asked
        ]
    )


def _voters(broker: Broker) -> list[Node]:
    name = next(iter(broker.config.list("controller.listener.names")), "")
    return [
        Node(voter, [Listener(name, address.host, address.port)])
        for voter, address in sorted(voter_addresses(broker.config).items())
    ]
