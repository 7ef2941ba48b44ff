"""What changed about registered brokers and controllers since an image.

Owns the working copy of both maps. A record about an older run of a broker (another epoch) is a bug of its writer: the
handlers compare epochs before they write (I22).
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.controller.image import (
    BrokerImage,
    ControllerImage,
    Endpoint,
    MetadataImage,
    VersionRange,
)
from tidelog.controller.registration_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)


class RegistrationsDelta:
    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._brokers: dict[int, BrokerImage | None] = {}
        self._controllers: dict[int, ControllerImage] = {}

    @property
    def changed_brokers(self) -> dict[int, BrokerImage | None]:
        """Brokers that were registered or changed, as they are now; None when the registration is gone."""
        return dict(self._brokers)

    def register(self, record: RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        self._brokers[record.broker_id] = BrokerImage(
            broker_id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=tuple(record.log_dirs),
            cordoned_log_dirs=None if cordoned is None else tuple(cordoned),
            is_migrating_zk_broker=record.is_migrating_zk_broker,
        )

    def unregister(self, record: UnregisterBrokerRecord) -> None:
        self._current(record.broker_id, record.broker_epoch)
        self._brokers[record.broker_id] = None

    def change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._current(record.broker_id, record.broker_epoch)
        if record.fenced:
            broker = broker._replace(fenced=record.fenced > 0)
        if record.in_controlled_shutdown:
            broker = broker._replace(in_controlled_shutdown=True)
        if record.log_dirs:
            broker = broker._replace(log_dirs=tuple(record.log_dirs))
        if record.cordoned_log_dirs is not None:
            broker = broker._replace(cordoned_log_dirs=tuple(record.cordoned_log_dirs))
        self._brokers[record.broker_id] = broker

    def set_fenced(self, record: FenceBrokerRecord | UnfenceBrokerRecord, fenced: bool) -> None:
        self._brokers[record.id] = self._current(record.id, record.epoch)._replace(fenced=fenced)

    def register_controller(self, record: RegisterControllerRecord) -> None:
        self._controllers[record.controller_id] = ControllerImage(
            record.controller_id,
            record.incarnation_id,
            _endpoints(record.end_points),
            _features(record.features),
            record.zk_migration_ready,
        )

    def apply(self) -> tuple[Mapping[int, BrokerImage], Mapping[int, ControllerImage]]:
        brokers, controllers = self._image.brokers, self._image.controllers
        if self._brokers:
            merged = {**brokers, **self._brokers}
            brokers = {key: broker for key, broker in sorted(merged.items()) if broker is not None}
        if self._controllers:
            controllers = dict(sorted({**controllers, **self._controllers}.items()))
        return brokers, controllers

    def _current(self, broker_id: int, epoch: int) -> BrokerImage:
        broker = (
            self._brokers[broker_id] if broker_id in self._brokers else self._image.brokers.get(broker_id)
        )
        if broker is None:
            raise ValueError(f"a record speaks of broker {broker_id}, which is not registered at that point")
        if broker.epoch != epoch:
            raise ValueError(
                f"a record for epoch {epoch} of broker {broker_id}, whose registration has epoch {broker.epoch}"
            )
        return broker


def _endpoints(given: list[BrokerEndpoint] | list[ControllerEndpoint]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(point.name, point.host, point.port, point.security_protocol) for point in given)


def _features(given: list[BrokerFeature] | list[ControllerFeature]) -> dict[str, VersionRange]:
    return {
        feature.name: VersionRange(feature.min_supported_version, feature.max_supported_version)
        for feature in given
    }
