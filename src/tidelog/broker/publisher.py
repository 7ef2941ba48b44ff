"""From metadata to what this broker does: partitions opened and removed, settings applied.

The image says what should be; this makes it so after every change, and once after start-up. Directories that fail on the way go
offline, and everything else goes on.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.broker.partitions import OfflinePartitionError
from tidelog.broker.settings import connection_limits
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import MetadataImage, PartitionImage, ResourceType, TopicImage
from tidelog.storage.disk import DiskError

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

logger = logging.getLogger("tidelog.broker")

PARTITIONS_PER_TURN = 20
"""Partitions opened before other work gets a turn of the loop."""


class MetadataPublisher:
    """Implements `tidelog.broker.metadata_service.Publisher`. Until `open_all` only settings are followed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._serving = False

    async def open_all(self, image: MetadataImage) -> None:
        """Start-up: every partition that the image places here; what is on disk beyond that is set aside."""
        self._serving = True
        for count, (topic, index, partition) in enumerate(list(image.partitions()), 1):
            self._open(topic, index, partition, is_new=False)
            if count % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._broker.partitions.set_aside_strays()

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        broker_settings_changed = any(key.type == ResourceType.BROKER for key in delta.changed_configs)
        if broker_settings_changed:
            self.apply_broker_settings(image)
        if not self._serving:
            return
        partitions = self._broker.partitions
        for gone in delta.topics.deleted:
            partitions.remove_topic(gone.name, gone.topic_id)
        for topic_id, changed in delta.topics.changed_partitions().items():
            topic = image.topics_by_id[topic_id]
            for count, (index, partition) in enumerate(changed.items(), 1):
                self._open(topic, index, partition, is_new=True)
                if count % PARTITIONS_PER_TURN == 0:
                    await asyncio.sleep(0)
        if broker_settings_changed:
            partitions.reconfigure()
        else:
            partitions.reconfigure(
                key.name for key in delta.changed_configs if key.type == ResourceType.TOPIC
            )

    def apply_broker_settings(self, image: MetadataImage) -> None:
        broker = self._broker
        broker.config = broker.config.with_dynamic(
            node=image.config(ResourceType.BROKER, str(broker.node_id)), default=image.broker_defaults
        )
        for problem in broker.config.ignored:
            logger.warning("%s", problem)
        limits = connection_limits(broker.config)
        for listener in broker.listeners:
            listener.limits = limits

    def _open(self, topic: TopicImage, index: int, partition: PartitionImage, *, is_new: bool) -> None:
        if self._broker.node_id not in partition.replicas:
            return
        partitions = self._broker.partitions
        try:
            partitions.open(topic.name, index, topic.topic_id, partition.leader_epoch, is_new=is_new)
        except DiskError as error:
            partitions.dir_failed(partitions.log_dir_containing(error.path), error)
        except OfflinePartitionError as error:
            logger.error("%s", error)
