"""One client connection: bytes in, answers out, in the order of the requests.

A connection owns its non-blocking socket. On each readable turn it parses as many frames as arrived, hands each to the
dispatcher without creating a task, and sends all answers of the turn together. A request that has to wait (a produce for
its replicas, a parked fetch, an admin request) keeps its place in the answer queue; requests behind it are handled
meanwhile, and their answers wait for it.

Record data leaves through `os.sendfile` and never enters Python. Every buffer is bounded (D9, I51): a frame by
`socket.request.max.bytes`, unanswered requests and unsent bytes by the limits below; beyond them the socket is not read
until the client has taken its answers.

Request bytes handed to the dispatcher are valid only during that call: they live in a buffer that all connections share.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Protocol

from tidelog.broker.limited_log import LimitedLog
from tidelog.errors import ProtocolError
from tidelog.storage.disk import FileRange
from tidelog.wire.types import Part

logger = logging.getLogger("tidelog.broker")
complaints = LimitedLog(logger)

RECEIVE_BYTES = 256 * 1024
"""The buffer that all connections of a loop receive into."""
LARGE_FRAME_BYTES = 32 * 1024
"""An incomplete frame above this size gets a buffer of its own and is received straight into it."""
KEEP_FRAME_BYTES = 2 * 1024 * 1024
"""A frame buffer up to this size is kept for the next large frame of the same connection."""
UNANSWERED_MAX = 1024
"""Requests of one connection that may wait for their answer before it is no longer read."""
UNSENT_BYTES_MAX = 4 * 1024 * 1024
"""Answer bytes in memory (file ranges cost none) that may wait for a slow reader before it is no longer read."""
SENDFILE_BYTES_PER_TURN = 4 * 1024 * 1024
"""One connection's share of a loop turn while it drains large fetches."""
JOIN_BYTES = 256 * 1024
"""Answers are joined up to this size into one send."""
MSG_MORE = getattr(socket, "MSG_MORE", 0)

_LENGTH = Struct(">i")


class Dispatcher(Protocol):
    def handle(self, connection: Connection, frame: memoryview, /) -> Sequence[Part] | Pending | None:
        """Answer one request: the whole response frame as parts, a Pending that is completed later, or None for no answer.

        Raises ProtocolError when the connection must be closed.
        """
        ...


class Pending:
    """An answer that is not there yet and keeps its place in the queue."""

    __slots__ = ("connection", "done", "on_cancel", "parts")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.done = False
        self.parts: Sequence[Part] = ()
        self.on_cancel: Callable[[], None] | None = None
        """Called when the connection goes away first: whoever works on the answer may stop."""

    def complete(self, parts: Sequence[Part]) -> None:
        """Deliver the answer (no parts: this request gets none). The files of an answer nobody waits for are released."""
        assert not self.done, "a request is answered once"
        self.done = True
        self.on_cancel = None
        if self.connection.closed:
            release(parts)
        else:
            self.parts = parts
            self.connection.answer_ready()


def release(parts: Sequence[Part]) -> None:
    for part in parts:
        if isinstance(part, FileRange):
            part.release()


class SharedBuffer:
    """The receive buffer of one event loop. Only the connection whose turn it is touches it."""

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = memoryview(bytearray(RECEIVE_BYTES))


class Connection:
    __slots__ = (
        "_answers", "_dispatcher", "_filled", "_flush_scheduled", "_frame", "_frame_size", "_handling", "_leftover", "_loop",
        "_max_frame_bytes", "_on_close", "_out", "_reading", "_resume_scheduled", "_shared", "_sock", "_unsent_bytes", "_writing",
        "client_software", "closed", "last_active", "listener_name", "peer_host", "peer_port",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        shared: SharedBuffer,
        *,
        max_frame_bytes: int,
        listener_name: str,
        peer: tuple[str, int],
        on_close: Callable[[Connection], None],
    ) -> None:
        self._sock = sock
        self._loop = loop
        self._dispatcher = dispatcher
        self._shared = shared
        self._max_frame_bytes = max_frame_bytes
        self._on_close = on_close
        self._answers: deque[Sequence[Part] | Pending] = deque()
        self._out: deque[Part] = deque()
        self._unsent_bytes = 0
        self._leftover = b""  # bytes from a frame boundary on that a later turn handles
        self._frame: bytearray | None = None  # the large frame that is being received
        self._frame_size = 0
        self._filled = 0
        self._reading = False
        self._writing = False
        self._handling = False
        self._flush_scheduled = False
        self._resume_scheduled = False
        self.closed = False
        self.last_active = loop.time()
        self.listener_name = listener_name
        self.peer_host, self.peer_port = peer
        self.client_software: tuple[str, str] | None = None

    def __repr__(self) -> str:
        return f"{self.peer_host}:{self.peer_port}"

    def start(self) -> None:
        self._loop.add_reader(self._sock, self._on_readable)
        self._reading = True

    # ---- input

    def _on_readable(self) -> None:
        if self._resume_scheduled:
            return  # frames received earlier come first; the selector will call again
        self.last_active = self._loop.time()
        try:
            if self._frame_size:
                self._receive_frame()
            else:
                self._receive_shared()
        except (BlockingIOError, InterruptedError):
            pass
        except ConnectionError:
            self.close()
        except ProtocolError as error:
            self._refuse(error)

    def _receive_shared(self) -> None:
        view, kept = self._shared.view, len(self._leftover)
        if kept:
            view[:kept] = self._leftover
        count = self._sock.recv_into(view[kept:])
        if count == 0:
            self.close()
            return
        self._leftover = b""
        self._handle_bytes(view[: kept + count])

    def _receive_frame(self) -> None:
        frame = self._frame
        assert frame is not None
        if self._filled == len(frame):
            # A claimed length alone costs nothing: the buffer doubles as bytes really arrive.
            frame += bytes(min(self._frame_size - len(frame), len(frame)))
        with memoryview(frame) as view:
            count = self._sock.recv_into(view[self._filled : self._frame_size])
            if count == 0:
                self.close()
                return
            self._filled += count
            if self._filled < self._frame_size:
                return
            size, self._frame_size = self._frame_size, 0
            self._handling = True
            try:
                self._handle_frame(view[:size])
            finally:
                self._handling = False
        if len(frame) > KEEP_FRAME_BYTES:
            self._frame = None
        self._end_turn()

    def _handle_bytes(self, data: memoryview) -> None:
        """Handle the whole frames in `data`, which starts at a frame boundary; keep the rest for a later turn."""
        position, end = 0, len(data)
        self._handling = True
        try:
            while end - position >= 4 and not self._is_behind():
                (size,) = _LENGTH.unpack_from(data, position)
                if not 0 < size <= self._max_frame_bytes:
                    raise ProtocolError(self._explain_length(size, bytes(data[position : position + 8])))
                frame_end = position + 4 + size
                if frame_end > end:
                    if size > LARGE_FRAME_BYTES:
                        self._begin_frame(size, data[position + 4 :])
                        position = end
                    break
                self._handle_frame(data[position + 4 : frame_end])
                position = frame_end
                if self.closed:
                    return
        finally:
            self._handling = False
        if position < end:
            self._leftover = bytes(data[position:])
        self._end_turn()

    def _begin_frame(self, size: int, start: memoryview) -> None:
        capacity = min(size, max(len(start), LARGE_FRAME_BYTES))
        if self._frame is None or len(self._frame) < capacity:
            self._frame = bytearray(capacity)
        self._frame[: len(start)] = start
        self._frame_size = size
        self._filled = len(start)

    def _explain_length(self, size: int, head: bytes) -> str:
        if head[:2] == b"\x16\x03":
            return (
                f"the peer began a TLS handshake, but listener {self.listener_name} speaks plaintext; "
                "set security.protocol=PLAINTEXT in the client"
            )
        if head[:4] in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"CONN", b"PATC"):
            return f"the peer sent an HTTP request, but listener {self.listener_name} speaks Kafka's protocol"
        return (
            f"the peer announced a request of {size} bytes; allowed are 1 to {self._max_frame_bytes} "
            "(socket.request.max.bytes), so it may not speak Kafka's protocol at all"
        )

    def _handle_frame(self, frame: memoryview) -> None:
        answer = self._dispatcher.handle(self, frame)
        if answer is not None:
            self._answers.append(answer)

    def _is_behind(self) -> bool:
        return len(self._answers) >= UNANSWERED_MAX or self._unsent_bytes >= UNSENT_BYTES_MAX

    # ---- output

    def answer_ready(self) -> None:
        """A pending answer is complete. Those completed in one turn of the loop leave together."""
        if not self._handling and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self.closed:
            self._end_turn()

    def _end_turn(self) -> None:
        """Move the answers whose turn has come to the socket, and go on reading if the client keeps up."""
        answers, out = self._answers, self._out
        while answers:
            answer = answers[0]
            if isinstance(answer, Pending):
                if not answer.done:
                    break
                parts = answer.parts
            else:
                parts = answer
            answers.popleft()
            for part in parts:
                out.append(part)
                if not isinstance(part, FileRange):
                    self._unsent_bytes += len(part)
        if out and not self._writing:
            self._write()
        if not self.closed:
            self._read_on()

    def _read_on(self) -> None:
        if self._is_behind():
            if self._reading:
                self._reading = False
                self._loop.remove_reader(self._sock)
            return
        if self._has_whole_frame() and not self._resume_scheduled:
            self._resume_scheduled = True
            self._loop.call_soon(self._resume)
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self._sock, self._on_readable)

    def _has_whole_frame(self) -> bool:
        leftover = self._leftover
        return len(leftover) >= 4 and len(leftover) - 4 >= _LENGTH.unpack_from(leftover)[0]

    def _resume(self) -> None:
        """Handle frames that were received but left alone while the client was ahead of its answers."""
        self._resume_scheduled = False
        if self.closed or self._frame_size or not self._leftover:
            return
        data, self._leftover = self._leftover, b""
        try:
            self._handle_bytes(memoryview(data))
        except ProtocolError as error:
            self._refuse(error)

    def _write(self) -> None:
        try:
            drained = self._write_some()
        except (BlockingIOError, InterruptedError):
            drained = False
        except OSError as error:
            if not isinstance(error, ConnectionError):
                logger.warning("closing connection from %r: sending failed: %s", self, error)
            self.close()
            return
        if self.closed:
            return
        if drained and self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock)
        elif not drained and not self._writing:
            self._writing = True
            self._loop.add_writer(self._sock, self._on_writable)

    def _on_writable(self) -> None:
        self.last_active = self._loop.time()
        self._write()
        if not self.closed:
            self._read_on()

    def _write_some(self) -> bool:
        """Send until the socket is full (False) or nothing is left (True)."""
        out, budget = self._out, SENDFILE_BYTES_PER_TURN
        while out:
            if budget <= 0:
                return False
            if isinstance(out[0], FileRange):
                budget -= self._send_range(out[0])
            else:
                budget -= self._send_bytes()
        return True

    def _send_bytes(self) -> int:
        out = self._out
        batch: list[bytes | bytearray | memoryview] = []
        size = 0
        while out and size < JOIN_BYTES and isinstance(part := out[0], (bytes, bytearray, memoryview)):
            batch.append(part)
            out.popleft()
            size += len(part)
        data = batch[0] if len(batch) == 1 else b"".join(batch)
        try:
            sent = self._sock.send(data, MSG_MORE if out else 0)
        except (BlockingIOError, InterruptedError):
            out.appendleft(data)
            raise
        self._unsent_bytes -= sent
        if sent < size:
            out.appendleft(memoryview(data)[sent:])
        return sent

    def _send_range(self, range_: FileRange) -> int:
        if range_.descriptor < 0:
            self._out.popleft()
            data = range_.read()
            range_.release()
            self._unsent_bytes += len(data)
            self._out.appendleft(data)
            return 0
        count = min(range_.count, SENDFILE_BYTES_PER_TURN)
        sent = os.sendfile(self._sock.fileno(), range_.descriptor, range_.position, count)
        if sent == 0:
            # The frame's length is already on the wire, so it cannot be ended properly.
            logger.error(
                "closing connection from %r: %s ended before the fetched range did", self, range_.file.path
            )
            self.close()
            return 0
        range_.position += sent
        range_.count -= sent
        if range_.count == 0:
            self._out.popleft()
            range_.release()
        return sent

    # ---- end

    def _refuse(self, error: ProtocolError) -> None:
        complaints.warning("closing connection from %r: %s", self, error)
        self._end_turn()  # the requests before the bad one have their answers
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for answer in self._answers:
            if not isinstance(answer, Pending):
                release(answer)
            elif answer.done:
                release(answer.parts)
            elif answer.on_cancel is not None:
                answer.on_cancel()
        self._answers.clear()
        release(tuple(self._out))
        self._out.clear()
        self._frame = None
        self._leftover = b""
        self._on_close(self)
