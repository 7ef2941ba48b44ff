"""Whose turn it is: requests that are answered alone, connections with more requests than a turn holds, and what counts as life."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from tidelog.broker import connection as module
from tidelog.broker.connection import Connection
from tidelog.broker.pending import Pending
from tidelog.broker.receive_buffers import ReceiveBuffers
from tidelog.wire.types import Part


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Handler:
    """Answers each frame with itself; `alone…` waits for `complete`, `slow…` takes ten milliseconds."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.held: list[Pending] = []
        self.cancelled = 0

    def handle(self, connection: Connection, view: memoryview, /) -> Sequence[Part] | Pending | None:
        body = bytes(view[:20])
        self.seen.append(body)
        if body.startswith(b"slow"):
            time.sleep(0.01)
        if body.startswith(b"alone"):
            pending = Pending(connection, alone=True)
            pending.on_cancel = self._cancelled
            self.held.append(pending)
            return pending
        return [frame(body)]

    def _cancelled(self) -> None:
        self.cancelled += 1


class Peer:
    def __init__(self, handler: Handler, buffers: ReceiveBuffers) -> None:
        self.loop = asyncio.get_running_loop()
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.sock.setblocking(False)
        self.closed = asyncio.Event()
        self.connection = Connection(
            ours, self.loop, handler, buffers, max_frame_bytes=1 << 20, listener_name="TEST", peer=("127.0.0.1", 1),
            on_close=lambda _: self.closed.set(),
        )  # fmt: skip
        self.connection.start()

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.sock, data)

    async def answers(self, count: int) -> list[bytes]:
        found = []
        for _ in range(count):
            (size,) = struct.unpack(">i", await self._exactly(4))
            found.append(await self._exactly(size))
        return found

    async def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = await asyncio.wait_for(self.loop.sock_recv(self.sock, count - len(data)), 5)
            assert more, "closed"
            data += more
        return data


@pytest.fixture
async def handler() -> Handler:
    return Handler()


@pytest.fixture
async def peers(handler: Handler) -> AsyncIterator[list[Peer]]:
    buffers = ReceiveBuffers()
    made = [Peer(handler, buffers) for _ in range(8)]
    yield made
    for peer in made:
        peer.connection.close()
        peer.sock.close()


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_nothing_behind_a_request_that_is_answered_alone_is_looked_at(
    handler: Handler, peers: list[Peer]
) -> None:
    peer = peers[0]
    await peer.send(frame(b"one") + frame(b"alone") + frame(b"two"))
    await some_turns()
    await peer.send(frame(b"three"))
    await some_turns()
    assert handler.seen == [b"one", b"alone"]
    handler.held[0].complete([frame(b"done")])
    assert await peer.answers(4) == [b"one", b"done", b"two", b"three"]


@pytest.mark.parametrize("size", [10, module.LARGE_FRAME_BYTES + 1, 300_000, 1_000_000])
async def test_a_request_of_any_size_may_come_behind_it(
    handler: Handler, peers: list[Peer], size: int
) -> None:
    peer = peers[0]
    sending = asyncio.create_task(peer.send(frame(b"alone") + frame(b"x" * size) + frame(b"last")))
    await some_turns()
    assert handler.seen == [b"alone"]
    handler.held[0].complete([frame(b"done")])
    assert await peer.answers(3) == [b"done", b"x" * min(size, 20), b"last"]
    await sending


async def test_what_comes_behind_it_is_received_only_so_far(handler: Handler, peers: list[Peer]) -> None:
    peer = peers[0]
    await peer.send(frame(b"alone"))
    await some_turns()
    sending = asyncio.create_task(peer.send(frame(b"y" * 100) * 20_000))
    await some_turns()
    assert peer.connection.held_bytes <= 2 * module.WAITING_BYTES_MAX
    assert not sending.done(), "two megabytes have gone somewhere"
    handler.held[0].complete([frame(b"done")])
    assert len(await peer.answers(20_001)) == 20_001
    await sending


async def test_a_client_that_goes_meanwhile_is_noticed(handler: Handler, peers: list[Peer]) -> None:
    peer = peers[0]
    await peer.send(frame(b"alone") + frame(b"behind"))
    await some_turns()
    peer.sock.close()
    await asyncio.wait_for(peer.closed.wait(), 5)
    assert handler.cancelled == 1
    assert handler.seen == [b"alone"]


async def test_a_turn_ends_although_more_requests_are_there(handler: Handler, peers: list[Peer]) -> None:
    """Otherwise a thousand pipelined requests of ten milliseconds each would be ten seconds without anybody else."""
    busy, other = peers[0], peers[1]
    await busy.send(frame(b"slow") * 100)
    await other.send(frame(b"quick"))
    assert await other.answers(1) == [b"quick"]
    assert len(handler.seen) < 20
    assert len(await busy.answers(100)) == 100


async def test_those_with_more_requests_share_a_turn(handler: Handler, peers: list[Peer]) -> None:
    *busy, other = peers
    for peer in busy:
        await peer.send(frame(b"slow") * 30)
    await some_turns()
    before = len(handler.seen)
    await other.send(frame(b"quick"))
    assert await other.answers(1) == [b"quick"]
    assert len(handler.seen) - before < 3 * len(busy), (
        "each gets one request per turn, not its whole share of time"
    )
    for peer in busy:
        assert len(await peer.answers(30)) == 30


async def test_parts_of_a_request_are_no_sign_of_life(peers: list[Peer]) -> None:
    peer = peers[0]
    peer.connection.last_active = 0.0
    await peer.send(frame(b"whole")[:6])
    await some_turns()
    assert peer.connection.last_active == 0.0
    await peer.send(frame(b"whole")[6:])
    await some_turns()
    assert peer.connection.last_active > 0.0


async def test_a_large_request_that_grows_is_one(peers: list[Peer]) -> None:
    """A slow line may need long for a request: the buffer doubles as it comes, and a drip does not make it double."""
    peer = peers[0]
    large = frame(b"z" * 200_000)
    await peer.send(large[:40_000])
    await some_turns()
    peer.connection.last_active = 0.0
    await peer.send(large[40_000:40_001])
    await some_turns()
    await peer.send(large[40_001:120_000])
    await some_turns()
    assert peer.connection.last_active > 0.0
    peer.connection.last_active = 0.0
    for at in range(120_000, 120_100):
        await peer.send(large[at : at + 1])
        await asyncio.sleep(0)
    await some_turns()
    assert peer.connection.last_active == 0.0


async def test_held_bytes_are_what_is_half_received_and_what_is_not_taken(
    handler: Handler, peers: list[Peer]
) -> None:
    peer = peers[0]
    assert peer.connection.held_bytes == 0
    await peer.send(frame(b"part")[:5])
    await some_turns()
    assert peer.connection.held_bytes == 5
    await peer.send(frame(b"part")[5:])
    await some_turns()
    assert peer.connection.held_bytes == 0
    peer.connection._unsent_bytes = 1000
    assert peer.connection.held_bytes == 1000
    peer.connection._unsent_bytes = 0


async def test_after_a_large_request_it_is_the_turn_of_small_ones(
    handler: Handler, peers: list[Peer]
) -> None:
    """A crowd sends an enormous request each: everybody else's are served between them."""
    *crowd, other = peers
    large = frame(b"slow" + bytes(2 * module.LARGE_FRAME_BYTES))
    for peer in crowd:
        assert peer.sock.send(large) == len(large)
    for number in range(6):
        await other.send(frame(b"quick"))
        assert await other.answers(1) == [b"quick"]
        assert sum(body.startswith(b"slow") for body in handler.seen) <= 2 + number
    for peer in crowd:
        assert len(await peer.answers(1)) == 1
    await crowd[0].send(large + frame(b"after"))
    assert (await crowd[0].answers(2))[1] == b"after"


async def test_large_requests_of_a_size_that_comes_in_parts_too(handler: Handler, peers: list[Peer]) -> None:
    large = frame(b"slow" + bytes(400_000))
    sending = [asyncio.create_task(peer.send(large + frame(b"after"))) for peer in peers]
    for peer in peers:
        assert [answer[:5] for answer in await peer.answers(2)] == [b"slow\x00", b"after"]
    await asyncio.gather(*sending)


async def test_large_produce_requests_do_not_wait_for_each_other(handler: Handler, peers: list[Peer]) -> None:
    produce = frame(bytes(2 * module.LARGE_FRAME_BYTES))
    for peer in peers:
        assert peer.sock.send(produce) == len(produce)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(handler.seen) == len(peers)


async def test_whoever_waits_for_its_turn_does_not_keep_the_loop_busy(
    handler: Handler, peers: list[Peer]
) -> None:
    first, second = peers[0], peers[1]
    large = frame(b"slow" + bytes(2 * module.LARGE_FRAME_BYTES))
    first.connection._buffers.large_after = time.monotonic() + 0.2
    sending = asyncio.create_task(second.send(large + frame(b"x" * 100) * 3000))
    await asyncio.sleep(0.1)
    assert not handler.seen
    assert not second.connection._reading, "readable all the time, and the loop would spin"
    assert len(await second.answers(3001)) == 3001
    assert second.connection._reading
    await sending
