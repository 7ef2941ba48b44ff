"""Producer ids, handed out to brokers in blocks.

Owns the promise that no id is given out twice: a block is used only once its record is durable, and the next block starts
where the record says (I39 rests on it).
"""

from __future__ import annotations

from typing import Final

from tidelog.controller.broker_states import current_broker
from tidelog.controller.image import MetadataImage
from tidelog.controller.metadata_records import ProducerIdsRecord
from tidelog.controller.result import ControllerResult
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

BLOCK_SIZE: Final = 1000
_LARGEST: Final = 2**63 - 1


def allocate_producer_ids(
    image: MetadataImage, request: AllocateProducerIdsRequest
) -> ControllerResult[AllocateProducerIdsResponse]:
    """RequestError when the broker is unknown or an older run of itself."""
    current_broker(image, request.broker_id, request.broker_epoch)
    if image.next_producer_id > _LARGEST - BLOCK_SIZE:
        raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, "all 2**63 producer ids have been given out")
    first = image.next_producer_id
    record = ProducerIdsRecord(request.broker_id, request.broker_epoch, first + BLOCK_SIZE)
    return ControllerResult(
        AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE), [record]
    )
