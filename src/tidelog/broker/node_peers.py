"""Whom this node asks, and where they are: voters at the addresses of the configuration, brokers at those of the metadata.

Fetches wait at the other side, so they have connections of their own; so has whatever the quorum depends on, and so have heartbeats, which must not wait behind an answer that takes the controller long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.peers import PeerConnections
from tidelog.broker.settings import voter_addresses
from tidelog.client.addresses import Address
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.fetch_snapshot import FetchSnapshotRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


LISTENS_TIMEOUT_S: Final = 1.0


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
        self._heartbeats = PeerConnections(
            self._voters.get, client_id=f"{name}-heartbeat", on_lost=self._controller_lost
        )
        self._controller_calls = PeerConnections(self._voters.get, client_id=f"{name}-to-controller")
        self.brokers = PeerConnections(
            self._broker_address, client_id=f"{name}-replica-fetch", on_lost=self._broker_lost
        )
        self.quorum = _Lanes((FetchRequest, FetchSnapshotRequest), self._quorum_fetches, self._quorum_calls)
        self.controllers = _Lanes((BrokerHeartbeatRequest,), self._heartbeats, self._controller_calls)
        self._cut_off: frozenset[int] = frozenset()
        self._looking: set[asyncio.Task[None]] = set()

    def _voter_lost(self, node_id: int) -> None:
        self._broker.node.quorum.disconnected(node_id)
        self._broker.node.missing.lost(node_id)

    def _controller_lost(self, node_id: int) -> None:
        """A controller takes the end of this connection for a sign that the broker may be dead: it is to hear soon that it is not."""
        self._broker.node.lifecycle.connection_lost()

    def _broker_lost(self, node_id: int) -> None:
        self._broker.node.missing.lost(node_id)

    def listens(self, node_id: int, answered: Callable[[bool | None], None], /) -> None:
        """`cluster.missing_nodes.Listens`."""
        address = None if node_id in self._cut_off else self._broker_address(node_id)
        loop = asyncio.get_running_loop()
        if address is None:
            loop.call_soon(answered, None)
            return
        task = loop.create_task(_knock(address, answered))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

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
        return (
            self._quorum_fetches,
            self._quorum_calls,
            self._heartbeats,
            self._controller_calls,
            self.brokers,
        )

    def cut_off(self, node_ids: Iterable[int]) -> None:
        """These nodes are not to be reached from now on, all others are: a network that fails, for tests."""
        self._cut_off = frozenset(node_ids)
        for lane in self._lanes:
            lane.cut_off(self._cut_off)

    def close(self) -> None:
        for task in self._looking:
            task.cancel()
        for lane in self._lanes:
            lane.close()


async def _knock(address: Address, answered: Callable[[bool | None], None]) -> None:
    """Make a connection and let go of it."""
    taken: bool | None = None
    try:
        async with asyncio.timeout(LISTENS_TIMEOUT_S):
            _reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.transport.abort()
        taken = True
    except ConnectionRefusedError:
        taken = False
    except OSError:  # TimeoutError is one
        taken = None
    answered(taken)


class _Lanes:
    """Requests of some types have connections of their own."""

    def __init__(self, types: tuple[type, ...], own: PeerConnections, others: PeerConnections) -> None:
        self._types = types
        self._own = own
        self._others = others

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any | None], None], /, *, timeout_s: float
    ) -> None:
        lane = self._own if isinstance(request, self._types) else self._others
        lane.ask(node_id, request, answered, timeout_s=timeout_s)
