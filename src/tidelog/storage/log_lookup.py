"""Finds records by time: time index, then a short scan, then the one batch that holds the answer.

Answers as Kafka's ListOffsets does: the first record whose timestamp is at or after the one asked for, in offset order, also where
timestamps are out of order. Only the batch with the answer is decompressed, and within bounds. Never writes.

Damage (I2) is an error only where it may hold the answer: one from behind it would skip records in silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader, TimestampType
from tidelog.records.outline import iter_outlines
from tidelog.records.record import first_at_or_after_timestamp, records_payload
from tidelog.storage.batch_scan import Batch, read_batch, scan_headers
from tidelog.storage.damage import first_behind
from tidelog.storage.replay import stored_batches

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.segment import Segment

_RECORDS_SEARCHED_MAX: Final = 250_000
_BYTES_SEARCHED_MAX: Final = 32 * 1024 * 1024


def offset_for_timestamp(log: Log, timestamp: int) -> tuple[int, int, int] | None:
    log_start_offset = log.log_start_offset
    for segment in log.segments:
        if segment.size == 0 or segment.max_timestamp < timestamp:
            continue
        found = _first_in_segment(segment, timestamp, log_start_offset)
        if found is not None:
            return found
    return None


def _first_in_segment(segment: Segment, timestamp: int, start_offset: int) -> tuple[int, int, int] | None:
    start, end = _scan_start(segment, timestamp), segment.size
    while True:
        damage = first_behind(segment.damage or (), start)
        stop = end if damage is None else damage.position
        for position, header in scan_headers(segment.file, start, stop) if start < stop else ():
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                answer = _first_in_batch(segment, position, header, timestamp, start_offset)
                if answer is not None:
                    return answer
        if damage is None:
            return None
        if damage.end_offset > start_offset:
            raise CorruptDataError(f"{damage}; what was asked for may stand there")
        start = damage.end_position


def _scan_start(segment: Segment, timestamp: int) -> int:
    """No record before this position is as late as `timestamp`. An index entry that contradicts the log is not believed."""
    indexed, offset = segment.time_index.lookup(timestamp)
    if indexed < 0:
        return 0
    found = segment.find(offset)
    if found is not None and found[1].last_offset == offset and found[1].max_timestamp == indexed:
        return found[0]
    segment.rebuild_indexes()
    indexed, offset = segment.time_index.lookup(timestamp)
    found = segment.find(offset) if indexed >= 0 else None
    return found[0] if found is not None else 0


def _first_in_batch(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> tuple[int, int, int] | None:
    batch = _checked(segment, position, header)
    if header.record_count > _RECORDS_SEARCHED_MAX:
        return _whole_batch(header, start_offset)
    try:
        found = first_at_or_after_timestamp(
            batch.buffer, 0, header, timestamp, start_offset=start_offset, limit=_BYTES_SEARCHED_MAX
        )
    except CorruptDataError:
        return _whole_batch(header, start_offset)
    return None if found is None else (found[0], found[1], header.partition_leader_epoch)


def _whole_batch(header: BatchHeader, start_offset: int) -> tuple[int, int, int]:
    """A batch too large to be searched on the event loop, or whose producer filled it with something else than records (its CRC is
    right): its first offset stands for the one that was asked for. One client's nonsense must not end everybody's searches.
    """
    return header.max_timestamp, max(header.base_offset, start_offset), header.partition_leader_epoch


def max_timestamp_offset(log: Log) -> tuple[int, int, int] | None:
    latest = max(log.segments, key=lambda segment: segment.max_timestamp)  # the oldest of equals
    if latest.size == 0 or latest.max_timestamp < 0:
        return None
    found = latest.find(latest.max_timestamp_offset)
    if found is not None:
        answer = _first_in_batch(latest, found[0], found[1], latest.max_timestamp, log.log_start_offset)
        if answer is not None:
            return answer
    return _max_by_scan(log)


def _max_by_scan(log: Log) -> tuple[int, int, int] | None:
    """DeleteRecords has moved the log start past the record that the indexes know, or a cleaner has removed it: look at what is left."""
    rest: tuple[int, int, int] | None = None
    latest: tuple[Segment, int, BatchHeader] | None = None
    start_offset = log.log_start_offset
    for segment, position, header in stored_batches(log.segments, start_offset, log.log_end_offset):
        if header.base_offset < start_offset:
            rest = _max_of_rest(segment, position, header, start_offset)
        elif header.record_count and header.max_timestamp > (
            -1 if latest is None else latest[2].max_timestamp
        ):  # a cleaner leaves batches without records, which have a time all the same
            latest = segment, position, header
    if latest is None or (rest is not None and rest[0] >= latest[2].max_timestamp):
        return rest
    # Headers tell which batch it is: only that one is opened.
    return _first_in_batch(*latest, latest[2].max_timestamp, start_offset) or rest


def _max_of_rest(
    segment: Segment, position: int, header: BatchHeader, start_offset: int
) -> tuple[int, int, int] | None:
    """The log start lies inside this batch: its header speaks of records that are deleted too."""
    batch = _checked(segment, position, header)
    if header.record_count > _RECORDS_SEARCHED_MAX:
        return _whole_batch(header, start_offset)
    try:
        payload = records_payload(batch.buffer, 0, header, limit=_BYTES_SEARCHED_MAX)
        rest = [outline for outline in iter_outlines(payload, header) if outline[0] >= start_offset]
    except CorruptDataError:
        return _whole_batch(header, start_offset)
    latest = max(rest, key=lambda outline: outline[1], default=None)
    if latest is None:
        return None
    stamped = header.timestamp_type == TimestampType.LOG_APPEND_TIME
    return header.max_timestamp if stamped else latest[1], latest[0], header.partition_leader_epoch


def _checked(segment: Segment, position: int, header: BatchHeader) -> Batch:
    batch = read_batch(segment.file, position, header)
    if not batch.crc_matches():
        raise CorruptDataError(
            f"{segment.file.path}: the batch of offsets {header.base_offset} to {header.last_offset} at position {position} fails its CRC"
        )
    return batch
