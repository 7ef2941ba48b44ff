"""InitProducerId (22), versions 0-5: an identity for a producer whose retries must not duplicate.

2  flexible       3  the producer's current id and epoch, to continue after an error (KIP-360)       4  PRODUCER_FENCED
5  PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH for transactions v2

Ids come from blocks that the controller hands out and that are durable before the first id of a block is used, so no id
is ever given twice (I39). A producer without transactions that comes back gets a new id: its old sequence numbers stay
behind with the old one. Transactional ids are refused until there is a transaction coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


async def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        code = ErrorCode.INVALID_REQUEST if not request.transactional_id else ErrorCode.UNSUPPORTED_VERSION
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    try:
        producer_id = await broker.producer_ids.next()
    except RequestError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
