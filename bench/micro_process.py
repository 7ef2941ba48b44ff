"""CPU of a whole broker process per request, system calls included: the request loop, waiting fetches and shared syncs at work.

`python -m bench.micro process`. The broker runs as a user runs it and is asked over a socket; what it costs is read from the
kernel's account of the process, so that the client's own work and a busy machine do not count.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator

from bench.timing import Timing, scale, yardstick_seconds
from bench.topics import create_topic
from tools.peers.process import Peer
from tools.peers.raw import RawConnection, build_batch, fetch_request, produce_request
from tools.peers.tidelog import TidelogPeer

TOPIC = "micro"
LARGE_TOPIC = "micro-large"
SECONDS = 2.0
YARDSTICKS = 100
"""How often the speed of the machine is looked at meanwhile."""
DEPTHS = (1, 5, 50)
API_VERSIONS_FRAME = struct.pack(">ihhih", 10, 18, 0, 1, -1)

Ask = Callable[[], int]
"""Asks once, waits for the answers, and says how many requests that were."""


def timings() -> Iterator[Timing]:
    for durability in ("replicated", "fsync"):
        with TidelogPeer(durability=durability) as peer:
            create_topic(peer.bootstrap, TOPIC)
            with RawConnection(peer.bootstrap) as connection:
                for depth in DEPTHS:
                    yield _timed(
                        peer, f"produce, {durability}, depth {depth}", _produce(connection, depth=depth)
                    )
                if durability == "replicated":
                    yield from _others(peer, connection)


def _others(peer: Peer, connection: RawConnection) -> Iterator[Timing]:
    create_topic(peer.bootstrap, LARGE_TOPIC)
    batch = build_batch([b"x" * 10_000] * 99, timestamp_ms=int(time.time() * 1000))
    connection.produce(LARGE_TOPIC, batch)
    yield _timed(peer, "ApiVersions, depth 50", _repeated(connection, API_VERSIONS_FRAME, 50))
    end = connection.list_offset(TOPIC, -1)
    yield _timed(
        peer, "fetch that finds nothing, depth 50", _repeated(connection, fetch_request(TOPIC, end), 50)
    )
    yield _timed(
        peer, "fetch of one small batch", _repeated(connection, fetch_request(TOPIC, 0, max_bytes=1), 1)
    )
    yield _timed(peer, "fetch of 1 MB", _repeated(connection, fetch_request(LARGE_TOPIC, 0), 1))
    with RawConnection(peer.bootstrap) as waiting:
        yield _timed(peer, "waiting fetch and the produce that wakes it", _wake(connection, waiting))


def _timed(peer: Peer, operation: str, ask: Ask) -> Timing:
    ask()
    requests, began, cpu = 0, time.monotonic(), peer.cpu_seconds()
    yardsticks: list[float] = []
    while (elapsed := time.monotonic() - began) < SECONDS:
        requests += ask()
        if len(yardsticks) < YARDSTICKS * elapsed / SECONDS:
            yardsticks.append(yardstick_seconds())
    spent = (peer.cpu_seconds() - cpu) * scale(*yardsticks)
    return Timing(f"process: {operation}", spent / requests)


def _produce(connection: RawConnection, *, depth: int) -> Ask:
    batch = build_batch([b"x" * 100], timestamp_ms=int(time.time() * 1000))
    return _repeated(connection, produce_request(TOPIC, batch), depth)


def _repeated(connection: RawConnection, frame: bytes, depth: int) -> Ask:
    """The same request `depth` times in one write; every answer has the size of the first."""
    connection.send(frame)
    answer_size = 4 + len(connection.receive())
    frames = frame * depth

    def ask() -> int:
        connection.send(frames)
        connection.receive_exactly(answer_size * depth)
        return depth

    return ask


def _wake(producing: RawConnection, waiting: RawConnection) -> Ask:
    batch = build_batch([b"x" * 100], timestamp_ms=int(time.time() * 1000))
    end = producing.list_offset(TOPIC, -1)

    def ask() -> int:
        nonlocal end
        waiting.send(fetch_request(TOPIC, end, max_wait_ms=5000))
        time.sleep(0.0005)  # so that it waits before there is anything
        producing.produce(TOPIC, batch)
        waiting.receive()
        end += 1
        return 1

    return ask
