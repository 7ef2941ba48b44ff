"""Limits on connections: per broker, per address, by idleness. The one over the limit is turned away, the others stay."""

from __future__ import annotations

import socket
import time
from typing import Any

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
