"""What this machine could do without any broker: the same bytes from one process to another, into a file and out of one.

The receiver of `socket_into_file` does the least that a log must do with what it is sent: receive, write. With `sync` a thread
calls fdatasync without pause, as a group commit under load does, and the last byte counts when it is synced.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

from bench.children import Child
from bench.raw_load import Rate

CHUNK_BYTES = 1_000_000
SECONDS_MAX = 120.0


def socket_into_file(path: Path, size: int, *, sync: bool) -> Rate:
    """Bytes per second from a sending process through loopback into a file."""
    with socket.create_server(("127.0.0.1", 0)) as server, Child(_send_bytes, server.getsockname()[1], size):
        connection, _ = server.accept()
        try:
            with connection, path.open("wb", buffering=0) as file:
                return _receive_into(connection, file.fileno(), size, sync=sync)
        finally:
            path.unlink()


def file_into_socket(path: Path, size: int) -> Rate:
    """Bytes per second from a file in the page cache through loopback, with sendfile, to a process that discards them."""
    chunk = bytes(CHUNK_BYTES)
    with path.open("wb", buffering=0) as file:
        for _ in range(size // CHUNK_BYTES):
            file.write(chunk)
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            Child(_send_file, server.getsockname()[1], str(path)),
        ):
            connection, _ = server.accept()
            with connection:
                return _discard(connection)
    finally:
        path.unlink()


def _receive_into(connection: socket.socket, descriptor: int, size: int, *, sync: bool) -> Rate:
    view = memoryview(bytearray(CHUNK_BYTES))
    received = 0
    began = time.perf_counter()
    with _Syncing(descriptor, on=sync):
        while received < size:
            count = connection.recv_into(view)
            if count == 0:
                raise ConnectionError("the sender ended early")
            os.write(descriptor, view[:count])
            received += count
    return Rate(received, time.perf_counter() - began)


class _Syncing:
    """fdatasync again and again in a thread; leaving waits for one that began after the last write."""

    def __init__(self, descriptor: int, *, on: bool) -> None:
        self._descriptor = descriptor
        self._on = on
        self._ending = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        if self._on:
            self._thread.start()

    def __exit__(self, *_exc: object) -> None:
        self._ending = True
        if self._on:
            self._thread.join(SECONDS_MAX)

    def _run(self) -> None:
        last = False
        while not last:
            last = self._ending
            os.fdatasync(self._descriptor)


def _discard(connection: socket.socket) -> Rate:
    view = memoryview(bytearray(CHUNK_BYTES))
    received = 0
    began = time.perf_counter()
    while count := connection.recv_into(view, CHUNK_BYTES, socket.MSG_TRUNC):
        received += count
    return Rate(received, time.perf_counter() - began)


def _send_bytes(port: int, size: int) -> None:
    chunk = os.urandom(CHUNK_BYTES)
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX) as connection:
        for _ in range(0, size, CHUNK_BYTES):
            connection.sendall(chunk)


def _send_file(port: int, path: str) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection, open(path, "rb") as file:
        connection.setblocking(True)
        position, size = 0, os.path.getsize(path)
        while position < size:
            position += os.sendfile(connection.fileno(), file.fileno(), position, CHUNK_BYTES)
