"""This broker as the controller shall know it: who it is, where clients find it, what it can do, where its logs are, and whether it has lost anything.

The last is said by naming the epoch of the run before (D10, I23): "all that I was counted for is still here", so that this broker keeps its places in ISR and ELR. The ledger beside the
logs knows whether that is true (`storage/run_ledger.py`). Never if a log directory is a new one, or cannot be used; always for the only broker there is, since whatever its logs hold is
all there is.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.config.listeners import Endpoint
from tidelog.config.resolve import BrokerConfig
from tidelog.controller.features import SUPPORTED_FEATURES
from tidelog.controller.image import BrokerImage, MetadataImage
from tidelog.storage.broker_run import UNKNOWN_EPOCH
from tidelog.storage.log_manager import LogManager
from tidelog.storage.run_ledger import Registered
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener


def registration(
    image: MetadataImage,
    logs: LogManager,
    config: BrokerConfig,
    *,
    incarnation_id: bytes,
    endpoints: Iterable[Endpoint],
) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=config.node_id,
        cluster_id=logs.cluster_id,
        incarnation_id=incarnation_id,
        listeners=[
            Listener(name=endpoint.name, host=endpoint.host, port=endpoint.port) for endpoint in endpoints
        ],
        features=[
            Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SUPPORTED_FEATURES.items()
        ],
        rack=config.optional_str("broker.rack"),
        log_dirs=list(logs.directory_ids.values()),
        previous_broker_epoch=_previous_epoch(image, logs, config.node_id),
    )


def _previous_epoch(image: MetadataImage, logs: LogManager, node_id: int) -> int:
    known = image.brokers.get(node_id)
    if known is not None and image.brokers.keys() == {node_id}:
        return known.epoch
    if logs.ledger.loss is not None or logs.offline_dirs or _misses_directory(known, logs):
        return UNKNOWN_EPOCH
    return logs.ledger.previous_epoch(
        None if known is None else Registered(known.incarnation_id, known.epoch)
    )


def _misses_directory(known: BrokerImage | None, logs: LogManager) -> bool:
    return known is not None and not set(known.log_dirs) <= set(logs.directory_ids.values())
