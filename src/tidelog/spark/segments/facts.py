"""What the files beside a replica's segments say of it: where it begins and ends, how far it is committed and compacted, and who led it when.

For the audit, which compares them with the batches. Unlike a reader it does not refuse what is missing: that is among what it looks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.client.metadata import TopicPartition
from tidelog.errors import CorruptDataError
from tidelog.spark.segments.bounds import Checkpoints
from tidelog.spark.segments.layout import PartitionDirectory, all_partition_directories
from tidelog.spark.segments.plan import Stretch
from tidelog.spark.segments.stored import StoredLog
from tidelog.storage import checkpoints, files
from tidelog.storage.epoch_cache import EpochEntry
from tidelog.storage.posix_disk import PosixDisk

_NO_END: Final = (1 << 63) - 1


class SegmentFacts(NamedTuple):
    base_offset: int
    end_offset: int
    """Where the next segment begins, or the log ends."""
    stretch: Stretch
    """The whole file."""


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    tp: TopicPartition
    directory: str
    data_dir: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int | None
    """As checkpointed; None: nothing says it."""
    cleaned_to: int | None
    """Below this offset the log was compacted at least once; None: no checkpoint says that it ever was."""
    epochs: tuple[EpochEntry, ...] | None
    """As checkpointed; None: there is no such file, as in young logs."""
    epochs_problem: str | None
    segments: tuple[SegmentFacts, ...]

    @property
    def committed_end(self) -> int:
        return self.log_end_offset if self.high_watermark is None else self.high_watermark


def replicas_in(paths: Sequence[str], takes: Callable[[str], bool]) -> list[ReplicaFacts]:
    """Every replica of the topics that `takes` says yes to, by partition; replicas of one in the order of the paths."""
    checkpointed = Checkpoints(PosixDisk(max_open_files=64, read_only=True))
    chosen = [each for each in all_partition_directories(paths) if takes(each.tp.topic)]
    return [facts_of(each, checkpointed) for each in sorted(chosen, key=lambda each: each.tp)]


def facts_of(partition: PartitionDirectory, checkpointed: Checkpoints) -> ReplicaFacts:
    log = StoredLog(partition)
    try:
        tp, data_dir = partition.tp, partition.data_dir
        start = checkpointed.offset(data_dir, files.LOG_START_OFFSET_CHECKPOINT, tp)
        epochs, problem = _epochs(log)
        return ReplicaFacts(
            tp,
            partition.path,
            data_dir,
            max(log.first_offset, start or 0),
            log.end_offset(),
            checkpointed.offset(data_dir, files.HIGH_WATERMARK_CHECKPOINT, tp),
            checkpointed.offset(data_dir, files.CLEANER_OFFSET_CHECKPOINT, tp),
            epochs,
            problem,
            tuple(
                SegmentFacts(
                    each.base_offset,
                    log.end_offset() if each.end_offset is None else each.end_offset,
                    Stretch(
                        tp,
                        each.path,
                        each.size,
                        each.end_offset is not None,
                        0,
                        each.size,
                        0,
                        _NO_END,
                        may_be_torn=each.end_offset is None,
                    ),
                )
                for each in log.segments
            ),
        )
    finally:
        log.close()


def _epochs(log: StoredLog) -> tuple[tuple[EpochEntry, ...] | None, str | None]:
    path = files.join(log.directory, files.LEADER_EPOCH_CHECKPOINT)
    try:
        found = checkpoints.read_epochs(log.disk, path)
    except CorruptDataError as error:
        return None, str(error)
    return None if found is None else tuple(found), None
