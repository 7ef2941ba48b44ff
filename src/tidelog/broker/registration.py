"""This node's registration with the controller: who it is, where clients find it, what it can do, where it keeps its logs."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.broker.metadata_service import MetadataService
from tidelog.config.listeners import Endpoint
from tidelog.controller.controller import Controller
from tidelog.controller.features import SUPPORTED_FEATURES
from tidelog.controller.result import ControllerResult
from tidelog.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)


async def register(
    metadata: MetadataService,
    *,
    node_id: int,
    cluster_id: str,
    incarnation_id: bytes,
    endpoints: Iterable[Endpoint],
    rack: str | None,
    log_dirs: Iterable[bytes],
    stopped_cleanly: bool,
) -> int:
    """Register and be unfenced; returns the broker epoch."""
    known = metadata.image.brokers.get(node_id)
    request = BrokerRegistrationRequest(
        broker_id=node_id,
        cluster_id=cluster_id,
        incarnation_id=incarnation_id,
        listeners=[
            Listener(name=endpoint.name, host=endpoint.host, port=endpoint.port) for endpoint in endpoints
        ],
        features=[
            Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SUPPORTED_FEATURES.items()
        ],
        rack=rack,
        log_dirs=list(log_dirs),
        # Every replica in a cluster of one is here: whatever this node's logs hold is all there is.
        previous_broker_epoch=known.epoch if known is not None else -1,
    )

    def decide(controller: Controller) -> ControllerResult[BrokerRegistrationResponse]:
        next_offset = metadata.next_offset
        resumed = controller.resume_broker(request, next_offset=next_offset, stopped_cleanly=stopped_cleanly)
        return resumed or controller.register_broker(request, next_offset=next_offset)

    epoch = (await metadata.submit(decide)).broker_epoch
    await metadata.submit(lambda controller: controller.unfence_broker(node_id, epoch))
    return epoch
