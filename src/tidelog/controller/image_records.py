"""A metadata image as the records that build it from nothing: what a snapshot holds (I15).

Owns the order: features first, because they say how the rest is to be read; a topic before its partitions and settings.
Replaying the result on an empty image gives an equal image.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.controller.features import METADATA_VERSION
from tidelog.controller.image import BrokerImage, ControllerImage, MetadataImage, VersionRange
from tidelog.controller.image_security import security_records
from tidelog.controller.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.partition_image import partition_record
from tidelog.controller.registration_records import (
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)


def image_to_records(image: MetadataImage) -> list[MetadataRecord]:
    records: list[MetadataRecord] = feature_records(image.features)
    records += [_controller(controller) for controller in image.controllers.values()]
    records += [_broker(broker) for broker in image.brokers.values()]
    for topic in image.topics_by_name.values():
        records.append(TopicRecord(topic.name, topic.topic_id))
        records += [partition_record(topic.topic_id, index, part) for index, part in topic.partitions.items()]
    for key, settings in image.configs.items():
        records += [ConfigRecord(key.type, key.name, name, value) for name, value in settings.items()]
    if image.next_producer_id:
        records.append(ProducerIdsRecord(broker_id=-1, next_producer_id=image.next_producer_id))
    records += security_records(image.security)
    return records


def feature_records(levels: Mapping[str, int]) -> list[MetadataRecord]:
    """metadata.version comes first: a reader that does not know it must stop there."""
    ordered = sorted(levels.items(), key=lambda item: (item[0] != METADATA_VERSION, item[0]))
    return [FeatureLevelRecord(name, level) for name, level in ordered]


def _broker(broker: BrokerImage) -> RegisterBrokerRecord:
    cordoned = broker.cordoned_log_dirs
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        is_migrating_zk_broker=broker.is_migrating_zk_broker,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[BrokerEndpoint(*endpoint) for endpoint in broker.endpoints],
        features=_features(broker.features),
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
        cordoned_log_dirs=None if cordoned is None else list(cordoned),
    )


def _controller(controller: ControllerImage) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller.controller_id,
        controller.incarnation_id,
        controller.zk_migration_ready,
        [ControllerEndpoint(*endpoint) for endpoint in controller.endpoints],
        [ControllerFeature(name, low, high) for name, (low, high) in controller.features.items()],
    )


def _features(features: Mapping[str, VersionRange]) -> list[BrokerFeature]:
    return [BrokerFeature(name, low, high) for name, (low, high) in features.items()]
