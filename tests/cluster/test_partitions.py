"""The partitions of a broker, opened as the metadata says: what a crash has left of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

from tidelog.cluster.partitions import PartitionTable
from tidelog.cluster.topic_policy import TopicPolicy
from tidelog.records.builder import BatchBuilder
from tidelog.records.validation import BatchRules
from tidelog.replication.assignment import Assignment
from tidelog.replication.partition import Partition
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_manager import LogManager
from tidelog.testing.sim.clock import SimClock
from tidelog.testing.sim.disk import SimDisk

TOPIC_ID = bytes(range(16))
ALONE = Assignment(0, 0, 0, (0,), (0,))


class NoFlushes:
    def request(self, partition: Partition, /) -> None: ...


def _started(
    disk: SimDisk, on_dir_offline: Callable[[str], None] = lambda path: None
) -> tuple[LogManager, PartitionTable]:
    """A broker that has opened its logs, before its metadata knew of any topic."""
    logs = LogManager(disk, SimClock(), Random(0), ["/data"], node_id=0, cluster_id="c")
    logs.open_directories()
    logs.load(topic_id_of=lambda topic: None)
    table = PartitionTable(
        logs,
        NoFlushes(),
        lambda topic: TopicPolicy(LogConfig(), BatchRules(), durable=False),
        broker_id=0,
        now=lambda: 0.0,
        on_dir_offline=on_dir_offline,
    )
    return logs, table


def _append(partition: Partition) -> None:
    builder = BatchBuilder()
    builder.append(0, None, b"value")
    partition.append(builder.build(), now_ms=0, produce_version=13)


def test_a_partition_whose_id_a_power_cut_took_has_one_again_for_good() -> None:
    """Found by simulation: the id was never written again, the log was flushed without it, and the next start took it for damaged."""
    disk = SimDisk(Random(0))
    logs, table = _started(disk)
    logs.create("orders", 0, TOPIC_ID, LogConfig())
    disk.open("/data/orders-0/partition.metadata").truncate(0)
    disk = disk.crash("keep_all")
    logs, table = _started(disk)
    partition = table.open("orders", 0, TOPIC_ID, ALONE)
    assert partition is not None
    _append(partition)
    logs.close(clean=True)
    logs, table = _started(disk.crash("lose_unsynced"))
    assert not logs.failed_logs
    partition = table.open("orders", 0, TOPIC_ID, ALONE)
    assert partition is not None
    assert partition.log.log_end_offset == 1


def test_an_id_that_was_given_late_is_not_lost_again() -> None:
    """Found by simulation: it was written after the flush of what the start had found, and a second power cut left half of it."""
    disk = SimDisk(Random(0))
    logs, table = _started(disk)
    logs.create("orders", 0, TOPIC_ID, LogConfig())
    disk.open("/data/orders-0/partition.metadata").truncate(0)
    disk = disk.crash("keep_all")
    logs, table = _started(disk)
    assert table.open("orders", 0, TOPIC_ID, ALONE) is not None
    logs, table = _started(disk.crash("lose_unsynced"))
    assert not logs.failed_logs
    assert logs.logs["orders", 0].topic_id == TOPIC_ID


def test_a_directory_that_fails_in_a_checkpoint_is_told_of_also_without_partitions() -> None:
    """Found by simulation: storage knew first, and a broker that had no partition yet went on, registered and active, without a disk."""
    disk = SimDisk(Random(0))
    told: list[str] = []
    logs, table = _started(disk, told.append)
    disk.fail("sync directory", errno.EIO)
    checkpoint = logs.checkpoint()
    checkpoint.run()
    failed = checkpoint.finish(0)
    assert list(failed) == ["/data"]
    for _ in range(2):
        for path, error in failed.items():
            table.dir_failed(path, error)
    assert told == ["/data"]
