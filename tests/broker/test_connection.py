"""A connection over a real socket pair: order, pipelining, partial frames, back-pressure, files, and bad bytes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import pytest

from tidelog.broker import connection as module
from tidelog.broker.connection import Connection
from tidelog.broker.pending import Pending
from tidelog.broker.receive_buffers import RECEIVE_BYTES, ReceiveBuffers, new_buffer
from tidelog.storage.disk import DiskError, FileRange
from tidelog.storage.posix_disk import PosixDisk
from tidelog.wire.types import Part


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Echo:
    """Answers each frame with itself; `hold…` waits for `release`, `none…` gets no answer."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.held: dict[bytes, Pending] = {}
        self.ranges: list[FileRange] = []

    def handle(self, connection: Connection, view: memoryview, /) -> Sequence[Part] | Pending | None:
        body = bytes(view)
        self.seen.append(body)
        if body.startswith(b"hold"):
            pending = self.held[body] = Pending(connection)
            return pending
        if body.startswith(b"none"):
            return None
        if body.startswith(b"file"):
            range_ = self.ranges.pop(0)
            return [struct.pack(">i", len(range_)), range_]
        return [frame(body)]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """As the listener makes them: a pair of Unix sockets has no packets to count."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    for each in (ours, theirs):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


class Peer:
    def __init__(self, max_frame_bytes: int = 1 << 20) -> None:
        self.loop = asyncio.get_running_loop()
        ours, self.sock = tcp_pair()
        self.ours = ours
        ours.setblocking(False)
        self.sock.setblocking(False)
        self.echo = Echo()
        self.closed = asyncio.Event()
        self.connection = Connection(
            ours,
            self.loop,
            self.echo,
            ReceiveBuffers(),
            max_frame_bytes=max_frame_bytes,
            listener_name="TEST",
            peer=("127.0.0.1", 1),
            on_close=lambda _: self.closed.set(),
        )
        self.connection.start()

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.sock, data)

    async def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = await asyncio.wait_for(self.loop.sock_recv(self.sock, count - len(data)), 5)
            if not more:
                raise EOFError(data)
            data += more
        return data

    async def answer(self) -> bytes:
        (size,) = struct.unpack(">i", await self.read(4))
        return await self.read(size)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    yield peer
    peer.connection.close()
    peer.sock.close()


async def test_pipelined_requests_are_answered_in_order(peer: Peer) -> None:
    bodies = [b"%d" % number for number in range(500)]
    await peer.send(b"".join(map(frame, bodies)))
    assert [await peer.answer() for _ in bodies] == bodies


async def test_a_waiting_answer_holds_back_those_behind_it(peer: Peer) -> None:
    await peer.send(frame(b"one") + frame(b"hold") + frame(b"three"))
    assert await peer.answer() == b"one"
    while len(peer.echo.seen) < 3:
        await asyncio.sleep(0)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(peer.loop.sock_recv(peer.sock, 1), 0.02)
    peer.echo.held[b"hold"].complete([frame(b"two")])
    assert [await peer.answer(), await peer.answer()] == [b"two", b"three"]


async def test_frames_may_arrive_byte_by_byte(peer: Peer) -> None:
    for byte in frame(b"slow") + frame(b"loris"):
        await peer.send(bytes([byte]))
        await asyncio.sleep(0)
    assert [await peer.answer(), await peer.answer()] == [b"slow", b"loris"]


@pytest.mark.parametrize(
    "size", [1, module.LARGE_FRAME_BYTES, module.LARGE_FRAME_BYTES + 1, 700_000, 1 << 20]
)
async def test_frames_of_every_size_come_through(peer: Peer, size: int) -> None:
    bodies = [os.urandom(size), b"small", os.urandom(size)]
    sending = asyncio.ensure_future(peer.send(b"".join(map(frame, bodies))))
    assert [await peer.answer() for _ in bodies] == bodies
    await sending


async def test_large_frames_of_about_the_same_size_share_their_buffers(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer at full speed: once the buffers are there, no frame costs a new large one, however the bytes are cut."""
    made: list[int] = []

    def counted(size: int) -> memoryview:
        if size > module.LARGE_FRAME_BYTES:  # a frame of which little has arrived begins in a small one
            made.append(size)
        return new_buffer(size)

    monkeypatch.setattr(module, "new_buffer", counted)
    rng = Random(1)
    for number in range(60):
        if number == 20:
            made.clear()
        bodies = [rng.randbytes(900_000 + rng.randrange(100)) for _ in range(2)]
        data = b"".join(map(frame, bodies))
        sending = asyncio.ensure_future(peer.send(data))
        assert [await peer.answer() for _ in bodies] == bodies
        await sending
    assert len(made) <= 2, made


async def test_a_claim_takes_no_kept_buffer() -> None:
    """A few bytes of a large frame hold no megabyte, though one is there."""
    buffers = ReceiveBuffers()
    buffers.give(new_buffer(1 << 20))
    buffers.give(new_buffer(1 << 20))
    assert buffers.spare_for(1_000_000, 100) is None
    kept = buffers.spare_for(1_000_000, 40_000)
    assert kept is not None and len(kept) == 1 << 20


async def test_a_claimed_length_allocates_nothing(peer: Peer) -> None:
    await peer.send(struct.pack(">i", 1 << 20) + b"x" * 100)
    while peer.connection._frame is None:
        await asyncio.sleep(0)
    assert len(peer.connection._frame) <= module.LARGE_FRAME_BYTES


@pytest.mark.parametrize("length", [0, -1, -(2**31), (1 << 20) + 1, 2**31 - 1])
async def test_a_bad_length_ends_the_connection(
    peer: Peer, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.send(frame(b"fine") + struct.pack(">i", length))
    await asyncio.wait_for(peer.closed.wait(), 5)
    assert "socket.request.max.bytes" in caplog.text


@pytest.mark.parametrize(
    ("first_bytes", "explanation"),
    [(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "TLS handshake"), (b"GET / HTTP/1.1\r\n\r\n", "HTTP request")],
)
async def test_other_protocols_are_named_in_the_log(
    peer: Peer, first_bytes: bytes, explanation: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tidelog.broker"):
        await peer.send(first_bytes)
        await asyncio.wait_for(peer.closed.wait(), 5)
    assert explanation in caplog.text


async def test_a_reader_ahead_of_its_answers_is_not_read(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNANSWERED_MAX", 10)
    await peer.send(b"".join(frame(b"hold%03d" % number) for number in range(100)))
    await asyncio.sleep(0.05)
    assert len(peer.echo.seen) == 10
    for number in range(100):
        body = b"hold%03d" % number
        while body not in peer.echo.held:
            await asyncio.sleep(0)
        peer.echo.held[body].complete([frame(body)])
    assert [await peer.answer() for _ in range(100)] == [b"hold%03d" % number for number in range(100)]


async def test_a_reader_that_never_reads_costs_bounded_memory(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNSENT_BYTES_MAX", 200_000)
    request = frame(b"x" * 50_000)
    sending = asyncio.ensure_future(peer.send(request * 1000))  # more than both sockets hold
    await asyncio.sleep(0.1)
    assert not sending.done()
    assert peer.connection._unsent_bytes <= 200_000 + RECEIVE_BYTES + 50_004
    received = [await peer.answer() for _ in range(1000)]
    await sending
    assert received == [b"x" * 50_000] * 1000


async def test_file_ranges_are_sent_between_answers(peer: Peer, tmp_path: Path) -> None:
    content = os.urandom(9_000_000)
    (tmp_path / "data").write_bytes(content)
    file = PosixDisk().open(str(tmp_path / "data"))
    peer.echo.ranges = [FileRange(file, 0, len(content)), FileRange(file, 5, 10)]
    await peer.send(frame(b"one") + frame(b"file") + frame(b"file") + frame(b"four"))
    assert await peer.answer() == b"one"
    assert await peer.answer() == content
    assert await peer.answer() == content[5:15]
    assert await peer.answer() == b"four"


@pytest.mark.skipif(module.TCP_CORK is None, reason="this system cannot hold back a packet that is not full")
async def test_what_stands_behind_a_range_leaves_in_its_packet(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that ends a few bytes behind its records would wake the reader twice."""
    monkeypatch.setattr(module, "COPIED_BYTES_MAX", 10)
    (tmp_path / "data").write_bytes(b"x" * 100)
    file = PosixDisk().open(str(tmp_path / "data"))
    peer.echo.ranges = [FileRange(file, 0, 100), FileRange(file, 5, 10)]
    await peer.send(frame(b"hold") + frame(b"file") + frame(b"file") + frame(b"end"))
    while len(peer.echo.seen) < 4:
        await asyncio.sleep(0)
    peer.echo.held[b"hold"].complete([frame(b"begin")])
    assert await peer.read(4 + 5 + 4 + 100 + 4 + 10 + 4 + 3)
    assert segments_received(peer.sock) == 1


async def test_small_ranges_are_copied_and_the_file_is_let_go(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One send is cheaper than a sendfile and what it needs around it."""

    def sendfile(*_arguments: object) -> int:
        raise AssertionError("a small range needs no sendfile")

    monkeypatch.setattr(module.os, "sendfile", sendfile)
    content = os.urandom(module.COPIED_BYTES_MAX)
    (tmp_path / "data").write_bytes(content)
    file = PosixDisk().open(str(tmp_path / "data"))
    peer.echo.ranges = [FileRange(file, 0, len(content)), FileRange(file, 3, 7)]
    await peer.send(frame(b"file") + frame(b"file") + frame(b"end"))
    assert await peer.answer() == content
    assert await peer.answer() == content[3:10]
    assert await peer.answer() == b"end"
    assert file._pins == 0


async def test_a_range_that_cannot_be_copied_is_left_to_sendfile(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_bytes(b"x" * 100)
    file = PosixDisk().open(str(tmp_path / "data"))

    def fail(_range: FileRange) -> bytes:
        raise DiskError("read", file.path, OSError(5, "Input/output error"))

    monkeypatch.setattr(FileRange, "read", fail)
    peer.echo.ranges = [FileRange(file, 0, 100)]
    await peer.send(frame(b"file"))
    assert await peer.answer() == b"x" * 100


@pytest.mark.skipif(module.TCP_CORK is None, reason="this system cannot hold back a packet that is not full")
async def test_a_full_buffer_does_not_cut_an_answer_into_small_packets(peer: Peer, tmp_path: Path) -> None:
    """Each time the reader makes room the rest goes on, and only its end may be a packet that is not full."""
    size = 2_000_000
    (tmp_path / "data").write_bytes(b"x" * size)
    file = PosixDisk().open(str(tmp_path / "data"))
    peer.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    peer.echo.ranges = [FileRange(file, 0, size)]
    corks: list[bool] = []
    await peer.send(frame(b"hold") + frame(b"file") + frame(b"end"))
    while len(peer.echo.seen) < 3:
        await asyncio.sleep(0)
    peer.echo.held[b"hold"].complete([frame(b"begin")])
    left = 4 + 5 + 4 + size + 4 + 3
    while left:
        left -= len(await peer.read(min(left, 50_000)))
        corks.append(is_corked(peer.ours))
    assert corks[0] and corks.index(False) > len(corks) // 2, "it went back on what it held in the middle"
    assert not is_corked(peer.ours), "what follows would wait for more"


def is_corked(sock: socket.socket) -> bool:
    assert module.TCP_CORK is not None
    return bool(sock.getsockopt(socket.IPPROTO_TCP, module.TCP_CORK))


def segments_received(sock: socket.socket) -> int:
    """Packets with data so far: tcpi_data_segs_in of Linux."""
    (count,) = struct.unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160), 152)
    return int(count)


class CountedRange(FileRange):
    released = 0

    def release(self) -> None:
        self.released += 1
        super().release()


async def test_closing_releases_files_and_tells_those_who_work(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 100)
    range_ = CountedRange(PosixDisk().open(str(tmp_path / "data")), 0, 100)
    cancelled: list[bool] = []
    peer.echo.ranges = [range_]
    await peer.send(frame(b"hold") + frame(b"file"))
    while len(peer.echo.seen) < 2:
        await asyncio.sleep(0)
    peer.echo.held[b"hold"].on_cancel = lambda: cancelled.append(True)
    peer.connection.close()
    assert cancelled == [True]
    assert range_.released == 1


async def test_an_answer_after_the_end_goes_nowhere(peer: Peer) -> None:
    await peer.send(frame(b"hold"))
    while not peer.echo.held:
        await asyncio.sleep(0)
    peer.connection.close()
    peer.echo.held[b"hold"].complete([frame(b"late")])


async def test_no_answer_leaves_no_hole(peer: Peer) -> None:
    await peer.send(frame(b"none") + frame(b"next"))
    assert await peer.answer() == b"next"
