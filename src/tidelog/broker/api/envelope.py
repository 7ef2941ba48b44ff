"""Envelope (58), version 0: a client's request that a broker has sent on to the controller (KIP-590), with its answer inside of the answer.

Served at the controllers' listener only.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.errors import ProtocolError, RequestError
from tidelog.wire.api import spec
from tidelog.wire.codec import joined, request_decoder
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.headers import encode_response, read_request_header
from tidelog.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


async def handle(broker: Broker, context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    if broker.node.controller is None or not broker.node.controller.is_active:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    frame = memoryview(request.request_data)
    key, version, correlation_id, client_id, position = read_request_header(frame)
    api = broker.apis.get(key)
    if api is None or not api.is_forwarded or not api.min_version <= version <= api.max_version:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    inner = RequestContext(context.connection, key, version, correlation_id, client_id)
    try:
        message, _ = request_decoder(spec(key).request_class, version)(frame, position)
        assert api.handler is not None
        answer = api.handler(broker, inner, message)
        response = await answer if isawaitable(answer) else answer
    except ProtocolError:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    except RequestError as error:
        return EnvelopeResponse(error_code=error.code)
    # Its length stands outside.
    return EnvelopeResponse(response_data=joined(encode_response(key, version, correlation_id, response))[4:])
