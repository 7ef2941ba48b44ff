"""The listening sockets: accept, count, turn away, and close what is idle or holds too much.

Limits are Kafka's: `max.connections` per broker, `max.connections.per.ip` with overrides, `connections.max.idle.ms`.
A connection over a limit is closed at once, and the log says which limit it met.

Two more limits keep a crowd from taking what the broker itself needs (I51). Connections get only the descriptors that are left
when the log has its own and a reserve for more: a file that cannot be opened would take its directory offline. And the bytes
that half received requests and untaken answers hold are bounded over all connections (`connections.max.held.bytes`): beyond it,
those go first that have longest neither completed a request nor taken an answer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidelog import loopback
from tidelog.broker.connection import Connection, Dispatcher
from tidelog.broker.limited_log import LimitedLog
from tidelog.broker.receive_buffers import ReceiveBuffers

logger = logging.getLogger("tidelog.broker")
complaints = LimitedLog(logger)

ACCEPTS_PER_TURN = 64
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE_SECONDS = 1.0
LOOK_SECONDS = 0.25
"""How often the connections are looked over."""
LOCAL_SEND_BUFFER_BYTES = 1024 * 1024
"""For clients on this machine, unless set. A full buffer makes the sender wait for the reader, instead of waking it for every packet; what one reader can keep is bounded."""
HELD_BYTES_NOTICED = 64 * 1024
"""A connection that holds less is no part of the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    max_frame_bytes: int = 100 * 1024 * 1024
    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    max_idle_ms: int = 600_000
    max_held_bytes: int = 256 * 1024 * 1024
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    backlog: int = 1024


class ConnectionCounts:
    """Open connections of all listeners together: the limits are the broker's, not one listener's.

    `descriptors_left` says how many more descriptors connections may take; without it, as many as there are.
    """

    __slots__ = ("_descriptors_left", "per_ip", "total")

    def __init__(self, descriptors_left: Callable[[int], int] | None = None) -> None:
        self._descriptors_left = descriptors_left
        self.total = 0
        self.per_ip: Counter[str] = Counter()

    def opened(self, host: str) -> None:
        self.total += 1
        self.per_ip[host] += 1

    def has_descriptors(self) -> bool:
        return self._descriptors_left is None or self._descriptors_left(self.total) > 0

    def closed(self, host: str) -> None:
        self.total -= 1
        self.per_ip[host] -= 1
        if not self.per_ip[host]:
            del self.per_ip[host]


class Listener:
    """One endpoint of the broker."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        dispatcher: Dispatcher,
        limits: ConnectionLimits,
        buffers: ReceiveBuffers,
        counts: ConnectionCounts,
    ) -> None:
        self.name = name
        self.for_controllers = False
        self._dispatcher = dispatcher
        self.limits = limits
        self._buffers = buffers
        self._loop = asyncio.get_running_loop()
        self.connections: dict[Connection, None] = {}
        self._counts = counts
        self._sock = _bind(host, port, limits)
        self.host, self.port = self._sock.getsockname()[:2]
        self._accepting = True
        self._timer: asyncio.TimerHandle | None = None
        self._idle_check_due = 0.0

    def start(self) -> None:
        self._loop.add_reader(self._sock, self._accept)
        self._look_again()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The network's errors of one connection arrive here too: nobody else is to suffer from them.
                self._pause_accepting(error)
                return
            self._accepting = True
            try:
                self._admit(sock, address[0], address[1])
            except OSError as error:
                complaints.warning("lost a connection from %s while it was set up: %s", address[0], error)
                sock.close()

    def _pause_accepting(self, error: OSError) -> None:
        if self._accepting:  # once, not once a second for as long as it lasts
            advice = ""
            if error.errno in OUT_OF_DESCRIPTORS:
                advice = "; raise the limit of open files (ulimit -n) or lower max.connections"
            logger.error("cannot accept connections on %s: %s%s", self.name, error.strerror or error, advice)
        self._accepting = False
        self._loop.remove_reader(self._sock)
        self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock, self._accept)

    def _admit(self, sock: socket.socket, host: str, port: int) -> None:
        limits = self.limits
        if self._counts.total >= limits.max_connections:
            complaints.warning(
                "refused a connection from %s: max.connections=%d are open", host, limits.max_connections
            )
            sock.close()
            return
        allowed = limits.per_ip_overrides.get(host, limits.max_connections_per_ip)
        if self._counts.per_ip[host] >= allowed:
            complaints.warning(
                "refused a connection from %s: max.connections.per.ip=%d are open", host, allowed
            )
            sock.close()
            return
        if not self._counts.has_descriptors():
            complaints.warning(
                "refused a connection from %s: with %d open, the descriptors that are left are kept for the log's files; "
                "raise the limit of open files (ulimit -n) or lower max.connections",
                host,
                self._counts.total,
            )
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        send_buffer = limits.send_buffer_bytes
        if sock.getsockname()[0] == host:
            loopback.send_at_once(sock)
            if send_buffer <= 0:
                send_buffer = LOCAL_SEND_BUFFER_BYTES
        if send_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        connection = Connection(
            sock,
            self._loop,
            self._dispatcher,
            self._buffers,
            max_frame_bytes=limits.max_frame_bytes,
            listener_name=self.name,
            peer=(host, port),
            on_close=self._closed,
        )
        connection.start()
        self.connections[connection] = None
        self._counts.opened(host)

    def _closed(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._counts.closed(connection.peer_host)

    # ---- looking over them

    def _look_again(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._look_again()
        now = self._loop.time()
        if now >= self._idle_check_due:
            self._idle_check_due = now + min(max(self.limits.max_idle_ms / 1000 / 4, LOOK_SECONDS), 30.0)
            self._close_idle(now - self.limits.max_idle_ms / 1000)
        held = sum([connection.held_bytes for connection in self.connections])
        if held > self.limits.max_held_bytes:
            self._close_holders(held)

    def _close_idle(self, deadline: float) -> None:
        for connection in [c for c in self.connections if c.last_active < deadline]:
            connection.close()

    def _close_holders(self, held: int) -> None:
        """Until what is held fits again: whoever has been stuck for longest goes first."""
        holders = [c for c in self.connections if c.held_bytes >= HELD_BYTES_NOTICED]
        for connection in sorted(holders, key=lambda holder: holder.last_active):
            if held <= self.limits.max_held_bytes:
                return
            held -= connection.held_bytes
            complaints.warning(
                "closing connection from %r: all connections hold more than connections.max.held.bytes=%d, this one %d "
                "in requests that it does not complete and answers that it does not take",
                connection,
                self.limits.max_held_bytes,
                connection.held_bytes,
            )
            connection.close()

    def stop_accepting(self) -> None:
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sock.fileno() >= 0:
            self.stop_accepting()
        for connection in list(self.connections):
            connection.close()


def _bind(host: str, port: int, limits: ConnectionLimits) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind((host, port))
        if limits.receive_buffer_bytes > 0:
            # On the listening socket: connections inherit it, and only so can it shape their TCP window.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
        sock.listen(limits.backlog)
    except BaseException:
        sock.close()
        raise
    return sock
