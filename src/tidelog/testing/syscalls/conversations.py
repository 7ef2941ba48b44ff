"""What a traced broker heard and said on its clients' sockets: requests and answers, each with its place in the trace.

A request was heard when the receive that completed it had ended. An answer was given when the send with its last byte began: from then on
the client may have it, whatever happens to the broker.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tidelog.testing.syscalls.strace import Call, TraceError
from tidelog.wire.api import ApiKey, spec
from tidelog.wire.codec import decoder
from tidelog.wire.headers import RequestHeader, decode_request_header, decode_response

_SENDS: Final = frozenset({"sendto", "sendmsg", "sendfile"})
_RECEIVES: Final = frozenset({"recvfrom", "recvmsg"})
_MESSAGE_IS_SENT_TO_NOBODY: Final = 0


@dataclass(slots=True)
class Exchange:
    """A request and, once it is given, its answer. Places are indexes of events in the recording."""

    key: int
    version: int
    request: Any
    asked_at: int
    response: Any = None
    answered_at: int | None = None


class Frames:
    """Cuts a stream of bytes into frames of four bytes of length and the rest."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4:
            (size,) = struct.unpack_from(">i", buffer)
            if size < 0 or len(buffer) < 4 + size:
                return
            frame = bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            yield frame


class _Connection:
    def __init__(self) -> None:
        self.heard = Frames()
        self.said = Frames()
        self.unanswered: deque[tuple[RequestHeader, Exchange]] = deque()


class Conversations:
    """Feed it the events of a trace; `exchanges` grows. A new process begins with no connections."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self._connections: dict[int, _Connection] = {}

    def process_ended(self) -> None:
        self._connections.clear()

    def begin(self, call: Call, place: int) -> None:
        if call.name == "close":
            self._connections.pop(call.descriptor(), None)
        elif call.name in _SENDS and not call.failed:
            connection = self._connections.get(call.descriptor())
            if connection is not None:
                self._said(connection, _sent_bytes(call), place)

    def end(self, call: Call, place: int) -> None:
        if call.failed or call.result is None:
            return
        if call.name in ("accept", "accept4"):
            self._connections[call.result] = _Connection()
        elif call.name in _RECEIVES:
            connection = self._connections.get(call.descriptor())
            if connection is not None and call.result > 0:
                data = call.strings()[0] if call.name == "recvfrom" else call.buffers()
                self._heard(connection, data[: call.result], place)

    def _heard(self, connection: _Connection, data: bytes, place: int) -> None:
        for frame in connection.heard.feed(data):
            header, position = decode_request_header(memoryview(frame))
            request, _ = decoder(spec(header.api_key).request_class, header.api_version)(
                memoryview(frame), position
            )
            exchange = Exchange(header.api_key, header.api_version, request, place)
            self.exchanges.append(exchange)
            if header.api_key != ApiKey.PRODUCE or request.acks != _MESSAGE_IS_SENT_TO_NOBODY:
                connection.unanswered.append((header, exchange))

    def _said(self, connection: _Connection, data: bytes, place: int) -> None:
        for frame in connection.said.feed(data):
            if not connection.unanswered:
                raise TraceError("the broker answered a request that the trace does not show")
            header, exchange = connection.unanswered.popleft()
            correlation_id, exchange.response = decode_response(header.api_key, header.api_version, frame)
            if correlation_id != header.correlation_id:
                raise TraceError(f"answer {correlation_id} came where {header.correlation_id} was due")
            exchange.answered_at = place


def _sent_bytes(call: Call) -> bytes:
    if call.name == "sendfile":
        # Records of a fetch: their number matters for the frame, what they say is checked elsewhere.
        return bytes(call.result if call.result is not None else call.last_numbers(1)[0])
    data = call.strings()[0] if call.name == "sendto" else call.buffers()
    return data if call.result is None else data[: call.result]
