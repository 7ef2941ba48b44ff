"""Limits on connections: per broker, per address, by idleness, by descriptors and by what they hold. The others stay."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import time
from typing import Any

import pytest

from tidelog.broker import listener as listener_module
from tidelog.broker.descriptors import descriptors_left
from tidelog.broker.listener import ConnectionCounts, ConnectionLimits, Listener
from tidelog.broker.receive_buffers import ReceiveBuffers
from tidelog.testing import Cluster


def connect(cluster: Cluster, source: str = "127.0.0.1") -> socket.socket:
    port = int(cluster.bootstrap_servers.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(source, 0))


def is_closed(sock: socket.socket) -> bool:
    """True when the broker closed the connection; False when it leaves it open for a moment."""
    sock.settimeout(0.3)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_max_connections_turns_the_next_one_away(caplog: Any) -> None:
    with Cluster(config={"max.connections": 2}) as cluster:
        first, second, third = (connect(cluster) for _ in range(3))
        assert is_closed(third)
        assert not is_closed(first) and not is_closed(second)
        assert "max.connections=2" in caplog.text
        first.close()
        time.sleep(0.1)
        assert not is_closed(connect(cluster))


def test_max_connections_per_ip_knows_its_overrides() -> None:
    settings = {"max.connections.per.ip": 1, "max.connections.per.ip.overrides": "127.0.0.2:2"}
    with Cluster(config=settings) as cluster:
        kept = [connect(cluster)]
        assert is_closed(connect(cluster))
        kept += [connect(cluster, "127.0.0.2"), connect(cluster, "127.0.0.2")]
        assert is_closed(connect(cluster, "127.0.0.2"))
        assert not any(is_closed(sock) for sock in kept)


def test_idle_connections_are_closed() -> None:
    with Cluster(config={"connections.max.idle.ms": 300}) as cluster:
        sock = connect(cluster)
        began = time.monotonic()
        sock.settimeout(5)
        assert sock.recv(1) == b""
        assert 0.2 < time.monotonic() - began < 4


def test_a_drip_does_not_keep_a_connection_alive() -> None:
    """Slow-loris: bytes arrive all the time, a whole request never."""
    with Cluster(config={"connections.max.idle.ms": 400}) as cluster:
        sock = connect(cluster)
        began = time.monotonic()
        with pytest.raises(OSError):
            for _ in range(100):
                sock.send(b"\x00")
                time.sleep(0.05)
        assert time.monotonic() - began < 4


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        return theirs, server.accept()[0]


class Endpoint:
    """A listener without clients: whom it accepts is decided by `outcomes`."""

    def __init__(self, *outcomes: Any, counts: ConnectionCounts | None = None, **limits: Any) -> None:
        self.listener = Listener(
            "TEST",
            "127.0.0.1",
            0,
            Silent(),
            ConnectionLimits(**limits),
            ReceiveBuffers(),
            counts or ConnectionCounts(),
        )
        self.real = self.listener._sock
        self._outcomes = list(outcomes)
        self.accepted = 0
        self.listener._sock = self  # type: ignore[assignment]

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if not self._outcomes:
            raise BlockingIOError
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        self.accepted += 1
        return outcome, ("127.0.0.1", 5)

    def fileno(self) -> int:
        return self.real.fileno()

    def close(self) -> None:
        self.real.close()


class Silent:
    def handle(self, connection: Any, frame: memoryview, /) -> None:
        return None


async def test_without_descriptors_it_pauses_says_so_once_and_goes_on(caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(listener_module, "ACCEPT_PAUSE_SECONDS", 0.02)
    theirs, ours = tcp_pair()
    full = [OSError(errno.EMFILE, "Too many open files") for _ in range(5)]
    endpoint = Endpoint(*full, ours)
    endpoint.listener._accept()
    for _ in range(100):
        await asyncio.sleep(0.01)
        endpoint.listener._accept()
    assert endpoint.accepted == 1, "it accepts again when there are descriptors"
    assert caplog.text.count("cannot accept connections") == 1
    assert "ulimit -n" in caplog.text
    endpoint.listener.close()
    theirs.close()


@pytest.mark.parametrize("number", [errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EPERM])
async def test_an_error_of_the_network_is_no_error_of_the_listener(number: int, caplog: Any) -> None:
    endpoint = Endpoint(OSError(number, "of the network"))
    endpoint.listener._accept()
    assert "cannot accept connections on TEST: of the network" in caplog.text
    endpoint.listener.close()


async def test_a_connection_that_is_lost_while_it_is_set_up_is_let_go(caplog: Any) -> None:
    closed = socket.socket()
    closed.close()
    theirs, ours = tcp_pair()
    endpoint = Endpoint(closed, ours)
    endpoint.listener._accept()
    assert len(endpoint.listener.connections) == 1, "the next one is served"
    assert endpoint.listener._counts.total == 1
    assert "lost a connection" in caplog.text
    endpoint.listener.close()
    theirs.close()


async def test_connections_take_only_descriptors_that_the_log_can_spare(caplog: Any) -> None:
    pairs = [tcp_pair() for _ in range(4)]
    counts = ConnectionCounts(lambda connections: 2 - connections)
    endpoint = Endpoint(*(ours for _, ours in pairs), counts=counts)
    endpoint.listener._accept()
    assert len(endpoint.listener.connections) == 2
    assert "kept for the log's files" in caplog.text
    next(iter(endpoint.listener.connections)).close()
    assert counts.has_descriptors()
    endpoint.listener.close()
    for theirs, _ in pairs:
        theirs.close()


async def test_those_who_are_stuck_for_longest_go_when_too_much_is_held(caplog: Any) -> None:
    pairs = [tcp_pair() for _ in range(4)]
    endpoint = Endpoint(*(ours for _, ours in pairs), max_held_bytes=1_000_000)
    endpoint.listener._accept()
    connections = list(endpoint.listener.connections)
    for connection, held, last_active in zip(
        connections, (600_000, 500_000, 10_000, 300_000), (50.0, 20.0, 1.0, 40.0), strict=True
    ):
        connection._unsent_bytes = held
        connection.last_active = last_active
    endpoint.listener._idle_check_due = float("inf")
    endpoint.listener._look()
    assert [connection.closed for connection in connections] == [False, True, False, False]
    assert "connections.max.held.bytes=1000000" in caplog.text
    endpoint.listener._look()
    assert sum(connection.closed for connection in connections) == 1, "it is enough"
    endpoint.listener.close()
    for theirs, _ in pairs:
        theirs.close()


def test_a_tenth_of_the_descriptors_is_not_for_connections() -> None:
    class Files:
        open_files = 100

    left = descriptors_left(Files())
    assert left is not None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve = min(max(limit // 10, 64), 1024)
    assert left(0) == limit - reserve - 100
    assert left(50) == left(0) - 50
    assert descriptors_left(object()) is None


def congestion_control(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def granted(send_buffer: int) -> int:
    """What the kernel makes of it: as much again for itself, and no more than net.core.wmem_max."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


@pytest.mark.parametrize(
    ("host", "asked", "expected"),
    [
        ("127.0.0.1", -1, listener_module.LOCAL_SEND_BUFFER_BYTES),
        ("192.0.2.7", -1, None),
        ("127.0.0.1", 65536, 65536),
        ("192.0.2.7", 65536, 65536),
    ],
)
async def test_how_it_is_sent_to_clients_here_and_elsewhere(
    host: str, asked: int, expected: int | None
) -> None:
    theirs, ours = tcp_pair()
    algorithm = congestion_control(ours)
    untouched = ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    endpoint = Endpoint(send_buffer_bytes=asked)
    endpoint.listener._admit(ours, host, 5)
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == (
        untouched if expected is None else granted(expected)
    )
    assert congestion_control(ours) == (b"reno" if host == "127.0.0.1" else algorithm)
    for connection in list(endpoint.listener.connections):
        connection.close()
    endpoint.close()
    theirs.close()
