"""Where stored logs begin and end for a reader, and what in between must not be seen: what `tidelog.spark.bounds` asks brokers for, from files.

The beginning is never below the log start, the end never above the high watermark, or the last stable offset for readers of committed records. Both numbers are in checkpoints beside the partitions, which a broker
writes every few seconds: a directory tells the past. A log with no such checkpoint, such as the backup of one partition, is refused, unless `highWatermark=none` says that its records count as committed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import FoundOffset
from tidelog.errors import CorruptDataError
from tidelog.records.record import first_at_or_after_timestamp
from tidelog.spark.loss import LogView
from tidelog.spark.options import (
    Assigned,
    Names,
    Pattern,
    Subscription,
)
from tidelog.spark.segments.errors import DamagedSegmentError, SegmentsError
from tidelog.spark.segments.layout import INTERNAL, PartitionDirectory
from tidelog.spark.segments.options import SegmentOptions
from tidelog.spark.segments.stored import StoredLog, StoredSegment
from tidelog.spark.segments.transactions import Aborted, stability
from tidelog.storage import checkpoints, files
from tidelog.storage.batch_scan import read_batch
from tidelog.storage.posix_disk import PosixDisk

logger: Final = logging.getLogger(__name__)


class Horizon(NamedTuple):
    """What of a log counts as there."""

    log_start_offset: int
    high_watermark: int
    durable_end: int | None
    """What a start would trust without reading it; None: everything, as the broker stopped in order or no checkpoint says otherwise."""


class Checkpoints:
    """The checkpoints of data directories, each read once."""

    def __init__(self, disk: PosixDisk) -> None:
        self._disk = disk
        self._found: dict[str, dict[tuple[str, int], int] | None] = {}

    def offset(self, data_dir: str, name: str, tp: TopicPartition) -> int | None:
        found = self.of(data_dir, name)
        return None if found is None else found.get((tp.topic, tp.partition))

    def of(self, data_dir: str, name: str) -> dict[tuple[str, int], int] | None:
        path = files.join(data_dir, name)
        if path not in self._found:
            try:
                self._found[path] = checkpoints.read_offsets(self._disk, path)
            except CorruptDataError as error:
                raise SegmentsError(f"{error}; highWatermark=none reads without checkpoints") from error
        return self._found[path]

    def stopped_cleanly(self, data_dir: str) -> bool:
        return self._disk.exists(files.join(data_dir, files.CLEAN_SHUTDOWN))


def horizon(
    log: StoredLog,
    data_dir: str,
    checkpointed: Checkpoints,
    *,
    uses_high_watermark: bool,
    allows_loss: bool = False,
) -> Horizon:
    start = checkpointed.offset(data_dir, files.LOG_START_OFFSET_CHECKPOINT, log.tp)
    log_start = max(log.first_offset, start or 0)
    durable_end = None
    if not checkpointed.stopped_cleanly(data_dir):
        durable_end = checkpointed.offset(data_dir, files.RECOVERY_POINT_CHECKPOINT, log.tp)
    log_end = log.end_offset()
    if not uses_high_watermark or log.is_empty:
        return Horizon(log_start, max(log_end, log_start), durable_end)
    known = checkpointed.of(data_dir, files.HIGH_WATERMARK_CHECKPOINT)
    if known is None:
        raise SegmentsError(
            f"{files.join(data_dir, files.HIGH_WATERMARK_CHECKPOINT)} is not there, so it is not known which records of {log.tp} are committed;"
            " put the checkpoint of the data directory beside the partition, or set highWatermark to none to read up to the end of the log"
        )
    water = known.get((log.tp.topic, log.tp.partition))
    if water is None:
        logger.warning(
            "%s: no high watermark of %s was checkpointed yet, so none of its records counts as committed; highWatermark=none reads them",
            files.join(data_dir, files.HIGH_WATERMARK_CHECKPOINT),
            log.tp,
        )
        water = log_start
    if water > log_end and not allows_loss:
        raise SegmentsError(
            f"{log.tp} was committed up to offset {water}, and its files in {log.directory} end at {log_end}: records are lost;"
            " read another replica, or set failOnDataLoss to false to read what is left"
        )
    return Horizon(log_start, max(min(water, log_end), log_start), durable_end)


def chosen(found: Sequence[PartitionDirectory], subscription: Subscription) -> list[PartitionDirectory]:
    """The partitions that are asked for, as far as they are there."""
    match subscription:
        case Pattern(pattern):
            matches = re.compile(pattern).fullmatch
            return [
                each for each in found if not each.tp.topic.startswith(INTERNAL) and matches(each.tp.topic)
            ]
        case Names(topics):
            return [each for each in found if each.tp.topic in topics]
        case Assigned(partitions):
            return [each for each in found if each.tp in partitions]


class StoredLogs:
    """The logs of a subscription, as far as their files go."""

    def __init__(self, partitions: Iterable[PartitionDirectory], options: SegmentOptions) -> None:
        disk = PosixDisk(max_open_files=256, read_only=True)
        checkpointed = Checkpoints(disk)
        self.logs: dict[TopicPartition, StoredLog] = {}
        self.aborted: dict[TopicPartition, tuple[Aborted, ...]] = {}
        earliest: dict[TopicPartition, int] = {}
        latest: dict[TopicPartition, int] = {}
        for each in partitions:
            log = self.logs[each.tp] = StoredLog(each, disk=disk)
            found = horizon(
                log,
                each.data_dir,
                checkpointed,
                uses_high_watermark=options.high_watermark == "checkpoint",
                allows_loss=not options.source.fail_on_data_loss,
            )
            earliest[each.tp], latest[each.tp] = found.log_start_offset, found.high_watermark
            if options.reads_committed:
                stable = stability(
                    log,
                    log_start_offset=found.log_start_offset,
                    high_watermark=found.high_watermark,
                    durable_end=found.durable_end,
                    skips_damage=options.skips_damage,
                )
                latest[each.tp], self.aborted[each.tp] = stable.last_stable_offset, stable.aborted
        self.view = LogView(earliest, latest)

    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundOffset]:
        found = {}
        for tp, timestamp in times_ms.items():
            offset = first_offset_at(self.logs[tp], timestamp, self.view.earliest[tp], self.view.latest[tp])
            found[tp] = FoundOffset(-1 if offset is None else offset, timestamp, -1)
        return found

    def close(self) -> None:
        for log in self.logs.values():
            log.close()


def first_offset_at(log: StoredLog, timestamp: int, start_offset: int, end_offset: int) -> int | None:
    """Offset of the first record in [start, end) that is as late as `timestamp`, as a broker finds it; None if there is none."""
    for segment in log.between(start_offset, end_offset):
        later = segment.later_than(timestamp)
        if later is None:
            continue
        position = segment.floor(max(later, start_offset)).position
        for at, header in segment.headers(position, segment.size):
            if header.base_offset >= end_offset:
                return None
            if header.last_offset < start_offset:
                continue
            if header.max_timestamp >= timestamp:
                found = _first_in_batch(segment, at, timestamp, start_offset)
                if found is not None:
                    return found if found < end_offset else None
            if header.next_offset >= end_offset:
                return None
    return None


def _first_in_batch(segment: StoredSegment, position: int, timestamp: int, start_offset: int) -> int | None:
    _, header = next(segment.headers(position, segment.size))
    try:
        batch = read_batch(segment.file, position, header)
        if not batch.crc_matches():
            raise CorruptDataError("the batch fails its CRC")
        found = first_at_or_after_timestamp(batch.buffer, 0, header, timestamp, start_offset=start_offset)
    except CorruptDataError as error:
        raise DamagedSegmentError(segment.harm_from(position, header.base_offset, str(error))) from error
    return None if found is None else found[1]
