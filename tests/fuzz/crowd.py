"""Very many connections from one thread: opened, asked, counted, and closed again."""

from __future__ import annotations

import resource
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Sequence

PING = struct.pack(">ihhih", 10, 18, 0, 1, -1)
PATIENCE_SECONDS = 30.0


def descriptors_for_a_crowd(wanted: int, *, reserve: int = 1500) -> int:
    """How many sockets this process, and a broker with the same limit, may open: `wanted`, or what the limit leaves."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, hard - reserve)


class Crowd:
    def __init__(self, port: int) -> None:
        self._port = port
        self.socks: list[socket.socket] = []

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def grow(self, count: int) -> None:
        for _ in range(count):
            self.socks.append(socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_SECONDS))

    def answered(self, socks: Sequence[socket.socket] | None = None) -> int:
        """How many of them get an answer to ApiVersions."""
        asked = list(self.socks if socks is None else socks)
        waiting = selectors.DefaultSelector()
        for sock in asked:
            try:
                sock.sendall(PING)
            except OSError:
                continue  # turned away
            sock.setblocking(False)
            waiting.register(sock, selectors.EVENT_READ, bytearray())
        done, deadline = 0, time.monotonic() + PATIENCE_SECONDS
        while waiting.get_map() and time.monotonic() < deadline:
            for key, _ in waiting.select(1.0):
                ready, data = key.fileobj, key.data
                assert isinstance(ready, socket.socket)
                try:
                    more = ready.recv(4096)
                except OSError:
                    more = b""
                data += more
                whole = len(data) >= 4 and len(data) >= 4 + struct.unpack_from(">i", data)[0]
                if whole or not more:
                    done += whole
                    waiting.unregister(ready)
                    ready.settimeout(PATIENCE_SECONDS)
        waiting.close()
        return done

    def open_ones(self) -> list[socket.socket]:
        """Those that the broker has not closed."""
        return [sock for sock in self.socks if is_open(sock)]

    def reset(self, socks: Iterable[socket.socket]) -> None:
        """Go without a goodbye."""
        gone = set(socks)
        for sock in gone:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        self.socks = [sock for sock in self.socks if sock not in gone]

    def close(self) -> None:
        for sock in self.socks:
            sock.close()
        self.socks.clear()


def is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        sock.settimeout(PATIENCE_SECONDS)
