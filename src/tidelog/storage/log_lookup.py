"""Finds records by time: time index, then a short scan, then the one batch that holds the answer.

Answers as Kafka's ListOffsets does: the first record whose timestamp is at or after the one asked for, in offset order, also where
timestamps are out of order. Only the batch with the answer is decompressed, and within bounds. Never writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.records.batch import BatchHeader
from tidelog.records.record import first_at_or_after_timestamp, iter_records
from tidelog.storage.batch_scan import read_batch, scan_headers
from tidelog.storage.replay import stored_batches

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.segment import Segment


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
    for position, header in scan_headers(segment.file, _scan_start(segment, timestamp), segment.size):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            answer = _first_in_batch(segment, position, header, timestamp, start_offset)
            if answer is not None:
                return answer
    return None


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
    batch = read_batch(segment.file, position, header)
    found = first_at_or_after_timestamp(batch.buffer, 0, header, timestamp, start_offset=start_offset)
    return None if found is None else (found[0], found[1], header.partition_leader_epoch)


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
    """DeleteRecords has moved the log start past the record that the indexes know: look at what is left."""
    best: tuple[int, int, int] | None = None
    start_offset = log.log_start_offset
    for segment, position, header in stored_batches(log.segments, start_offset, log.log_end_offset):
        if header.base_offset < start_offset:
            found = _max_of_rest(segment, position, header, start_offset)
        elif header.max_timestamp >= 0 and (best is None or header.max_timestamp > best[0]):
            found = _first_in_batch(segment, position, header, header.max_timestamp, start_offset)
        else:
            continue
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return best


def _max_of_rest(
    segment: Segment, position: int, header: BatchHeader, start_offset: int
) -> tuple[int, int, int] | None:
    """The log start lies inside this batch: its header speaks of records that are deleted too."""
    batch = read_batch(segment.file, position, header)
    rest = [record for record in iter_records(batch.buffer, 0, header) if record.offset >= start_offset]
    latest = max(rest, key=lambda record: record.timestamp, default=None)
    return None if latest is None else (latest.timestamp, latest.offset, header.partition_leader_epoch)
