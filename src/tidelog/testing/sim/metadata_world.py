"""Storage together with the metadata that says which partitions exist: what a broker does with directories that it does not know (I6).

A `MetadataWorld` writes the controller's records before it makes or removes a topic, as a broker does. `serve` is a broker's start without its
sockets: the image is read from the metadata log, partitions that it names are led, others are set aside, and a year passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tidelog.cluster.partitions import OfflinePartitionError, PartitionTable
from tidelog.cluster.replicas import assignment_of
from tidelog.cluster.topic_policy import TopicPolicy
from tidelog.controller import snapshot_files
from tidelog.controller.image import MetadataImage
from tidelog.controller.metadata_log import encode_batches
from tidelog.controller.metadata_records import PartitionRecord, RemoveTopicRecord, TopicRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.records.batch import read_header
from tidelog.records.validation import BatchRules
from tidelog.replication.partition import Partition
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_manager import LogManager
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.storage_checks import Violation, payloads
from tidelog.testing.sim.storage_world import SMALL, StorageWorld

NODE: Final = 1
READ_BYTES: Final = 1 << 20
_YEAR_MS: Final = 365 * 24 * 60 * 60 * 1000


class MetadataWorld(StorageWorld):
    def create(
        self, topic: str = "orders", partitions: Iterable[int] = (0,), config: LogConfig | None = None
    ) -> None:
        wanted = list(partitions)
        topic_id = (self.topics_made + 1).to_bytes(16, "big")
        records: list[MetadataRecord] = [TopicRecord(name=topic, topic_id=topic_id)]
        records += [
            PartitionRecord(
                partition_id=partition,
                topic_id=topic_id,
                replicas=[NODE],
                isr=[NODE],
                leader=NODE,
                leader_epoch=0,
                partition_epoch=0,
            )
            for partition in wanted
        ]
        self._write(records)
        super().create(topic, wanted, config)

    def delete_topic(self, topic: str = "orders") -> None:
        for key in self.manager.logs:
            if key[0] == topic:
                self.ledger.removing(key, self.now)
        self._write([RemoveTopicRecord(topic_id=self.ledger.incarnation((topic, 0)).topic_id)])
        super().delete_topic(topic)

    def _write(self, records: list[MetadataRecord]) -> None:
        """Durable when it returns."""
        log = self.manager.open_metadata_log()
        now_ms = self.clock.wall_ms()
        for batch in encode_batches(
            records, base_offset=log.log_end_offset, leader_epoch=1, timestamp_ms=now_ms
        ):
            log.append_as_leader(batch.data, read_header(batch.data), leader_epoch=1, now_ms=now_ms)
        log.flush()


class _NoFlushes:
    def request(self, partition: Partition, /) -> None:
        """What recovery found stays as it is."""


def serve(world: StorageWorld, disk: SimDisk, operations: int) -> LogManager:
    """Start as a broker does, and let every deferred deletion come due. CorruptDataError: it refuses to start."""
    manager = world.manager_on(disk, operations)
    manager.open_directories()
    image = _image(manager.open_metadata_log())
    topics = image.topics_by_name
    manager.load(topic_id_of=lambda name: topics[name].topic_id if name in topics else None)
    table = PartitionTable(
        manager,
        _NoFlushes(),
        lambda topic: TopicPolicy(SMALL, BatchRules(), True),
        broker_id=NODE,
        now=world.clock.monotonic,
        on_dir_offline=lambda path: None,
    )
    for topic, index, partition in image.partitions():
        try:
            table.open(topic.name, index, topic.topic_id, assignment_of(partition))
        except OfflinePartitionError:
            continue
    table.set_aside_strays()
    later = world.clock.wall_ms() + _YEAR_MS
    manager.tick(later)
    disposal = manager.disposal(later)
    if disposal is not None:
        disposal.run()
        manager.disposed(disposal)
    return manager


def _image(log: Log) -> MetadataImage:
    """What a node that is alone knows when it starts."""

    def read_from(offset: int) -> Iterator[bytes]:
        while offset < log.log_end_offset:
            found = log.read(offset, READ_BYTES, end_offset=log.log_end_offset)
            assert found.range is not None and found.next_offset is not None
            yield found.range.read()
            found.range.release()
            offset = found.next_offset

    return snapshot_files.load(
        log.disk,
        log.directory,
        log_start=log.log_start_offset,
        log_end=log.log_end_offset,
        read_from=read_from,
    ).image


def i6_no_synced_batch_has_left_the_disk(world: StorageWorld, disk: SimDisk, operations: int) -> None:
    """Served or not, under whatever name: unless somebody has deleted the topic, its records are in some file."""
    on_disk: set[bytes] = set()
    for path in _log_files(disk, world.dirs):
        on_disk.update(payloads(disk, path))
    for lives in world.ledger.partitions.values():
        for life in lives:
            if life.removing is not None and life.removing <= operations:
                continue
            version = life.candidates(operations)[:1]
            for batch in version[0].batches if version else ():
                synced = batch.stored.last_offset < version[0].floor(operations)
                if synced and batch.stored.payload not in on_disk:
                    raise Violation(
                        "I6",
                        f"the batch at {batch.stored.base_offset} of {life.key} was deleted by nobody and is gone",
                    )


def _log_files(disk: SimDisk, paths: Iterable[str]) -> list[str]:
    found: list[str] = []
    for path in paths:
        for name in disk.list_dir(path):
            child = f"{path}/{name}"
            if disk.is_dir(child):
                found += _log_files(disk, [child])
            elif ".log" in name:
                found.append(child)
    return found
