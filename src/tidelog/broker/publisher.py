"""From metadata to what this broker does: partitions opened and removed, settings applied.

The image says what should be; this makes it so after every change, and once after start-up. Directories that fail on the way go
offline, and everything else goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from tidelog.broker.partitions import NewPartition, OfflinePartitionError
from tidelog.broker.settings import connection_limits
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import MetadataImage, PartitionImage, ResourceType, TopicImage
from tidelog.storage.disk import DiskError
from tidelog.storage.lifecycle import Creation
from tidelog.storage.log import Log
from tidelog.storage.log_dirs import LogDirError

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

logger = logging.getLogger("tidelog.broker")

CREATIONS_AT_ONCE = 200
"""New logs between two turns of the loop."""
CREATIONS_PER_JOB = 50
PARTITIONS_PER_SLICE = 1000

_Wanted = Iterable[tuple[TopicImage, int, PartitionImage]]


class MetadataPublisher:
    """Implements `tidelog.broker.metadata_service.Publisher`. Until `open_all` only settings are followed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._serving = False

    async def open_all(self, image: MetadataImage) -> None:
        """Start-up: every partition that the image places here; what is on disk beyond that is set aside."""
        self._serving = True
        await self._open(image.partitions(), is_new=False)
        self._broker.partitions.set_aside_strays()
        self._broker.logs.forget_start()
        await self._clean_checkpoints()
        self._broker.groups.metadata_changed(image)

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        broker_settings_changed = any(key.type == ResourceType.BROKER for key in delta.changed_configs)
        if broker_settings_changed:
            self.apply_broker_settings(image)
        if not self._serving:
            return
        partitions = self._broker.partitions
        for gone in delta.topics.deleted:
            await self._remove(gone)
        if delta.topics.deleted:
            await self._clean_checkpoints()
        await self._open(
            (
                (image.topics_by_id[topic_id], index, partition)
                for topic_id, changed in delta.topics.changed_partitions().items()
                for index, partition in changed.items()
            ),
            is_new=True,
        )
        if broker_settings_changed:
            partitions.reconfigure()
        else:
            partitions.reconfigure(
                key.name for key in delta.changed_configs if key.type == ResourceType.TOPIC
            )
        self._broker.groups.metadata_changed(image, delta.topics.deleted)

    def apply_broker_settings(self, image: MetadataImage) -> None:
        broker = self._broker
        broker.config = broker.config.with_dynamic(
            node=image.config(ResourceType.BROKER, str(broker.node_id)), default=image.broker_defaults
        )
        for problem in broker.config.ignored:
            logger.warning("%s", problem)
        broker.logs.keep_free(broker.config.int("log.dir.reserve.bytes"))
        limits = connection_limits(broker.config)
        for listener in broker.listeners:
            listener.limits = limits

    async def _open(self, wanted: _Wanted, *, is_new: bool) -> None:
        """Lead what has a log here; make logs for the others in threads, for they wait for the disk."""
        partitions = self._broker.partitions
        missing: list[NewPartition] = []
        for number, (topic, index, partition) in enumerate(wanted, 1):
            if number % PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)
            if self._broker.node_id not in partition.replicas:
                continue
            try:
                if not partitions.open(topic.name, index, topic.topic_id, partition.leader_epoch):
                    if not is_new:
                        partitions.check_may_be_missing(topic.name, index)
                    missing.append(NewPartition(topic.name, index, topic.topic_id, partition.leader_epoch))
            except OfflinePartitionError as error:
                logger.error("%s", error)
            except DiskError as error:
                self._disk_failed(f"{topic.name}-{index}", error)
        for first in range(0, len(missing), CREATIONS_AT_ONCE):
            await self._create(missing[first : first + CREATIONS_AT_ONCE])

    async def _create(self, missing: Sequence[NewPartition]) -> None:
        partitions = self._broker.partitions
        try:
            creations = partitions.plan_creation(missing)
        except LogDirError as error:
            logger.error("%d partitions cannot be created: %s", len(missing), error)
            return
        jobs = [
            creations[first : first + CREATIONS_PER_JOB]
            for first in range(0, len(creations), CREATIONS_PER_JOB)
        ]
        made = await asyncio.gather(*(self._broker.in_background(partial(_run_all, job)) for job in jobs))
        for new, outcome in zip(missing, chain.from_iterable(made), strict=True):
            try:
                if isinstance(outcome, DiskError):
                    raise outcome
                partitions.lead(outcome, new)
            except DiskError as error:
                self._disk_failed(f"{new.topic}-{new.partition}", error)

    def _disk_failed(self, partition: str, error: DiskError) -> None:
        """On a full disk only the partition that does not fit is offline, not the directory."""
        if error.out_of_space:
            logger.error(
                "%s is offline until there is room and the broker is started again: %s", partition, error
            )
        else:
            partitions = self._broker.partitions
            partitions.dir_failed(partitions.log_dir_containing(error.path), error)

    async def _clean_checkpoints(self) -> None:
        """Checkpoints must not speak of partitions that are gone: a new one of the same name that a crash takes would seem lost."""
        if self._broker.logs.has_stale_checkpoints:
            await self._broker.checkpoint()

    async def _remove(self, topic: TopicImage) -> None:
        partitions = self._broker.partitions
        try:
            removal = partitions.remove_topic(topic.name, topic.topic_id)
            await self._broker.in_background(removal.run)
        except DiskError as error:
            partitions.dir_failed(partitions.log_dir_containing(error.path), error)


def _run_all(creations: Sequence[Creation]) -> list[Log | DiskError]:
    outcomes: list[Log | DiskError] = []
    for creation in creations:
        try:
            outcomes.append(creation.run())
        except DiskError as error:
            outcomes.append(error)
    return outcomes
