"""One client connection: bytes in, answers out, in the order of the requests.

A connection owns its non-blocking socket. On each readable turn it parses as many frames as arrived, hands each to the
dispatcher without creating a task, and sends all answers of the turn together. A request that has to wait (a produce for
its replicas, a parked fetch, an admin request) keeps its place in the answer queue; requests behind it are handled
meanwhile, and their answers wait for it.

Record data leaves through `os.sendfile` and never enters Python, but for ranges so small that copying them is cheaper. Every buffer is bounded (D9, I51): a frame by
`socket.request.max.bytes`, unanswered requests and unsent bytes by the limits below; beyond them the socket is not read
until the client has taken its answers.

Request bytes handed to the dispatcher are valid only during that call: they live in a buffer that others use next.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from struct import Struct
from time import monotonic
from typing import Protocol

from tidelog.broker.limited_log import LimitedLog
from tidelog.broker.pending import Answer, Pending, release
from tidelog.broker.receive_buffers import ReceiveBuffers, new_buffer
from tidelog.errors import ProtocolError
from tidelog.storage.disk import DiskError, FileRange
from tidelog.wire.types import Part

logger = logging.getLogger("tidelog.broker")
complaints = LimitedLog(logger)

LARGE_FRAME_BYTES = 32 * 1024
"""An incomplete frame above this size gets a buffer of its own and is received straight into it."""
UNANSWERED_MAX = 1024
"""Requests of one connection that may wait for their answer before it is no longer read."""
UNSENT_BYTES_MAX = 1024 * 1024
"""Answer bytes in memory (file ranges cost none) that may wait for a slow reader before it is no longer read."""
WAITING_BYTES_MAX = 64 * 1024
"""Received behind a request that is answered alone, before the connection is no longer read."""
TURN_SECONDS = 0.02
"""A loop turn's time for connections with more requests than one, which they share: thousands may be pipelined."""
SENDFILE_BYTES_PER_TURN = 4 * 1024 * 1024
"""One connection's share of a loop turn while it drains large fetches."""
COPIED_BYTES_MAX = 64 * 1024
"""A file range up to this size is read and leaves with the bytes around it: one send costs less than a cork, two sends and a sendfile."""
JOIN_BYTES = 256 * 1024
"""Answers are joined up to this size into one send."""
MSG_MORE = getattr(socket, "MSG_MORE", 0)
TCP_CORK: int | None = getattr(socket, "TCP_CORK", None)
"""Linux; elsewhere answers leave in more packets."""

_LENGTH = Struct(">i").unpack_from


class Dispatcher(Protocol):
    def handle(self, connection: Connection, frame: memoryview, /) -> Answer | Pending | None:
        """Answer one request: the whole response frame, a Pending that is completed later, or None for no answer.

        Raises ProtocolError when the connection must be closed.
        """
        ...

    def disk_failed(self, error: DiskError, /) -> None:
        """What a fetch promised cannot be read."""
        ...


def _is_large(data: memoryview, position: int, size: int) -> bool:
    """The frame at `position` is large, and no Produce (API key 0)."""
    return size > LARGE_FRAME_BYTES and (data[position + 4] | data[position + 5]) != 0


class Connection:
    __slots__ = (
        "_alone", "_answers", "_began", "_buffers", "_corked", "_dispatcher", "_filled", "_flush_scheduled", "_frame", "_frame_end", "_handling", "_leftover",
        "_loop", "_max_frame_bytes", "_on_close", "_out", "_ranges", "_reading", "_resume_scheduled", "_sock", "_unsent_bytes",
        "_writing",
        "client_software", "closed", "last_active", "listener_name", "peer_host", "peer_port", "when_closed",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        buffers: ReceiveBuffers,
        *,
        max_frame_bytes: int,
        listener_name: str,
        peer: tuple[str, int],
        on_close: Callable[[Connection], None],
    ) -> None:
        self._sock = sock
        self._loop = loop
        self._dispatcher = dispatcher
        self._buffers = buffers
        self._max_frame_bytes = max_frame_bytes
        self._on_close = on_close
        self._answers: deque[Answer | Pending] = deque()  # not empty only while its first one is waited for
        self._alone: Pending | None = None  # what must be answered before anything else is looked at
        self._out: deque[Part] = deque()
        self._ranges = 0  # how many of `_out` are file ranges
        self._unsent_bytes = 0
        self._leftover = b""  # bytes from a frame boundary on that a later turn handles
        self._frame: memoryview | None = (
            None  # holds the large frame that is being received, its length included
        )
        self._frame_end = 0
        self._filled = 0
        self._reading = False
        self._writing = False
        self._corked = False  # the kernel holds back a packet that is not full
        self._handling = False
        self._flush_scheduled = False
        self._resume_scheduled = False
        self.closed = False
        self.when_closed: Callable[[], None] | None = None
        """For whoever takes the end of the connection as a sign."""
        self._began = self.last_active = loop.time()  # of this turn; of the last whole request or sent bytes
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
        self._began = self._loop.time()
        try:
            if self._frame is not None:
                self._receive_frame(self._frame)
            elif self._alone is None:
                self._receive()
            else:
                self._receive_ahead()
        except (BlockingIOError, InterruptedError):
            pass
        except ConnectionError:
            self.close()
        except ProtocolError as error:
            self._refuse(error)

    def _receive(self) -> None:
        view, kept = self._buffers.current, len(self._leftover)
        if kept:
            view[:kept] = self._leftover
            count = self._sock.recv_into(view[kept:])
        else:
            count = self._sock.recv_into(view)
        if count == 0:
            self.close()
            return
        self._leftover = b""
        self._handle_bytes(view[: kept + count])

    def _receive_ahead(self) -> None:
        """Behind a request that is answered alone: kept as it comes, and to notice when the client is gone."""
        data = self._sock.recv(WAITING_BYTES_MAX)
        if data:
            self._leftover += data
            self._announce_request()
            self._read_on()
        else:
            self.close()

    def _receive_frame(self, frame: memoryview) -> None:
        filled, end = self._filled, self._frame_end
        if filled == len(frame):
            # A claimed length alone costs nothing: the buffer doubles as bytes really arrive.
            grown = self._buffers.spare_for(end, filled) or new_buffer(min(end, 2 * filled))
            grown[:filled] = frame
            self._buffers.give(frame)
            self._frame = frame = grown
            self.last_active = self._began
        count = self._sock.recv_into(frame[filled:end])
        if count == 0:
            self.close()
            return
        self._filled = filled = filled + count
        if filled == end:
            self._finish_frame(frame, end)

    def _finish_frame(self, frame: memoryview, end: int) -> None:
        is_large, began = _is_large(frame, 0, end), monotonic()
        if is_large and began < self._buffers.large_after:
            self._resume_after(self._buffers.large_after - began)
            return
        self._frame = None
        self._handling = True
        self.last_active = self._began
        try:
            self._announce_request()
            self._take_answer(self._dispatcher.handle(self, frame[4:end]))
            if is_large:
                self._buffers.took_large(began)
        finally:
            self._handling = False
            self._buffers.give(frame)
        if not self.closed:
            self._end_turn()

    def _handle_bytes(self, data: memoryview) -> None:
        """Handle the whole frames in `data`, which starts at a frame boundary; keep the rest for a later turn.

        Budget: 24 µs of the whole process for a small request of many in one read, its handler included (`bench/budgets.py`).
        """
        position, end, limit, deadline = 0, len(data), self._max_frame_bytes, 0.0
        handle = self._dispatcher.handle
        self._handling = True
        try:
            while end - position >= 4:
                (size,) = _LENGTH(data, position)
                if not 0 < size <= limit:
                    raise ProtocolError(self._explain_length(size, bytes(data[position : position + 8])))
                frame_end = position + 4 + size
                if frame_end > end:
                    if size > LARGE_FRAME_BYTES:
                        self._begin_frame(data, position, size + 4)
                        position = end
                    break
                if size > LARGE_FRAME_BYTES and _is_large(data, position, size):
                    if not self._handle_large(data[position + 4 : frame_end]):
                        break
                    position = frame_end
                    if self.closed:
                        return
                    if self._answers:
                        break
                    continue
                if self._answers:
                    self._announce_request()
                answer = handle(self, data[position + 4 : frame_end])
                position = frame_end
                if answer is not None:
                    self._take_answer(answer)
                if self.closed:
                    return
                if self._answers and (self._alone is not None or len(self._answers) >= UNANSWERED_MAX):
                    break
                if position < end:
                    if self._unsent_bytes >= UNSENT_BYTES_MAX:
                        break
                    if deadline == 0.0:
                        deadline = self._began + TURN_SECONDS / (1 + self._buffers.resuming)
                    if monotonic() > deadline:
                        break
        finally:
            self._handling = False
        if position:
            self.last_active = self._began  # not for parts of a request: whoever drips is idle
        if position < end:
            self._leftover = bytes(data[position:])
        self._end_turn()

    def _handle_large(self, frame: memoryview) -> bool:
        """False: it is not its turn, and a later one is arranged."""
        began = monotonic()
        if began < self._buffers.large_after:
            self._resume_after(self._buffers.large_after - began)
            return False
        self._announce_request()
        self._take_answer(self._dispatcher.handle(self, frame))
        self._buffers.took_large(began)
        return True

    def _begin_frame(self, data: memoryview, position: int, frame_end: int) -> None:
        """What stands in `data` from `position` on is all that has arrived of a large frame."""
        buffers, filled = self._buffers, len(data) - position
        frame: memoryview | None
        if 4 * filled >= frame_end and data.obj is buffers.current.obj:
            frame = buffers.take()
        else:
            frame = buffers.spare_for(frame_end, filled)
        if frame is None:
            frame = new_buffer(min(frame_end, max(filled, LARGE_FRAME_BYTES)))
        if position or frame.obj is not data.obj:
            frame[:filled] = data[position:]
        self._frame, self._frame_end, self._filled = frame, frame_end, filled

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

    def _is_behind(self) -> bool:
        return len(self._answers) >= UNANSWERED_MAX or self._unsent_bytes >= UNSENT_BYTES_MAX

    # ---- output

    def answer_ready(self, *, at_once: bool = False) -> None:
        """A pending answer is complete. Those completed in one turn of the loop leave together, unless this one cannot wait."""
        if self._handling or self._flush_scheduled:
            return
        if at_once:
            self._end_turn()
        else:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self.closed:
            self._end_turn()

    def _announce_request(self) -> None:
        """To whoever keeps the answer back that a further one will have to wait for."""
        before = self._answers[-1] if self._answers else None
        if isinstance(before, Pending) and before.on_next_request is not None:
            before.on_next_request()

    def _take_answer(self, answer: Answer | Pending | None) -> None:
        """Behind those that are waited for, or straight to the output."""
        if type(answer) is bytes and not self._answers:
            self._out.append(answer)
            self._unsent_bytes += len(answer)
        elif answer is not None:
            self._answers.append(answer)
            if not isinstance(answer, Pending):
                if len(self._answers) == 1:
                    self._move_answers()
            elif answer.alone:
                self._alone = answer

    def _move_answers(self) -> None:
        """To the output, up to the first that is not there yet."""
        answers, out = self._answers, self._out
        while answers:
            answer = answers[0]
            if isinstance(answer, Pending):
                if not answer.done:
                    return
                if answer.alone:
                    self._alone = None
                answer = answer.parts
            answers.popleft()
            if isinstance(answer, bytes):
                out.append(answer)
                self._unsent_bytes += len(answer)
                continue
            for part in answer:
                if isinstance(part, FileRange):
                    part = self._copied(part)
                out.append(part)
                if isinstance(part, FileRange):
                    self._ranges += 1
                else:
                    self._unsent_bytes += len(part)

    def _copied(self, range_: FileRange) -> Part:
        """The bytes of a small range, if they can leave at once; else the range."""
        if range_.count > COPIED_BYTES_MAX or self._writing or self._unsent_bytes >= UNSENT_BYTES_MAX:
            return range_
        try:
            data = range_.read()
        except DiskError:
            return range_  # sendfile meets the same trouble, and has an answer for it
        if len(data) < range_.count:
            return range_
        range_.release()
        return data

    def _end_turn(self) -> None:
        """Move the answers whose turn has come to the socket, and go on reading if the client keeps up."""
        if self._answers:
            self._move_answers()
        if self._out and not self._writing:
            self._write()
        if not self.closed:
            self._read_on()

    def _read_on(self) -> None:
        if self._is_behind() or (self._alone is not None and len(self._leftover) > WAITING_BYTES_MAX):
            if self._reading:
                self._reading = False
                self._loop.remove_reader(self._sock)
            return
        if self._alone is None and self._leftover and not self._resume_scheduled and self._has_work():
            self._resume_after(0)
        if not self._reading and not self._resume_scheduled:
            self._reading = True
            self._loop.add_reader(self._sock, self._on_readable)

    def _resume_after(self, seconds: float) -> None:
        self._resume_scheduled = True
        self._buffers.resuming += 1
        if seconds > 0:
            self._loop.call_later(seconds, self._resume)
            if self._reading:  # what has arrived meanwhile would wake the loop again and again
                self._reading = False
                self._loop.remove_reader(self._sock)
        else:
            self._loop.call_soon(self._resume)

    def _has_work(self) -> bool:
        """What was left holds a whole frame, or so much of a large one that it wants a buffer of its own."""
        size = len(self._leftover) - 4
        return size >= 0 and (size >= _LENGTH(self._leftover)[0] or size > LARGE_FRAME_BYTES)

    @property
    def is_waiting(self) -> bool:
        """For an answer that is not there yet."""
        return bool(self._answers)

    def has_more_behind(self, pending: Pending) -> bool:
        """Whether the client has sent something since, whose answer has to wait for this one."""
        answers = self._answers
        if not answers or answers[-1] is pending:
            return pending.alone and bool(self._leftover)
        return pending in answers

    @property
    def held_bytes(self) -> int:
        """Memory that this connection keeps busy: what it has begun to send, what waits, and what it does not take."""
        held = self._unsent_bytes + (len(self._leftover) if self._frame is None else len(self._frame))
        for answer in self._answers:
            if isinstance(answer, Pending):
                held += answer.weight
        return held

    def _resume(self) -> None:
        """Handle frames that were received but left alone while it was not their turn."""
        self._resume_scheduled = False
        self._buffers.resuming -= 1
        if self.closed:
            return
        self._began = self._loop.time()
        try:
            if self._frame is not None and self._filled == self._frame_end:
                self._finish_frame(self._frame, self._frame_end)
            elif self._frame is None and self._leftover:
                data, self._leftover = self._leftover, b""
                self._handle_bytes(memoryview(data))
            else:
                self._read_on()
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
            if error.errno == errno.EIO and self._out and isinstance(self._out[0], FileRange):
                # Not the socket's error: sendfile could not read what it was to send.
                self._dispatcher.disk_failed(DiskError("read", self._out[0].file.path, error))
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
        """Send until the socket is full (False) or nothing is left (True).

        sendfile has no MSG_MORE: without the cork, the few bytes behind a range are a packet that wakes the reader once more. It stays until
        everything has left, over as many turns as that takes.
        """
        if (
            TCP_CORK is not None
            and not self._corked
            and self._ranges
            and not isinstance(self._out[-1], FileRange)
        ):
            self._corked = True
            self._sock.setsockopt(socket.IPPROTO_TCP, TCP_CORK, 1)
        drained = self._write_parts()
        if drained and self._corked and not self.closed:
            assert TCP_CORK is not None
            self._corked = False
            self._sock.setsockopt(socket.IPPROTO_TCP, TCP_CORK, 0)
        return drained

    def _write_parts(self) -> bool:
        out, budget = self._out, SENDFILE_BYTES_PER_TURN
        while out:
            if budget <= 0:
                return False
            asked, sent = self._send_range(out[0]) if isinstance(out[0], FileRange) else self._send_bytes()
            if sent < asked:
                return False  # it took less than it was given: it is full
            budget -= sent
        return True

    def _send_bytes(self) -> tuple[int, int]:
        """How many bytes the socket was given, and how many it took."""
        out = self._out
        if len(out) == 1:
            only = out.popleft()
            assert isinstance(only, (bytes, bytearray, memoryview))
            data: bytes | bytearray | memoryview = only
            size = len(data)
        elif not self._ranges and self._unsent_bytes <= JOIN_BYTES:
            data = b"".join(out)  # type: ignore[arg-type]  # none is a range
            out.clear()
            size = len(data)
        else:
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
        return size, sent

    def _send_range(self, range_: FileRange) -> tuple[int, int]:
        if range_.descriptor < 0:
            self._out.popleft()
            self._ranges -= 1
            data = range_.read()
            range_.release()
            self._unsent_bytes += len(data)
            self._out.appendleft(data)
            return 0, 0
        count = min(range_.count, SENDFILE_BYTES_PER_TURN)
        sent = os.sendfile(self._sock.fileno(), range_.descriptor, range_.position, count)
        if sent == 0:
            # The frame's length is already on the wire, so it cannot be ended properly.
            logger.error(
                "closing connection from %r: %s ended before the fetched range did", self, range_.file.path
            )
            self.close()
            return 0, 0
        range_.position += sent
        range_.count -= sent
        if range_.count == 0:
            self._out.popleft()
            self._ranges -= 1
            range_.release()
        return count, sent

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
        if self.when_closed is not None:
            self.when_closed()
