"""Requests that only the active controller may decide, sent on to it as they came: in an Envelope (KIP-590), in the client's own version, and so is the answer.

Whoever is the controller may change meanwhile: a request that was certainly not decided is sent to the next one, until the client would have given up. One whose fate nobody knows is answered
as timed out, as Kafka does it: the client decides whether to ask again.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import TYPE_CHECKING, Final

from tidelog.broker.dispatch import Encoded, RequestContext
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

PATIENCE_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.05
ANSWER_SECONDS: Final = 30.0


async def forward(broker: Broker, context: RequestContext, frame: bytes) -> Encoded:
    request = EnvelopeRequest(
        request_data=frame, client_host_address=ipaddress.ip_address(context.connection.peer_host).packed
    )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_SECONDS
    while loop.time() < deadline:
        leader_id = broker.node.metadata.leader_id
        if leader_id is not None:
            response = await _ask(broker, leader_id, request)
            if response is None:
                raise RequestError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    "the controller did not answer: what was asked may or may not be done",
                )
            if response.error_code == ErrorCode.NONE and response.response_data is not None:
                answer = bytes(response.response_data)
                return Encoded((len(answer).to_bytes(4, "big") + answer,))
            if response.error_code != ErrorCode.NOT_CONTROLLER:
                raise RequestError(
                    ErrorCode(response.error_code), "the controller refused what was sent on to it"
                )
        await asyncio.sleep(RETRY_SECONDS)
    raise RequestError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"there has been no controller for {PATIENCE_SECONDS:.0f} s: the cluster may have lost the majority of its controllers",
    )


async def _ask(broker: Broker, leader_id: int, request: EnvelopeRequest) -> EnvelopeResponse | None:
    answer: asyncio.Future[EnvelopeResponse | None] = asyncio.get_running_loop().create_future()

    def answered(response: EnvelopeResponse | None) -> None:
        if not answer.done():
            answer.set_result(response)

    broker.peers.controllers.ask(leader_id, request, answered, timeout_s=ANSWER_SECONDS)
    return await answer
