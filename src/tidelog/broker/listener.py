"""The listening sockets: accept, count, turn away, and close what is idle.

Limits are Kafka's: `max.connections` per broker, `max.connections.per.ip` with overrides, `connections.max.idle.ms`.
A connection over a limit is closed at once, and the log says which limit it met.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.broker.connection import Connection, Dispatcher, SharedBuffer
from tidelog.broker.limited_log import LimitedLog

logger = logging.getLogger("tidelog.broker")
complaints = LimitedLog(logger)

ACCEPTS_PER_TURN = 64
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    max_frame_bytes: int = 100 * 1024 * 1024
    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    max_idle_ms: int = 600_000
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    backlog: int = 50


class ConnectionCounts:
    """Open connections of all listeners together: the limits are the broker's, not one listener's."""

    __slots__ = ("per_ip", "total")

    def __init__(self) -> None:
        self.total = 0
        self.per_ip: Counter[str] = Counter()

    def opened(self, host: str) -> None:
        self.total += 1
        self.per_ip[host] += 1

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
        shared: SharedBuffer,
        counts: ConnectionCounts,
    ) -> None:
        self.name = name
        self._dispatcher = dispatcher
        self.limits = limits
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self.connections: dict[Connection, None] = {}
        self._counts = counts
        self._sock = _bind(host, port, limits)
        self.host, self.port = self._sock.getsockname()[:2]
        self._idle_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop.add_reader(self._sock, self._accept)
        self._schedule_idle_check()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:
                    raise
                logger.error(
                    "cannot accept connections on %s: %s; raise the limit of open files (ulimit -n) or lower max.connections",
                    self.name,
                    error.strerror,
                )
                self._pause_accepting()
                return
            self._admit(sock, address[0], address[1])

    def _pause_accepting(self) -> None:
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
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if limits.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        connection = Connection(
            sock,
            self._loop,
            self._dispatcher,
            self._shared,
            max_frame_bytes=limits.max_frame_bytes,
            listener_name=self.name,
            peer=(host, port),
            on_close=self._closed,
        )
        self.connections[connection] = None
        self._counts.opened(host)
        connection.start()

    def _closed(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._counts.closed(connection.peer_host)

    # ---- idle connections

    def _schedule_idle_check(self) -> None:
        interval = min(max(self.limits.max_idle_ms / 1000 / 4, 0.1), 30.0)
        self._idle_timer = self._loop.call_later(interval, self._close_idle)

    def _close_idle(self) -> None:
        deadline = self._loop.time() - self.limits.max_idle_ms / 1000
        for connection in [c for c in self.connections if c.last_active < deadline]:
            connection.close()
        self._schedule_idle_check()

    def stop_accepting(self) -> None:
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
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
