"""One TCP connection to one broker: requests out, answers back, in order.

Owns correlation ids, pipelining, version negotiation and the request timeout. Knows nothing about metadata, leaders or
retries: that is `cluster.py`. Kafka answers one connection strictly in request order, so the requests in flight are a
queue; an answer that does not belong to its head, a body that does not decode, or a silent broker condemns the whole
connection, because nothing after that point could be trusted. Every request then in flight fails with an error that
names the broker. Inter-broker traffic, producer, consumer and admin client all stand on this file.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from tidelog import loopback
from tidelog.client.addresses import Address
from tidelog.client.errors import (
    BrokerUnreachableError,
    ClientError,
    ConnectionLostError,
    MalformedResponseError,
    RequestTimedOutError,
    UnsupportedRequestError,
    check,
)
from tidelog.client.receive import FrameReceiver
from tidelog.errors import ProtocolError
from tidelog.wire.api import ApiKey, spec
from tidelog.wire.codec import joined
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.headers import RequestHeader, decode_response, request_parts
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

DEFAULT_REQUEST_TIMEOUT_MS = 30_000
DEFAULT_CONNECT_TIMEOUT_MS = 10_000
# A fetch answer may exceed fetch.max.bytes by its first batch; this bounds what a wrong length can make us allocate.
DEFAULT_MAX_FRAME_BYTES = 512 * 1024 * 1024

WRITTEN_ALONE_BYTES = 64 * 1024
"""A part of a request of this size costs more to be copied than to be written by itself."""

WOKEN_AFTER_BYTES = 128 * 1024
"""Of a large answer, what the kernel collects before it wakes us: a fetch of 4 MiB otherwise comes in fifty pieces, and each costs a turn of the event loop."""

_SOFTWARE_VERSION = re.compile(r"[^a-zA-Z0-9.-]")


class VersionRange(NamedTuple):
    lowest: int
    highest: int


class Waiting(Protocol):
    """Who waits for an answer: a future, or whoever wants to be called without one."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: ClientError, /) -> None: ...


class _InFlight(NamedTuple):
    correlation_id: int
    key: ApiKey
    version: int
    answer: Waiting
    timer: asyncio.TimerHandle


class Connection(asyncio.BufferedProtocol):
    """Open with `await Connection.open(address, …)`; then `await connection.request(key, message)`."""

    def __init__(
        self, address: Address, *, client_id: str, request_timeout_ms: int, max_frame_bytes: int
    ) -> None:
        self.address = address
        self.versions: dict[int, VersionRange] = {}
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._receiver = FrameReceiver(max_frame_bytes)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket: Any = None
        self._woken_after = 1
        self._in_flight: deque[_InFlight] = deque()
        self._correlation_id = 0
        self._failure: ClientError | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._when_writable: list[Callable[[], None]] = []
        self._gone = asyncio.Event()
        self.when_lost: Callable[[], None] | None = None
        """For whoever takes the end of the connection as a sign, whether or not something waits for an answer."""

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        client_id: str = "tidelog",
        client_version: str = "unknown",
        request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS,
        connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
    ) -> Connection:
        """Connect and learn which versions the broker speaks."""
        connection = cls(
            address,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            max_frame_bytes=max_frame_bytes,
        )
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                await connection._loop.create_connection(lambda: connection, address.host, address.port)
        except TimeoutError as error:
            raise BrokerUnreachableError(
                f"cannot connect to {address}: no answer within {connect_timeout_ms} ms; "
                "check the address and the firewall"
            ) from error
        except OSError as error:
            raise BrokerUnreachableError(f"cannot connect to {address}: {_os_reason(error)}") from error
        try:
            await connection._negotiate(client_version)
        except BaseException:
            connection.abort()
            raise
        return connection

    # -- requests ---------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._failure is None

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def version_for(self, key: ApiKey, *, at_most: int | None = None) -> int:
        """The highest version that both sides know (and the caller can use)."""
        offered = self.versions.get(key)
        ours = spec(key)
        highest = ours.max_version if at_most is None else min(ours.max_version, at_most)
        if offered is None:
            raise UnsupportedRequestError(f"the broker at {self.address} does not offer {key.name}")
        if max(offered.lowest, ours.min_version) > min(offered.highest, highest):
            raise UnsupportedRequestError(
                f"no common version of {key.name}: the broker at {self.address} speaks {offered.lowest} to "
                f"{offered.highest}, this client {ours.min_version} to {highest}"
            )
        return min(offered.highest, highest)

    async def request(
        self, key: ApiKey, message: object, *, at_most: int | None = None, timeout_ms: int | None = None
    ) -> Any:
        """Send and wait for the answer. Cancelling the wait is safe: the late answer is dropped when it comes."""
        await self._writable.wait()
        return await self.send(key, message, at_most=at_most, timeout_ms=timeout_ms)

    def send(
        self, key: ApiKey, message: object, *, at_most: int | None = None, timeout_ms: int | None = None
    ) -> asyncio.Future[Any]:
        """Write now, answer later: the way to have several requests in flight, in the order of these calls."""
        return self._send(key, self.version_for(key, at_most=at_most), message, timeout_ms)

    def send_for(self, waiting: Waiting, key: ApiKey, message: object, *, timeout_ms: int) -> None:
        """The same for one who is called when the answer comes, in the very turn of the loop that brought it."""
        self._send_for(waiting, key, self.version_for(key), message, timeout_ms)

    def post(self, key: ApiKey, message: object, *, at_most: int | None = None) -> None:
        """For the one request that gets no answer, Produce with acks=0; ask `is_writable` first."""
        self._write(key, self.version_for(key, at_most=at_most), message)

    @property
    def is_writable(self) -> bool:
        """Whether the socket has taken most of what was written."""
        return self._writable.is_set()

    def when_writable(self, call: Callable[[], None]) -> None:
        """Once, when the socket takes more again, or never will."""
        if self._writable.is_set():
            self._loop.call_soon(call)
        elif call not in self._when_writable:
            self._when_writable.append(call)

    def _send(
        self, key: ApiKey, version: int, message: object, timeout_ms: int | None
    ) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        timeout_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        self._send_for(answer, key, version, message, timeout_ms)
        return answer

    def _send_for(
        self, waiting: Waiting, key: ApiKey, version: int, message: object, timeout_ms: int
    ) -> None:
        correlation_id = self._write(key, version, message)
        timer = self._loop.call_later(timeout_ms / 1000, self._timed_out, key, timeout_ms)
        self._in_flight.append(_InFlight(correlation_id, key, version, waiting, timer))

    def _write(self, key: ApiKey, version: int, message: object) -> int:
        if self._failure is not None or self._transport is None:
            raise (
                _again(self._failure)
                if self._failure
                else ConnectionLostError(f"{self.address}: not connected yet")
            )
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        write, small = self._transport.write, []
        for part in request_parts(RequestHeader(key, version, correlation_id, self._client_id), message):
            if len(part) < WRITTEN_ALONE_BYTES:
                small.append(part)
                continue
            write(joined(small))
            write(part)  # type: ignore[arg-type]  # what is sent has no ranges of files
            small.clear()
        if small:
            write(joined(small))
        return correlation_id

    # -- negotiation ------------------------------------------------------------------------------------------------

    async def _negotiate(self, client_version: str) -> None:
        """ApiVersions may be refused in our version; the refusal then tells the range that works (KIP-511)."""
        ours = spec(ApiKey.API_VERSIONS)
        version = ours.max_version
        software_version = _SOFTWARE_VERSION.sub("-", client_version).strip("-.") or "unknown"
        request = ApiVersionsRequest(client_software_name="tidelog", client_software_version=software_version)
        response: ApiVersionsResponse = await self._send(ApiKey.API_VERSIONS, version, request, None)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            offered = next((k.max_version for k in response.api_keys if k.api_key == ApiKey.API_VERSIONS), 0)
            version = max(0, min(offered, version - 1))
            response = await self._send(ApiKey.API_VERSIONS, version, request, None)
        check(response.error_code, f"version negotiation with {self.address}")
        self.versions = {k.api_key: VersionRange(k.min_version, k.max_version) for k in response.api_keys}

    # -- asyncio's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        own, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if own and peer and own[0] == peer[0]:
            loopback.send_at_once(self._socket)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._receiver.received(nbytes):
                self._answered(frame)
        except ProtocolError as error:
            self._fail(MalformedResponseError(f"{self.address}: {error}"))
        else:
            self._wake_after(min(self._receiver.missing_bytes, WOKEN_AFTER_BYTES) or 1)

    def _wake_after(self, count: int) -> None:
        """Never more than what is missing of the frame. The end of the connection wakes us whatever has come, and so does a kernel that is short of memory."""
        if count != self._woken_after and self._failure is None:
            self._woken_after = count
            with suppress(OSError):  # a system without it wakes us more often
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        calls, self._when_writable = self._when_writable, []
        for call in calls:
            self._loop.call_soon(call)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        what = self._in_flight[0].key.name if self._in_flight else "nothing"
        reason = _os_reason(exc) if isinstance(exc, OSError) else "the broker closed it"
        self._fail(
            ConnectionLostError(
                f"the connection to {self.address} ended: {reason} ({what} was waiting for an answer)"
            )
        )
        self._gone.set()

    def _answered(self, frame: memoryview) -> None:
        if self._failure is not None:
            return
        if not self._in_flight:
            raise ProtocolError("an answer came that nobody asked for")
        head = self._in_flight.popleft()
        head.timer.cancel()
        try:
            correlation_id = int.from_bytes(frame[:4], "big", signed=True)
            if correlation_id != head.correlation_id:
                raise ProtocolError(
                    f"answer {correlation_id} came where {head.correlation_id} ({head.key.name}) was due"
                )
            _, message = decode_response(head.key, _answer_version(head, frame), frame)
        except ProtocolError as error:
            self._in_flight.appendleft(head)
            raise ProtocolError(
                f"the answer to {head.key.name} v{head.version} makes no sense: {error}"
            ) from error
        if not head.answer.done():
            head.answer.set_result(message)

    def _timed_out(self, key: ApiKey, timeout_ms: int) -> None:
        self._fail(RequestTimedOutError(f"{self.address} did not answer {key.name} within {timeout_ms} ms"))

    def _fail(self, failure: ClientError, *, let_writes_finish: bool = False) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        self.resume_writing()
        while self._in_flight:
            pending = self._in_flight.popleft()
            pending.timer.cancel()
            if not pending.answer.done():
                pending.answer.set_exception(_again(failure))
                if isinstance(pending.answer, asyncio.Future):
                    pending.answer.exception()  # somebody may have stopped waiting; that is no "never retrieved" warning
        if self.when_lost is not None:
            self.when_lost()
        if self._transport is None:
            return
        if let_writes_finish:
            self._transport.close()
        else:
            self._transport.abort()

    # -- the end ----------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Close at once; requests in flight fail, bytes not yet sent are dropped."""
        self._fail(ConnectionLostError(f"the connection to {self.address} was closed by this client"))

    async def close(self) -> None:
        """Close after what was written has left (acks=0 has nothing else to wait for); a stuck peer gets a second."""
        failure = ConnectionLostError(f"the connection to {self.address} was closed by this client")
        self._fail(failure, let_writes_finish=True)
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(1):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()


def _answer_version(head: _InFlight, frame: memoryview) -> int:
    """A broker that cannot read our ApiVersions answers with a version 0 body, whatever we asked in."""
    if head.key == ApiKey.API_VERSIONS and frame[4:6] == int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(
        2, "big"
    ):
        return 0
    return head.version


def _again(failure: ClientError) -> ClientError:
    """Everyone who waits gets an exception of their own: a shared one would collect everybody's traceback."""
    return type(failure)(*failure.args)


def _os_reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused (is a broker running there?)"
    return (error.strerror or str(error)).lower()
