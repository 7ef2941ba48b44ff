"""Requests to other nodes of the cluster: a connection for each node that is asked, kept until it fails.

Implements `tidelog.ports.Peers` on the client's connections. Kafka answers one connection in the order of its requests, so whatever waits at
the other side for long (a fetch that is parked) gets an instance of its own and holds up nothing else. Nothing is sent again here: whoever asks
gets None when there will be no answer, and knows best whether and when to try once more. An address is looked up for each new connection,
because a node may have moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from tidelog.broker.limited_log import LimitedLog
from tidelog.client.addresses import Address
from tidelog.client.connection import Connection
from tidelog.client.errors import ClientError, ConnectionLostError
from tidelog.wire.api import spec_of_request

logger = logging.getLogger("tidelog.peers")
complaints = LimitedLog(logger, lines_per_second=2)

CONNECT_TIMEOUT_MS = 1_000
"""A node that takes longer to accept a connection would not answer in time either."""

NEGOTIATION_TIMEOUT_MS = 3_000
"""For what a connection begins with. Every other request names its own time."""

Answered = Callable[[Any | None], None]


class _Asked:
    """One question: answered once, whatever happens, and not later than its time. Once it is sent, the connection minds the time."""

    __slots__ = ("_answered", "_node_id", "_timer", "request", "timeout_s")

    def __init__(self, node_id: int, request: Any, answered: Answered, timeout_s: float) -> None:
        self._node_id = node_id
        self.request = request
        self.timeout_s = timeout_s
        self._answered: Answered | None = answered
        self._timer: asyncio.TimerHandle | None = None

    def wait(self) -> None:
        """For a connection, and not longer than its time."""
        self._timer = asyncio.get_running_loop().call_later(self.timeout_s, self.answer, None)

    def answer(self, response: Any | None) -> None:
        answered, self._answered = self._answered, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if answered is not None:
            answered(response)

    # ---- client.connection.Waiting

    def done(self) -> bool:
        return self._answered is None

    def set_result(self, result: Any, /) -> None:
        """Called by the connection while it reads: what goes wrong with an answer must not end the connection."""
        try:
            self.answer(result)
        except Exception as error:  # noqa: BLE001 - reported as any callback's
            context = {"message": f"an answer of node {self._node_id} was not taken", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def set_exception(self, exception: ClientError, /) -> None:
        """In the next turn: whoever asks may ask again at once, and the connection is just being ended."""
        if not isinstance(exception, ConnectionLostError):
            complaints.warning("node %d: %s", self._node_id, exception)
        asyncio.get_running_loop().call_soon(self.answer, None)


class PeerConnections:
    """`on_lost` hears of a node whose connection broke, or that cannot be reached: a hint that its process may be gone."""

    def __init__(
        self,
        address_of: Callable[[int], Address | None],
        *,
        client_id: str,
        on_lost: Callable[[int], None] | None = None,
    ) -> None:
        self._address_of = address_of
        self._client_id = client_id
        self._on_lost = on_lost
        self._peers: dict[int, _Peer] = {}
        self._cut_off: set[int] = set()
        self._closed = False

    def ask(self, node_id: int, request: Any, answered: Answered, /, *, timeout_s: float) -> None:
        address = None if self._closed or node_id in self._cut_off else self._address_of(node_id)
        if address is None:
            asyncio.get_running_loop().call_soon(answered, None)
            return
        peer = self._peers.get(node_id)
        if peer is None or peer.address != address:
            if peer is not None:
                peer.close()
            peer = self._peers[node_id] = _Peer(node_id, address, self._client_id, self._lost)
        peer.ask(_Asked(node_id, request, answered, timeout_s))

    def cut_off(self, node_ids: Iterable[int]) -> None:
        """These nodes are not to be reached from now on, all others are: a network that fails, for tests."""
        self._cut_off = set(node_ids)
        for node_id in self._cut_off & self._peers.keys():
            self._peers.pop(node_id).close()

    def close(self) -> None:
        self._closed = True
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    def _lost(self, node_id: int) -> None:
        if self._on_lost is not None and not self._closed:
            self._on_lost(node_id)


class _Peer:
    """One node: a connection, or the attempt to make one, with what waits for it."""

    __slots__ = (
        "_client_id",
        "_connection",
        "_is_down",
        "_lost",
        "_node_id",
        "_opening",
        "_waiting",
        "address",
    )

    def __init__(self, node_id: int, address: Address, client_id: str, lost: Callable[[int], None]) -> None:
        self.address = address
        self._node_id = node_id
        self._client_id = client_id
        self._lost = lost
        self._connection: Connection | None = None
        self._is_down = False
        self._opening: asyncio.Task[None] | None = None
        self._waiting: list[_Asked] = []

    def ask(self, asked: _Asked) -> None:
        if self._connection is not None and self._connection.is_open:
            self._send(self._connection, asked)
            return
        asked.wait()
        self._waiting.append(asked)
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            self._connection = await Connection.open(
                self.address,
                client_id=self._client_id,
                connect_timeout_ms=CONNECT_TIMEOUT_MS,
                request_timeout_ms=NEGOTIATION_TIMEOUT_MS,
            )
        except ClientError as error:
            if not self._is_down:  # once, not with every try for as long as it lasts
                complaints.warning("node %d is not to be reached: %s", self._node_id, error)
            self._is_down = True
            self._give_up()
            self._lost(self._node_id)
        except asyncio.CancelledError:
            self._give_up()
            raise
        except Exception:
            # Whoever asks must not wait for ever, even for a bug.
            logger.exception("bug: no connection to node %d at %s", self._node_id, self.address)
            self._give_up()
        else:
            if self._is_down:
                logger.info("node %d is reached again at %s", self._node_id, self.address)
            self._is_down = False
            self._connection.when_lost = self._ended
            self._opening = None
            waiting, self._waiting = self._waiting, []
            for asked in waiting:
                self._send(self._connection, asked)

    def _give_up(self) -> None:
        self._opening = None
        waiting, self._waiting = self._waiting, []
        for asked in waiting:
            asked.answer(None)

    def _send(self, connection: Connection, asked: _Asked) -> None:
        if asked.done():
            return  # it has waited for the connection for too long
        try:
            connection.send_for(
                asked,
                spec_of_request(type(asked.request)).key,
                asked.request,
                timeout_ms=max(1, int(asked.timeout_s * 1000)),
            )
        except ClientError as error:  # gone since we looked, or it does not know this request
            complaints.warning("node %d: %s", self._node_id, error)
            asyncio.get_running_loop().call_soon(asked.answer, None)

    def _ended(self) -> None:
        """In the next turn: whoever waits for answers hears that there will be none first."""
        asyncio.get_running_loop().call_soon(self._lost, self._node_id)

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.when_lost = None
            self._connection.abort()
