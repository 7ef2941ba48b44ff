"""Which segments a log may let go, and in which order their files leave.

Whole segments only, oldest first, never anything at or above the high watermark (I8). Reasons, as in Kafka: every record is older than
`retention.ms` (by the segment's largest timestamp), the log without the segment is still `retention.bytes` long, or the segment lies
below the log start. Topics that only compact lose segments below the log start alone. An active segment that has expired
altogether is rolled first, so that there is always one.

A crash must leave no hole and bring nothing back, so it goes in steps: (1) in memory, log start first; (2) a checkpoint makes the new
log start durable (`LogManager.checkpoint`), and from now on every start ignores what is below it; (3) files get the `.deleted`
suffix; (4) after `file.delete.delay.ms` they are removed. A reader that pinned a file reads on to the end of its range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidelog.errors import RequestError
from tidelog.storage import files
from tidelog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.segment import Segment


class Retained(NamedTuple):
    """What a pass of retention took out of the log. `reasons` has one word per segment: "time", "size" or "log start"."""

    segments: int
    bytes: int
    reasons: tuple[str, ...]
    log_start_offset: int


def apply(log: Log, now_ms: int) -> Retained:
    doomed: list[Segment] = []
    reasons: list[str] = []
    excess = log.size_bytes - log.config.retention_bytes
    for number, segment in enumerate(log.segments):
        is_last = number + 1 == len(log.segments)
        end_offset = log.log_end_offset if is_last else log.segments[number + 1].base_offset
        if end_offset > log.high_watermark or (is_last and segment.size == 0):
            break
        reason = _reason(log, segment, end_offset, is_last=is_last, excess=excess, now_ms=now_ms)
        if reason is None:
            break
        doomed.append(segment)
        reasons.append(reason)
        excess -= segment.size
    if doomed:
        _take_out(log, doomed, now_ms)
    return Retained(
        len(doomed), sum(segment.size for segment in doomed), tuple(reasons), log.log_start_offset
    )


def _reason(
    log: Log, segment: Segment, end_offset: int, *, is_last: bool, excess: int, now_ms: int
) -> str | None:
    config = log.config
    if end_offset <= log.log_start_offset and not is_last:
        return "log start"
    if not config.delete_policy:
        return None
    if config.retention_ms >= 0 and now_ms - segment.largest_timestamp > config.retention_ms:
        return "time"
    if config.retention_bytes >= 0 and excess >= segment.size:
        return "size"
    return None


def _take_out(log: Log, doomed: list[Segment], now_ms: int) -> None:
    if len(doomed) == len(log.segments):
        log.roll(now_ms)
    kept = log.segments[len(doomed) :]
    log.log_start_offset = max(log.log_start_offset, kept[0].base_offset)
    log.producers.log_start_moved(log.log_start_offset)
    log.unsynced.segments = [segment for segment in log.unsynced.segments if segment not in doomed]
    log.doomed.extend(doomed)
    log.replace_segments(kept)


def advance_log_start(log: Log, offset: int) -> bool:
    """False if the log begins there or later already."""
    if offset > log.high_watermark:
        raise RequestError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the log start of {log.name} cannot move to {offset}, above its high watermark {log.high_watermark}",
        )
    if offset <= log.log_start_offset:
        return False
    log.log_start_offset = offset
    log.producers.log_start_moved(offset)
    return True


def release_files(log: Log, durable_log_start: int, now_ms: int) -> None:
    """Rename the files of doomed segments, oldest first, that lie below a log start which survives a crash."""
    while log.doomed:
        segment = log.doomed[0]
        following = log.doomed[1] if len(log.doomed) > 1 else log.segments[0]
        if following.base_offset > durable_log_start:
            break
        if log.dirty:
            _keep_producers(log, following.base_offset)
        log.disk.remove(files.snapshot_path(log.directory, segment.base_offset))
        due_ms = now_ms + log.config.file_delete_delay_ms
        log.deferred_deletes.extend((due_ms, path) for path in segment.mark_deleted())
        del log.doomed[0]
    log.epochs.truncate_from_start(min(durable_log_start, log.log_start_offset))
    if log.epochs.dirty:
        log.store_epochs()


def _keep_producers(log: Log, base_offset: int) -> None:
    """Producers whose batches are all leaving are known from the next snapshot only: it must be durable before they go (I39)."""
    try:
        snapshot = log.disk.open(files.snapshot_path(log.directory, base_offset))
    except FileNotFoundError:
        return  # made by a broker that takes none, or removed by hand: there is nothing to lose
    try:
        snapshot.sync()
    finally:
        snapshot.close()
    log.disk.sync_dir(log.directory)


def take_due_files(log: Log, now_ms: int) -> list[str]:
    due = [path for due_ms, path in log.deferred_deletes if due_ms <= now_ms]
    if due:
        log.deferred_deletes = [(due_ms, path) for due_ms, path in log.deferred_deletes if due_ms > now_ms]
    return due
