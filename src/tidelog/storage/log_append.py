"""Appending what the leader sent: batches that have their offsets and epochs already.

Owns the checks on bytes that enter a follower (I2, M27): CRC, and offsets that only rise. Everything is checked before anything is
written. Gaps between offsets are normal: the leader may have compacted them away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader, crc_matches, iter_headers
from tidelog.storage.disk import Buffer

if TYPE_CHECKING:
    from tidelog.storage.log import Log


def append_as_follower(log: Log, records: Buffer, now_ms: int) -> int:
    batches = list(iter_headers(records))
    _check(log, records, batches)
    view = memoryview(records)
    run: list[BatchHeader] = []  # goes to the active segment with one write
    run_start = run_bytes = 0
    for position, header in batches:
        if run and log.must_roll(header, now_ms, pending_bytes=run_bytes):
            _append_run(log, view[run_start : run_start + run_bytes], run)
            run, run_start, run_bytes = [], position, 0
        if not run and log.must_roll(header, now_ms):
            log.roll_for(header.last_offset, now_ms)
        run.append(header)
        run_bytes += header.size
    if run:
        _append_run(log, view[run_start : run_start + run_bytes], run)
    return len(batches)


def _check(log: Log, records: Buffer, batches: list[tuple[int, BatchHeader]]) -> None:
    next_offset = log.log_end_offset
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


def _append_run(log: Log, run: Buffer, headers: list[BatchHeader]) -> None:
    """Batches that are checked and fit into the active segment."""
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
