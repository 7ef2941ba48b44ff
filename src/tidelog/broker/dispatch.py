"""From a frame to its handler and back: header, version check, decoding, encoding, and what happens when something fails.

A handler gets `(broker, context, request)` and returns one of

* a response message: it is encoded in the request's version and takes its place in the answer queue;
* a `Pending` from `context.defer()`, completed later with `context.answer(pending, message)`;
* a coroutine that returns the response: it runs as a task, for admin requests that write metadata;
* `NO_ANSWER`, for a produce with acks=0.

Every request is answered in its own version, also with an error (CLIENTS trap 6). Bytes that are no request end the
connection, and only that connection (I53).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.connection import Connection, Pending
from tidelog.errors import ProtocolError, RequestError
from tidelog.wire import api as wire_api
from tidelog.wire.api import ApiKey
from tidelog.wire.codec import decoder
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.headers import decode_request_header, encode_response
from tidelog.wire.types import Part

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

logger = logging.getLogger("tidelog.broker")


class NoAnswer:
    """The type of NO_ANSWER."""


NO_ANSWER: Final = NoAnswer()
Handler = Callable[["Broker", "RequestContext", Any], Any]


@dataclass(frozen=True, slots=True)
class Api:
    """One API that this broker serves, in the versions of one real Kafka release (D8)."""

    key: ApiKey
    min_version: int
    max_version: int
    handler: Handler
    lowest_served: int = -1
    """Versions below are advertised but refused. Only Produce: old librdkafka compresses only if 0-2 are listed."""


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

    def defer(self) -> Pending:
        return Pending(self.connection)

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
    def __init__(self, broker: Broker, apis: Mapping[int, Api]) -> None:
        self._broker = broker
        self._apis = dict(apis)
        self._decoders: dict[tuple[int, int], Callable[[memoryview, int], tuple[Any, int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, connection: Connection, frame: memoryview, /) -> Sequence[Part] | Pending | None:
        header, position = decode_request_header(frame, 0)
        key, version = header.api_key, header.api_version
        decode = self._decoders.get((key, version))
        if decode is None:
            decode = self._admit(key, version)
            if decode is None:
                return _unsupported_api_versions(header.correlation_id, self._apis)
        request, _ = decode(frame, position)  # bytes behind the last field are ignored, as Kafka does
        context = RequestContext(connection, key, version, header.correlation_id, header.client_id)
        try:
            answer = self._apis[key].handler(self._broker, context, request)
        except RequestError as error:
            answer = self._error_answer(context, error.code, error.message)
        except ProtocolError:
            raise
        except Exception:
            logger.exception("bug: %s version %d from %r failed", ApiKey(key).name, version, connection)
            answer = self._error_answer(
                context, ErrorCode.UNKNOWN_SERVER_ERROR, "internal error, see the broker's log"
            )
        if isinstance(answer, Pending):
            return answer
        if isinstance(answer, Coroutine):
            return self._run(context, answer)
        if answer is NO_ANSWER:
            return None
        return context.encode(answer)

    def _admit(self, key: int, version: int) -> Callable[[memoryview, int], tuple[Any, int]] | None:
        """The decoder of an API version we serve; None when the client must be told ApiVersions' own range."""
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
        decode = decoder(wire_api.spec(api.key).request_class, version)
        self._decoders[key, version] = decode
        return decode

    # ---- answers that take longer

    def _run(self, context: RequestContext, work: Coroutine[Any, Any, Any]) -> Pending:
        pending = context.defer()
        task = asyncio.get_running_loop().create_task(self._finish(context, pending, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pending

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
        if response is not None and not pending.done:
            context.answer(pending, response)

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
