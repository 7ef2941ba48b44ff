"""Appending what the leader sent: batches that have their offsets and epochs already.

Owns the checks on bytes that enter a follower (I2, M27): CRC, and offsets and leader epochs that only rise. Everything is checked before
anything is written. Gaps between offsets are normal: the leader may have compacted them away. A disk that is full refuses a follower
as it refuses a producer: the log keeps what was whole, and goes on when there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.errors import CorruptDataError
from tidelog.records.batch import LOG_OVERHEAD, BatchHeader, crc_matches, iter_headers
from tidelog.storage import full_disk
from tidelog.storage.disk import Buffer, DiskError

if TYPE_CHECKING:
    from tidelog.storage.log import Log


def append_as_follower(log: Log, records: Buffer, now_ms: int, leader_epoch: int | None) -> int:
    """Budget: 11 µs for each of many batches of 4 KiB, CRC, index entry and write included (`bench/budgets.py`)."""
    batches = list(iter_headers(records))
    if not batches:
        return 0
    _check(log, records, batches, leader_epoch)
    view = memoryview(records)
    headers = [header for _, header in batches]
    whole = view[: batches[-1][0] + headers[-1].size]
    try:
        if log.fits(
            len(whole),
            max(header[8] for header in headers),
            last_offset=headers[-1].last_offset,
            now_ms=now_ms,
        ):
            _append_run(log, whole, headers, now_ms)
        else:
            _append_over_segments(log, whole, batches, now_ms)
    except DiskError as error:
        full_disk.refuse_follower(log, error, now_ms)
        raise
    return len(batches)


def _append_over_segments(
    log: Log, view: memoryview, batches: list[tuple[int, BatchHeader]], now_ms: int
) -> None:
    """A new segment begins somewhere among these batches, perhaps."""
    run: list[BatchHeader] = []  # goes to the active segment with one write
    run_start = run_bytes = 0
    for position, header in batches:
        if run and log.must_roll(header, now_ms, pending_bytes=run_bytes):
            _append_run(log, view[run_start : run_start + run_bytes], run, now_ms)
            run, run_start, run_bytes = [], position, 0
        if not run and log.must_roll(header, now_ms):
            log.roll_for(header.last_offset, now_ms)
        run.append(header)
        run_bytes += header.size
    _append_run(log, view[run_start : run_start + run_bytes], run, now_ms)


def _check(
    log: Log, records: Buffer, batches: list[tuple[int, BatchHeader]], leader_epoch: int | None
) -> None:
    next_offset = log.log_end_offset
    epoch = log.latest_epoch
    believed = epoch if epoch is not None and (leader_epoch is None or epoch <= leader_epoch) else None
    for position, header in batches:
        base_offset, _, of_batch, _, _, _, last_offset_delta, *_ = header
        if not crc_matches(records, position, header):
            raise CorruptDataError(f"the leader's batch at offset {base_offset} of {log.name} fails its CRC")
        if base_offset < next_offset or last_offset_delta < 0:
            raise CorruptDataError(
                f"the leader's batch at offset {base_offset} of {log.name} does not follow offset {next_offset - 1}"
            )
        next_offset = base_offset + last_offset_delta + 1
        if of_batch == believed:
            continue  # as nearly always
        # No CRC covers the epoch, and where a log is cut depends on it.
        if of_batch < 0:
            continue  # of before there were epochs
        if (epoch is not None and of_batch < epoch) or (leader_epoch is not None and of_batch > leader_epoch):
            raise CorruptDataError(
                f"the leader's batch at offset {base_offset} of {log.name} is of leader epoch {of_batch}, behind one of {epoch}"
                f" and under a leader of {leader_epoch}"
            )
        epoch = believed = of_batch


def _append_run(log: Log, run: Buffer, headers: list[BatchHeader], now_ms: int) -> None:
    """Batches that are checked and fit into the active segment."""
    if len(run) > log.space.allowance:
        log.space.claim(len(run), now_ms)
    log.space.allowance -= len(run)
    was_empty = log.active.size == 0
    epoch = None
    for header in headers:
        of_batch = header[2]
        if of_batch >= 0 and of_batch != epoch:
            log.epochs.assign(of_batch, header[0])
            epoch = of_batch
    if log.epochs.dirty:
        log.store_epochs()
    log.active.append_run(run, headers)
    if was_empty:
        log.set_roll_deadline()
    log.log_end_offset = headers[-1].next_offset
    position = 0
    for header in headers:
        if header[9] >= 0:
            if header.is_control:
                log.apply_marker(run, position, header, header.base_offset)
            else:
                log.producers.append(header, header.base_offset, header.last_offset)
        position += header[1] + LOG_OVERHEAD
