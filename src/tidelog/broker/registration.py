"""This node's registration with the controller: who it is, where clients find it, what it can do, where it keeps its logs."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.broker.metadata_service import MetadataService
from tidelog.config.listeners import Endpoint
from tidelog.controller.features import SUPPORTED_FEATURES
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener


async def register(
    metadata: MetadataService,
    *,
    node_id: int,
    cluster_id: str,
    incarnation_id: bytes,
    endpoints: Iterable[Endpoint],
    rack: str | None,
    log_dirs: Iterable[bytes],
) -> int:
    """Register and be unfenced; returns the broker epoch. Until then the node's partitions have no leader."""
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
    response = await metadata.submit(
        lambda controller: controller.register_broker(request, next_offset=metadata.next_offset)
    )
    epoch = response.broker_epoch
    await metadata.submit(lambda controller: controller.unfence_broker(node_id, epoch))
    return epoch
