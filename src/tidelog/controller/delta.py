"""From one metadata image to the next: the only way metadata changes (D5, I18).

    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    image = delta.apply(offset=…, epoch=…)

Owns what each record means. Copies only what a record touches and lists it, so that a broker can act on the difference.
Never decides whether a record should have been written: that was the handler's business, before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tidelog.controller import metadata_records as meta
from tidelog.controller import registration_records as registration
from tidelog.controller.brokers_delta import RegistrationsDelta
from tidelog.controller.image import MetadataImage, ResourceKey, ResourceType
from tidelog.controller.image_security import SECURITY_RECORDS, replay_security
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.topics_delta import TopicsDelta


class MetadataDelta:
    """Changes on top of `image`, which itself stays as it is."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.topics = TopicsDelta(image)
        self.registrations = RegistrationsDelta(image)
        self.changed_features: dict[str, int] = {}
        """New level by name; 0 stands for "no longer finalized"."""
        self.next_producer_id = image.next_producer_id
        self.security = image.security
        self._configs: dict[ResourceKey, dict[str, str]] = {}

    @property
    def changed_configs(self) -> frozenset[ResourceKey]:
        """Resources whose dynamic settings changed, those of deleted topics included."""
        return frozenset(self._configs)

    def replay(self, record: MetadataRecord) -> None:
        kind = type(record)
        handler = _REPLAY.get(kind)
        if handler is not None:
            handler(self, record)
        elif kind in SECURITY_RECORDS:
            self.security = replay_security(self.security, record)
        elif kind not in _SILENT:
            raise TypeError(
                f"{kind.__name__} cannot be replayed: transaction markers are resolved by the reader of the log, anything"
                " else is no metadata record"
            )

    def replay_all(self, records: Iterable[MetadataRecord]) -> MetadataDelta:
        for record in records:
            self.replay(record)
        return self

    def apply(self, *, offset: int, epoch: int) -> MetadataImage:
        """The next image, which ends at `offset` in a batch of leader epoch `epoch`."""
        by_name, by_id, partition_count = self.topics.apply()
        brokers, controllers = self.registrations.apply()
        return MetadataImage(
            offset=offset,
            epoch=epoch,
            features=self._apply_features(),
            brokers=brokers,
            controllers=controllers,
            topics_by_name=by_name,
            topics_by_id=by_id,
            partition_count=partition_count,
            configs=self._apply_configs(),
            next_producer_id=self.next_producer_id,
            security=self.security,
        )

    def _apply_configs(self) -> Mapping[ResourceKey, Mapping[str, str]]:
        if not self._configs:
            return self.image.configs
        configs = dict(self.image.configs)
        for key, settings in self._configs.items():
            if settings:
                configs[key] = dict(settings)
            else:
                configs.pop(key, None)
        return configs

    def _apply_features(self) -> Mapping[str, int]:
        if not self.changed_features:
            return self.image.features
        merged = {**self.image.features, **self.changed_features}
        return {name: level for name, level in merged.items() if level}

    # ---- what the records mean

    def _config(self, record: meta.ConfigRecord) -> None:
        settings = self._settings_of(ResourceKey(record.resource_type, record.resource_name))
        if record.value is None:
            settings.pop(record.name, None)
        else:
            settings[record.name] = record.value

    def _settings_of(self, key: ResourceKey) -> dict[str, str]:
        settings = self._configs.get(key)
        if settings is None:
            settings = self._configs[key] = dict(self.image.configs.get(key, {}))
        return settings

    def _remove_topic(self, record: meta.RemoveTopicRecord) -> None:
        name = self.topics.remove(record.topic_id)
        key = ResourceKey(ResourceType.TOPIC, name)
        if key in self._configs or key in self.image.configs:
            self._configs[key] = {}

    def _feature(self, record: meta.FeatureLevelRecord) -> None:
        self.changed_features[record.name] = record.feature_level

    def _producer_ids(self, record: meta.ProducerIdsRecord) -> None:
        if record.next_producer_id < self.next_producer_id:
            raise ValueError(
                f"producer ids would go back from {self.next_producer_id} to {record.next_producer_id} and be given out twice"
            )
        self.next_producer_id = record.next_producer_id


_REPLAY: Final[dict[type[Any], Callable[[MetadataDelta, Any], None]]] = {
    meta.TopicRecord: lambda delta, record: delta.topics.create(record),
    meta.PartitionRecord: lambda delta, record: delta.topics.put_partition(record),
    meta.PartitionChangeRecord: lambda delta, record: delta.topics.change_partition(record),
    meta.ClearElrRecord: lambda delta, record: delta.topics.clear_elr(record),
    meta.RemoveTopicRecord: MetadataDelta._remove_topic,
    meta.ConfigRecord: MetadataDelta._config,
    meta.FeatureLevelRecord: MetadataDelta._feature,
    meta.ProducerIdsRecord: MetadataDelta._producer_ids,
    registration.RegisterBrokerRecord: lambda delta, record: delta.registrations.register(record),
    registration.UnregisterBrokerRecord: lambda delta, record: delta.registrations.unregister(record),
    registration.BrokerRegistrationChangeRecord: lambda delta, record: delta.registrations.change(record),
    registration.FenceBrokerRecord: lambda delta, record: delta.registrations.set_fenced(record, True),
    registration.UnfenceBrokerRecord: lambda delta, record: delta.registrations.set_fenced(record, False),
    registration.RegisterControllerRecord: lambda delta, record: delta.registrations.register_controller(
        record
    ),
}
_SILENT: Final = frozenset({meta.NoOpRecord, meta.ZkMigrationStateRecord})
