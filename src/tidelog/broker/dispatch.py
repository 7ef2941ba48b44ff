"""From a frame to its handler and back: header, version check, decoding, encoding, and what happens when something fails.

A handler gets `(broker, context, request)` and returns one of

* a response message: it is encoded in the request's version and takes its place in the answer queue;
* `Encoded`: the same, kept from an earlier request;
* a `Pending` from `context.defer()`, completed later with `context.answer(pending, message)`;
* a coroutine that returns the response: it runs as a task, for admin requests that write metadata;
* an `InThread`, for what takes long and reads only what never changes: worked out and encoded beside the loop;

Produce and Fetch are the hot path: their handlers get `(broker, context, frame, position)`, read the frame themselves and return the
bytes of the answer (`wire/produce_frames.py`, `wire/fetch_frames.py`), so nothing is built that is thrown away a moment later.

Every request is answered in its own version, also with an error (CLIENTS trap 6). Bytes that are no request end the
connection, and only that connection (I53).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.connection import Connection
from tidelog.broker.pending import Answer, Pending
from tidelog.errors import ProtocolError, RequestError
from tidelog.storage.disk import DiskError
from tidelog.wire import api as wire_api
from tidelog.wire.api import ApiKey
from tidelog.wire.codec import request_decoder
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.headers import encode_response, read_request_header
from tidelog.wire.types import Part

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

logger = logging.getLogger("tidelog.broker")


Handler = Callable[["Broker", "RequestContext", Any], Any]
FrameHandler = Callable[["Broker", "RequestContext", memoryview, int], "Answer | Pending | None"]


DECODED_PER_BYTE = 8
"""What a byte of a request takes in memory once it is decoded, about."""


class InThread(NamedTuple):
    """An answer that a thread works out, so that the loop goes on serving others."""

    work: Callable[[], Any]


class Encoded(NamedTuple):
    """An answer that needs no encoding any more."""

    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Api:
    """One API that this broker serves, in the versions of one real Kafka release (D8)."""

    key: ApiKey
    min_version: int
    max_version: int
    handler: Handler | None = None
    frame_handler: FrameHandler | None = None
    """Instead of `handler`: reads the request and writes the answer itself."""
    lowest_served: int = -1
    """Versions below are advertised but refused. Only Produce: old librdkafka compresses only if 0-2 are listed."""
    is_forwarded: bool = False
    """Only the active controller decides: anywhere else a request is sent on to it."""
    is_listed: bool = True
    """Tidelog's own APIs are served to those who know of them, and in no list: the list is that of a Kafka release."""


class RequestContext:
    """Who asked, in which version, and how to answer."""

    __slots__ = ("api_key", "client_id", "connection", "correlation_id", "version")

    def __init__(
        self, connection: Connection, api_key: int, version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def defer(self, *, alone: bool = False, weight: int = 0) -> Pending:
        return Pending(self.connection, alone=alone, weight=weight)

    def answer(self, pending: Pending, response: Any) -> None:
        try:
            parts = self.encode(response)
        except ProtocolError as error:
            logger.error("bug: closing connection from %r: %s", self.connection, error)
            self.connection.close()
        else:
            pending.complete(parts)

    def encode(self, response: Any) -> Sequence[Part]:
        """ProtocolError for an answer that its version cannot carry: the client must not wait for it in vain."""
        try:
            return encode_response(self.api_key, self.version, self.correlation_id, response)
        except ValueError as error:
            raise ProtocolError(f"the answer does not fit: {error}") from error


class ApiDispatcher:
    def __init__(self, broker: Broker, apis: Mapping[int, Api], *, forwards: bool) -> None:
        """`forwards`: requests for the controller are sent on to where it is; else they are refused unless it is here."""
        self._broker = broker
        self._forwards = forwards
        self._apis = dict(apis)
        # By key and version, once they are known to be served.
        self._frame_handlers: dict[tuple[int, int], FrameHandler] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, connection: Connection, frame: memoryview, /) -> Answer | Pending | None:
        key, version, correlation_id, client_id, position = read_request_header(frame)
        handler = self._frame_handlers.get((key, version))
        if handler is None:
            handler = self._admit(key, version)
            if handler is None:
                return _unsupported_api_versions(correlation_id, self._apis)
        context = RequestContext(connection, key, version, correlation_id, client_id)
        try:
            return handler(self._broker, context, frame, position)
        except ProtocolError:
            raise
        except RequestError as error:
            return self._refuse(context, error.code, error.message)
        except Exception:
            logger.exception("bug: %s version %d from %r failed", ApiKey(key).name, version, connection)
            return self._refuse(
                context, ErrorCode.UNKNOWN_SERVER_ERROR, "internal error, see the broker's log"
            )

    def _admit(self, key: int, version: int) -> FrameHandler | None:
        """The handler of an API version we serve; None when the client must be told ApiVersions' own range."""
        api = self._apis.get(key)
        if api is None:
            raise ProtocolError(f"API key {key} is not served here; ApiVersions lists those that are")
        lowest = max(api.min_version, api.lowest_served)
        if not lowest <= version <= api.max_version:
            if key == ApiKey.API_VERSIONS:
                return None
            raise ProtocolError(
                f"{api.key.name} is served in versions {lowest} to {api.max_version}, not {version}"
            )
        handler = api.frame_handler or self._by_message(api, version)
        if api.is_forwarded and self._forwards:
            handler = self._forwarding(handler)
        self._frame_handlers[key, version] = handler
        return handler

    def _forwarding(self, decide: FrameHandler) -> FrameHandler:
        def handle(
            broker: Broker, context: RequestContext, frame: memoryview, position: int
        ) -> Answer | Pending | None:
            if broker.node.is_active_controller:
                return decide(broker, context, frame, position)
            from tidelog.broker.forwarding import forward

            return self._run(context, forward(broker, context, bytes(frame)), len(frame))

        return handle

    def _by_message(self, api: Api, version: int) -> FrameHandler:
        """A handler of messages as one of frames: decodes, calls, encodes."""
        decode = request_decoder(wire_api.spec(api.key).request_class, version)
        handler = api.handler
        assert handler is not None, f"{api.key.name} has no handler"

        def handle(
            broker: Broker, context: RequestContext, frame: memoryview, position: int
        ) -> Answer | Pending | None:
            request, _ = decode(frame, position)  # bytes behind the last field are ignored, as Kafka does
            answer = handler(broker, context, request)
            if isinstance(answer, Pending):
                return answer
            if isinstance(answer, Encoded):
                return answer.parts
            if isinstance(answer, CoroutineType):
                return self._run(context, answer, len(frame))
            if isinstance(answer, InThread):
                return self._run(context, self._in_thread(context, answer.work), len(frame))
            return context.encode(answer)

        return handle

    def _refuse(self, context: RequestContext, code: ErrorCode, message: str) -> Sequence[Part]:
        return context.encode(self._error_answer(context, code, message))

    # ---- answers that take longer

    def _run(self, context: RequestContext, work: Coroutine[Any, Any, Any], request_bytes: int) -> Pending:
        pending = context.defer(alone=True, weight=DECODED_PER_BYTE * request_bytes)
        task = asyncio.get_running_loop().create_task(self._finish(context, pending, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pending

    async def _in_thread(self, context: RequestContext, work: Callable[[], Any]) -> Encoded:
        return await self._broker.in_background(lambda: Encoded(context.encode(work())))

    async def _finish(
        self, context: RequestContext, pending: Pending, work: Coroutine[Any, Any, Any]
    ) -> None:
        try:
            response = await work
        except RequestError as error:
            response = self._error_answer(context, error.code, error.message, closes=True)
        except Exception:
            logger.exception("bug: %s version %d failed", ApiKey(context.api_key).name, context.version)
            response = self._error_answer(
                context, ErrorCode.UNKNOWN_SERVER_ERROR, "internal error, see the broker's log", closes=True
            )
        if isinstance(response, Encoded):
            pending.complete(response.parts)
        elif response is not None and not pending.done:
            context.answer(pending, response)

    def disk_failed(self, error: DiskError, /) -> None:
        partitions = self._broker.partitions
        partitions.dir_failed(partitions.log_dir_containing(error.path), error)

    async def drain(self) -> None:
        """Wait for the admin requests under way."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)

    def _error_answer(
        self, context: RequestContext, code: ErrorCode, message: str, *, closes: bool = False
    ) -> Any:
        """The response with a top-level error, where the API has a place for one; otherwise the connection ends."""
        response_class = wire_api.spec(ApiKey(context.api_key)).response_class
        # In this version: without the field, the answer would be an empty success.
        names = {
            name
            for name, _, (low, high), *_ in response_class.SCHEMA.fields
            if low <= context.version and (high is None or context.version <= high)
        }
        if "error_code" not in names:
            problem = ProtocolError(f"{ApiKey(context.api_key).name} failed with {code.name}: {message}")
            if not closes:
                raise problem
            logger.warning("closing connection from %r: %s", context.connection, problem)
            context.connection.close()
            return None
        response = response_class(error_code=code)
        if "error_message" in names:
            response.error_message = message
        return response


def _unsupported_api_versions(correlation_id: int, apis: Mapping[int, Api]) -> Sequence[Part]:
    """KIP-511: an ApiVersions version we do not know gets a version 0 answer that still lists ApiVersions' own range."""
    from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse

    own = apis[ApiKey.API_VERSIONS]
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=own.key, min_version=own.min_version, max_version=own.max_version)],
    )
    return encode_response(ApiKey.API_VERSIONS, 0, correlation_id, response)
