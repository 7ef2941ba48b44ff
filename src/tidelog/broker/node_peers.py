"""Whom this node asks, and where they are: voters at the addresses of the configuration, brokers at those of the metadata.

Fetches wait at the other side, so they have connections of their own; so has whatever the quorum depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidelog.broker.peers import PeerConnections
from tidelog.broker.settings import voter_addresses
from tidelog.client.addresses import Address
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.fetch_snapshot import FetchSnapshotRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


class NodePeers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._voters = voter_addresses(broker.config)
        self._between_brokers = broker.config.inter_broker_listener
        name = f"node-{broker.node_id}"
        self._quorum_fetches = PeerConnections(
            self._voters.get, client_id=f"{name}-quorum-fetch", on_lost=self._voter_lost
        )
        self._quorum_calls = PeerConnections(self._voters.get, client_id=f"{name}-quorum")
        self.controllers = PeerConnections(
            self._voters.get, client_id=f"{name}-to-controller", on_lost=self._controller_lost
        )
        self.brokers = PeerConnections(self._broker_address, client_id=f"{name}-replica-fetch")
        self.quorum = _Lanes(self._quorum_fetches, self._quorum_calls)

    def _voter_lost(self, node_id: int) -> None:
        self._broker.node.quorum.disconnected(node_id)

    def _controller_lost(self, node_id: int) -> None:
        """A controller takes the end of this connection for a sign that the broker is dead: it is to hear soon that it is not."""
        self._broker.node.lifecycle.connection_lost()

    def _broker_address(self, broker_id: int) -> Address | None:
        broker = self._broker.node.metadata.image.brokers.get(broker_id)
        if broker is None:
            return None
        for endpoint in broker.endpoints:
            if endpoint.name == self._between_brokers:
                return Address(endpoint.host, endpoint.port)
        return None

    @property
    def _lanes(self) -> tuple[PeerConnections, ...]:
        return self._quorum_fetches, self._quorum_calls, self.controllers, self.brokers

    def cut_off(self, node_ids: Iterable[int]) -> None:
        """These nodes are not to be reached from now on, all others are: a network that fails, for tests."""
        for lane in self._lanes:
            lane.cut_off(node_ids)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


class _Lanes:
    """`Peers` of the quorum."""

    def __init__(self, fetches: PeerConnections, others: PeerConnections) -> None:
        self._fetches = fetches
        self._others = others

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None:
        waits = isinstance(request, FetchRequest | FetchSnapshotRequest)
        (self._fetches if waits else self._others).ask(node_id, request, answered, timeout_s=timeout_s)
