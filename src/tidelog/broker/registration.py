"""This broker as the controller shall know it: who it is, where clients find it, what it can do, where its logs are, and whether it has lost anything.

The last is said by naming the epoch of the run before (D10): "all that I was counted for is still here". True after a clean stop; after any other one in `durability=fsync`; and for a
broker alone, since whatever its logs hold is all there is. Never if a log directory is a new one.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.broker.settings import is_alone
from tidelog.config.listeners import Endpoint
from tidelog.config.resolve import BrokerConfig
from tidelog.controller.features import SUPPORTED_FEATURES
from tidelog.controller.image import BrokerImage, MetadataImage
from tidelog.storage.log_manager import LogManager
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener

UNKNOWN_EPOCH = -1


def registration(
    image: MetadataImage,
    logs: LogManager,
    config: BrokerConfig,
    *,
    incarnation_id: bytes,
    endpoints: Iterable[Endpoint],
) -> BrokerRegistrationRequest:
    known = image.brokers.get(config.node_id)
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
        previous_broker_epoch=known.epoch
        if known is not None and _lost_nothing(known, logs, config)
        else UNKNOWN_EPOCH,
    )


def _lost_nothing(known: BrokerImage, logs: LogManager, config: BrokerConfig) -> bool:
    if is_alone(config):
        return True
    same_disks = set(known.log_dirs) <= set(logs.directory_ids.values()) and not logs.offline_dirs
    return same_disks and (logs.stopped_cleanly or config.str("durability") == "fsync")
