"""The partitions on this broker, by topic and number; created, changed and removed as the metadata says.

The metadata image is the only authority on which partitions exist. A directory on disk that the image does not know is set
aside under a `-stray` name and never deleted (I6): losing metadata must not lose data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tidelog.cluster.topic_policy import TopicPolicy
from tidelog.controller.image import MetadataImage
from tidelog.errors import RequestError, TidelogError
from tidelog.replication.assignment import Assignment
from tidelog.replication.leader import ALONE, ReplicationSettings
from tidelog.replication.partition import FlushQueue, Partition
from tidelog.storage.disk import DiskError
from tidelog.storage.files import parent
from tidelog.storage.lifecycle import Creation, Removal
from tidelog.storage.log import Log
from tidelog.storage.log_config import NEVER
from tidelog.storage.log_manager import LogManager
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.types import ZERO_UUID

logger = logging.getLogger("tidelog.broker")


def log_dir_of(partition: Partition) -> str:
    return parent(partition.log.directory)


class NewPartition(NamedTuple):
    topic: str
    partition: int
    topic_id: bytes
    assignment: Assignment


class OfflinePartitionError(TidelogError):
    """The partition exists and cannot be served here."""


class PartitionTable:
    def __init__(
        self,
        logs: LogManager,
        flush_queue: FlushQueue,
        policy_of: Callable[[str], TopicPolicy],
        *,
        broker_id: int,
        now: Callable[[], float],
        on_dir_offline: Callable[[str], None],
        replication: ReplicationSettings = ALONE,
        image: Callable[[], MetadataImage] = MetadataImage,
    ) -> None:
        """`image`: the metadata, asked only about partitions that are not here."""
        self._image = image
        self._broker_id = broker_id
        self._now = now
        self._replication = replication
        self._logs = logs
        self._flush_queue = flush_queue
        self._policy_of = policy_of
        self._on_dir_offline = on_dir_offline
        self._dirs_told: set[str] = set()
        """Directories of which whoever runs the broker knows that they are offline. Storage may know it before."""
        self._by_topic: dict[str, dict[int, Partition]] = {}
        self._names: dict[bytes, str] = {}
        # Partitions of the metadata that could not be opened: clients hear of a failing disk, not of a missing topic.
        self._offline: dict[str, set[int]] = {}
        self._policies: dict[str, TopicPolicy] = {}
        # Topics with a `flush.ms`: the only partitions that somebody must look at from time to time.
        self._timed: dict[str, None] = {}

    def all(self) -> list[Partition]:
        return [partition for partitions in self._by_topic.values() for partition in partitions.values()]

    def find(self, topic: str, index: int) -> Partition | None:
        """The partition, if it has a replica here."""
        partitions = self._by_topic.get(topic)
        return partitions.get(index) if partitions is not None else None

    def leader_of(self, topic: str, index: int) -> Partition:
        """The partition, if it is led here. The error is one that makes clients refresh their metadata."""
        partition = self.find(topic, index)
        if partition is None:
            if index in self._offline.get(topic, ()):
                raise RequestError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{index} is offline; the broker's log says why"
                )
            known = self._image().topic(topic)
            if known is not None and index in known.partitions:
                raise RequestError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} has no replica on this broker"
                )
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{index}")
        if partition.leader is None and partition.stopped_with is None:
            raise RequestError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{topic}-{index} is led by another broker in leader epoch {partition.leader_epoch}",
            )
        return partition

    def topic_name(self, topic_id: bytes) -> str | None:
        """Of any topic of the cluster; those with a replica here are found first, and for as long as it is here."""
        name = self._names.get(topic_id)
        if name is None:
            known = self._image().topics_by_id.get(topic_id)
            name = None if known is None else known.name
        return name

    # ---- what the metadata asks for

    def open(self, topic: str, index: int, topic_id: bytes, assignment: Assignment) -> Partition | None:
        """Lead or follow a partition whose log is here. None: it has none, and must be created.

        OfflinePartitionError when its log is here and cannot be used.
        """
        known = self._by_topic.get(topic, {}).get(index)
        if known is not None and known.topic_id == topic_id:
            known.assign(assignment, now=self._now())
            return known
        self._names[topic_id] = topic
        self._offline.setdefault(topic, set()).add(index)  # until it is open
        log = self._existing_log(topic, index, topic_id)
        return None if log is None else self._serve(log, topic_id, assignment)

    def plan_creation(self, wanted: Sequence[NewPartition]) -> list[Creation]:
        """Logs to be made for partitions that have none; `serve` each when it is done."""
        return self._logs.plan_creation(
            [((new.topic, new.partition), new.topic_id, self._policy(new.topic).log) for new in wanted]
        )

    def serve(self, log: Log, new: NewPartition) -> Partition | None:
        """Lead or follow a partition whose log was just made. Its directory may have gone offline meanwhile; then it stays offline, too."""
        if parent(log.directory) in self._logs.offline_dirs:
            log.close()
            return None
        self._logs.adopt(log)
        return self._serve(log, new.topic_id, new.assignment)

    def _serve(self, log: Log, topic_id: bytes, assignment: Assignment) -> Partition:
        policy = self._policy(log.topic)
        log.update_config(policy.log)
        partition = Partition(
            log.topic,
            log.partition,
            topic_id,
            log,
            broker_id=self._broker_id,
            rules=policy.rules,
            durable=policy.durable,
            flush_queue=self._flush_queue,
            min_isr=policy.min_isr,
            settings=self._replication,
        )
        partition.assign(assignment, now=self._now())
        self._by_topic.setdefault(log.topic, {})[log.partition] = partition
        self._offline[log.topic].discard(log.partition)
        return partition

    def _policy(self, topic: str) -> TopicPolicy:
        """Worked out once for all partitions of a topic; `reconfigure` does it again."""
        policy = self._policies.get(topic)
        if policy is None:
            policy = self._policies[topic] = self._policy_of(topic)
            if policy.log.flush_ms < NEVER:
                self._timed[topic] = None
            else:
                self._timed.pop(topic, None)
        return policy

    def with_flush_interval(self) -> list[Partition]:
        """Partitions of topics with a `flush.ms`."""
        return [partition for topic in self._timed for partition in self._by_topic.get(topic, {}).values()]

    def _existing_log(self, topic: str, index: int, topic_id: bytes) -> Log | None:
        if (topic, index) in self._logs.failed_logs:
            raise OfflinePartitionError(f"{topic}-{index} is offline: {self._logs.failed_logs[topic, index]}")
        log = self._logs.logs.get((topic, index))
        if log is None:
            return None
        if log.topic_id == ZERO_UUID:
            # A power cut took its id before the first flush. Whoever opened it did not know the topic yet: metadata comes later.
            self._logs.claim(log, topic_id)
        if log.topic_id == topic_id:
            return log
        kept = self._logs.set_aside(topic, index)
        logger.warning(
            "%s-%d on disk is of an earlier topic of that name; it is kept as %s", topic, index, kept
        )
        return None

    def check_may_be_missing(self, topic: str, index: int) -> None:
        """A partition that is not new has no log: it was made and never flushed when the machine lost its power, or its directory
        was removed while nobody had flushed it.

        OfflinePartitionError when it may be in a directory that cannot be read, or when a checkpoint knows of records in it:
        an empty log must not take its place, and give their offsets out again (I1, I6).
        """
        if self._logs.offline_dirs:
            raise OfflinePartitionError(
                f"{topic}-{index} is offline: it is not in the log directories that work, and these do not: "
                + ", ".join(self._logs.offline_dirs)
            )
        known = self._logs.lost((topic, index))
        if known is not None:
            raise OfflinePartitionError(
                f"{topic}-{index} is offline: its directory is gone, and a checkpoint in {known.log_dir} knows it up to offset"
                f" {known.offset}. Bring the directory back and start again, or delete the topic"
            )
        logger.warning("%s-%d is in the metadata but not on disk; it starts empty", topic, index)

    def set_aside_strays(self) -> None:
        """After start-up: directories that no topic of the metadata claims."""
        for (topic, index), log in sorted(self._logs.logs.items()):
            if (topic, index) not in self._logs.logs:
                continue  # its directory went offline just now
            if index not in self._by_topic.get(topic, {}) and index not in self._offline.get(topic, ()):
                logger.warning(
                    "%s-%d is on disk but not in the cluster's metadata; its directory is kept under a -stray name",
                    topic, index,
                )  # fmt: skip
                try:
                    self._logs.set_aside(topic, index)
                except DiskError as error:
                    self.dir_failed(parent(log.directory), error)

    def remove_topic(self, topic: str, topic_id: bytes) -> Removal:
        """Serve a topic no more. It stays deleted after a crash once the removal ran."""
        self._names.pop(topic_id, None)
        self._policies.pop(topic, None)
        self._timed.pop(topic, None)
        offline = self._offline.pop(topic, set())
        self._logs.forget((topic, index) for index in offline)
        partitions = self._by_topic.pop(topic, {})
        for partition in partitions.values():
            partition.stop(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self._logs.remove(
            [(topic, index) for index in (*partitions, *offline) if (topic, index) in self._logs.logs]
        )

    def reconfigure(self, topics: Iterable[str] | None = None) -> None:
        """Apply changed settings to the given topics, or to all of them."""
        for topic in list(self._by_topic) if topics is None else topics:
            self._policies.pop(topic, None)
            partitions = self._by_topic.get(topic)
            if not partitions:
                continue
            policy = self._policy(topic)
            for partition in partitions.values():
                partition.log.update_config(policy.log)
                partition.rules = policy.rules
                partition.set_durable(policy.durable)
                partition.set_min_isr(policy.min_isr)

    # ---- failing disks

    def is_online(self, topic: str, index: int) -> bool:
        partition = self._by_topic.get(topic, {}).get(index)
        return partition is not None and partition.stopped_with is None

    def log_dir_containing(self, path: str) -> str:
        for directory in self._logs.dirs:
            if path == directory.path or path.startswith(directory.path + "/"):
                return directory.path
        raise AssertionError(f"{path} is in none of the log directories")

    def disk_failed(self, partition: Partition, error: DiskError) -> None:
        self.dir_failed(log_dir_of(partition), error)

    def dir_failed(self, path: str, error: Exception) -> None:
        """The directory goes offline with all its partitions; the others go on (I7)."""
        affected = [
            partition
            for partition in self.all()
            if partition.stopped_with is None and log_dir_of(partition) == path
        ]
        if affected or path not in self._dirs_told:
            self._dirs_told.add(path)
            logger.error("log directory %s goes offline with %d partitions: %s", path, len(affected), error)
            self._logs.fail_dir(path, error)
            self._on_dir_offline(path)
        for partition in affected:
            partition.stop(ErrorCode.KAFKA_STORAGE_ERROR)
