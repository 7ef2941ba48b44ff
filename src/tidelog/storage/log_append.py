"""Appending what the leader sent: batches that have their offsets and epochs already.

Owns the checks on bytes that enter a follower (I2, M27): CRC, and offsets and leader epochs that only rise. Everything is checked before
anything is written. Gaps between offsets are normal: the leader may have compacted them away. A disk that is full refuses a follower
as it refuses a producer: the log keeps what was whole, and goes on when there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader, crc_matches, iter_headers
from tidelog.storage import full_disk
from tidelog.storage.disk import Buffer, DiskError

if TYPE_CHECKING:
    from tidelog.storage.log import Log


def append_as_follower(log: Log, records: Buffer, now_ms: int, leader_epoch: int | None) -> int:
    batches = list(iter_headers(records))
    _check(log, records, batches, leader_epoch)
    view = memoryview(records)
    run: list[BatchHeader] = []  # goes to the active segment with one write
    run_start = run_bytes = 0
    try:
        for position, header in batches:
            if run and log.must_roll(header, now_ms, pending_bytes=run_bytes):
                _append_run(log, view[run_start : run_start + run_bytes], run, now_ms)
                run, run_start, run_bytes = [], position, 0
            if not run and log.must_roll(header, now_ms):
                log.roll_for(header.last_offset, now_ms)
            run.append(header)
            run_bytes += header.size
        if run:
            _append_run(log, view[run_start : run_start + run_bytes], run, now_ms)
    except DiskError as error:
        full_disk.refuse_follower(log, error, now_ms)
        raise
    return len(batches)


def _check(
    log: Log, records: Buffer, batches: list[tuple[int, BatchHeader]], leader_epoch: int | None
) -> None:
    next_offset = log.log_end_offset
    epoch = log.latest_epoch
    for position, header in batches:
        if not crc_matches(records, position, header):
            raise CorruptDataError(
                f"the leader's batch at offset {header.base_offset} of {log.name} fails its CRC"
            )
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise CorruptDataError(
                f"the leader's batch at offset {header.base_offset} of {log.name} does not follow offset {next_offset - 1}"
            )
        next_offset = header.next_offset
        # No CRC covers the epoch, and where a log is cut depends on it.
        of_batch = header.partition_leader_epoch
        if of_batch < 0:
            continue  # of before there were epochs
        if (epoch is not None and of_batch < epoch) or (leader_epoch is not None and of_batch > leader_epoch):
            raise CorruptDataError(
                f"the leader's batch at offset {header.base_offset} of {log.name} is of leader epoch {of_batch}, behind one of {epoch}"
                f" and under a leader of {leader_epoch}"
            )
        epoch = of_batch


def _append_run(log: Log, run: Buffer, headers: list[BatchHeader], now_ms: int) -> None:
    """Batches that are checked and fit into the active segment."""
    if len(run) > log.space.allowance:
        log.space.claim(len(run), now_ms)
    log.space.allowance -= len(run)
    was_empty = log.active.size == 0
    for header in headers:
        if header.partition_leader_epoch >= 0:
            log.epochs.assign(header.partition_leader_epoch, header.base_offset)
    if log.epochs.dirty:
        log.store_epochs()
    log.active.append_run(run, headers)
    if was_empty:
        log.set_roll_deadline()
    log.log_end_offset = headers[-1].next_offset
    position = 0
    for header in headers:
        if header.producer_id >= 0:
            if header.is_control:
                log.apply_marker(run, position, header, header.base_offset)
            else:
                log.producers.append(header, header.base_offset, header.last_offset)
        position += header.size
