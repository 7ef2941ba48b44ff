"""Who leads instead, for clients that came to the wrong broker (KIP-951): they need not ask for metadata first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.replication.assignment import NO_LEADER
from tidelog.wire.node_endpoints import NodeAddress

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


class LeaderHints:
    """Collected while one answer is written."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # The newest there is: the broker may be about to act by it.
        self._image = broker.node.metadata.image
        self._leaders: set[int] = set()

    def leader_of(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Its id and epoch; None if nobody leads, or this broker is about to."""
        image = self._image.topic(topic)
        found = image.partitions.get(partition) if image is not None else None
        if found is None or found.leader in (NO_LEADER, self._broker.node_id):
            return None
        self._leaders.add(found.leader)
        return found.leader, found.leader_epoch

    def endpoints(self, listener_name: str) -> list[NodeAddress]:
        """Where those are that `leader_of` has named."""
        return [
            NodeAddress(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
            for endpoint in self._broker.view.endpoints(listener_name)
            if endpoint.node_id in self._leaders
        ]
