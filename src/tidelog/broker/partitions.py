"""The partitions on this broker, by topic and number; created, changed and removed as the metadata says.

The metadata image is the only authority on which partitions exist. A directory on disk that the image does not know is set
aside under a `-stray` name and never deleted (I6): losing metadata must not lose data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tidelog.broker.topic_policy import TopicPolicy
from tidelog.errors import RequestError
from tidelog.replication.partition import FlushQueue, Partition
from tidelog.storage.disk import DiskError
from tidelog.storage.files import parent
from tidelog.storage.log_manager import LogManager
from tidelog.wire.error_codes import ErrorCode

logger = logging.getLogger("tidelog.broker")


def log_dir_of(partition: Partition) -> str:
    return parent(partition.log.directory)


class PartitionTable:
    def __init__(self, logs: LogManager, flush_queue: FlushQueue, policy_of: Callable[[str], TopicPolicy]) -> None:
        self._logs = logs
        self._flush_queue = flush_queue
        self._policy_of = policy_of
        self._by_topic: dict[str, dict[int, Partition]] = {}
        self._names: dict[bytes, str] = {}

    def all(self) -> list[Partition]:
        return [partition for partitions in self._by_topic.values() for partition in partitions.values()]

    def leader_of(self, topic: str, index: int) -> Partition:
        """The partition, if it is led here. The error is one that makes clients refresh their metadata."""
        partitions = self._by_topic.get(topic)
        partition = partitions.get(index) if partitions is not None else None
        if partition is None:
            raise RequestError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"this broker does not host {topic}-{index}"
            )
        return partition

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._names.get(topic_id)

    # ---- what the metadata asks for

    def open(self, topic: str, index: int, topic_id: bytes, leader_epoch: int) -> Partition:
        """Lead a partition: its log is opened, or created when there is none."""
        policy = self._policy_of(topic)
        log = self._logs.logs.get((topic, index))
        if log is not None and log.topic_id != topic_id:
            logger.warning(
                "%s-%d on disk belongs to another topic of that name (id %s); it is set aside",
                topic, index, log.topic_id.hex(),
            )  # fmt: skip
            self._logs.set_aside(topic, index)
            log = None
        if log is None:
            log = self._logs.create(topic, index, topic_id, policy.log)
        else:
            log.update_config(policy.log)
        partition = Partition(
            topic,
            index,
            topic_id,
            log,
            leader_epoch=leader_epoch,
            rules=policy.rules,
            durable=policy.durable,
            flush_queue=self._flush_queue,
        )
        self._by_topic.setdefault(topic, {})[index] = partition
        self._names[topic_id] = topic
        partition.begin_leading()
        return partition

    def set_aside_strays(self) -> None:
        """After start-up: directories that no topic of the metadata claims."""
        for topic, index in sorted(self._logs.logs):
            if index not in self._by_topic.get(topic, {}):
                logger.warning(
                    "%s-%d is on disk but not in the cluster's metadata; its directory is kept under a -stray name",
                    topic, index,
                )  # fmt: skip
                self._logs.set_aside(topic, index)

    def remove_topic(self, topic: str) -> None:
        for partition in self._by_topic.pop(topic, {}).values():
            self._names.pop(partition.topic_id, None)
            partition.stop(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            try:
                self._logs.delete(topic, partition.index)
            except DiskError as error:
                self._logs.fail_dir(log_dir_of(partition), error)

    def reconfigure(self, topics: Iterable[str] | None = None) -> None:
        """Apply changed settings to the given topics, or to all of them."""
        for topic in list(self._by_topic) if topics is None else topics:
            partitions = self._by_topic.get(topic)
            if not partitions:
                continue
            policy = self._policy_of(topic)
            for partition in partitions.values():
                partition.log.update_config(policy.log)
                partition.rules = policy.rules
                partition.set_durable(policy.durable)

    # ---- failing disks

    def disk_failed(self, partition: Partition, error: DiskError) -> None:
        """The directory goes offline with all its partitions; the others go on (I7)."""
        log_dir = log_dir_of(partition)
        if log_dir in self._logs.offline_dirs:
            return
        logger.error("log directory %s goes offline: %s", log_dir, error)
        self._logs.fail_dir(log_dir, error)
        for other in self.all():
            if log_dir_of(other) == log_dir:
                other.stop(ErrorCode.KAFKA_STORAGE_ERROR)
