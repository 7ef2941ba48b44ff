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

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.errors import RequestError
from tidelog.storage import files
from tidelog.storage.disk import DiskError
from tidelog.storage.failed_sync import sync_all
from tidelog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from tidelog.storage.log import Log
    from tidelog.storage.segment import Segment

_ALL: Final = 1 << 62


class Retained(NamedTuple):
    """What a pass of retention took out of the log. `reasons` has one word per segment: "time", "size" or "log start".

    `more`: it took as many as it might, and others may have to go too.
    """

    segments: int
    bytes: int
    reasons: tuple[str, ...]
    log_start_offset: int
    more: bool = False


def apply(log: Log, now_ms: int, *, segments_max: int = _ALL) -> Retained:
    if log.swap is not None:
        return Retained(0, 0, (), log.log_start_offset)  # segments are changing places: next time
    doomed: list[Segment] = []
    reasons: list[str] = []
    excess = log.size_bytes - log.config.retention_bytes
    for number, segment in enumerate(islice(log.segments, min(segments_max, len(log.segments)))):
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
    if doomed and len(doomed) == len(log.segments) and not _roll(log, now_ms):
        doomed.pop()
        reasons.pop()
    if doomed:
        _take_out(log, doomed)
    return Retained(
        len(doomed),
        sum(segment.size for segment in doomed),
        tuple(reasons),
        log.log_start_offset,
        more=len(doomed) == segments_max,
    )


def _reason(
    log: Log, segment: Segment, end_offset: int, *, is_last: bool, excess: int, now_ms: int
) -> str | None:
    config = log.config
    if end_offset <= log.log_start_offset and not is_last:
        return "log start"
    if not config.delete_policy:
        return None
    if config.retention_bytes >= 0 and excess >= segment.size:
        return "size"  # before time, which may have to be looked up in a file
    if config.retention_ms >= 0 and now_ms - segment.largest_timestamp > config.retention_ms:
        return "time"
    return None


def _roll(log: Log, now_ms: int) -> bool:
    """False when a full disk has no room for another segment: the last one then waits until the others have left."""
    try:
        log.roll(now_ms)
    except DiskError as error:
        if not error.out_of_space:
            raise
        return False
    return True


def _take_out(log: Log, doomed: list[Segment]) -> None:
    kept = log.segments[len(doomed) :]
    log.log_start_offset = max(log.log_start_offset, kept[0].base_offset)
    log.producers.log_start_moved(log.log_start_offset)
    # Not out of `unsynced`: until the new log start is durable, what is flushed next is reachable through them only (I3).
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


def kept_producers(log: Log, durable_log_start: int) -> int | None:
    """Offset of the snapshot that producers will be known from once every segment below this log start has left. None: none leaves."""
    leaving = _leaving(log, durable_log_start)
    if not leaving:
        return None
    return (log.doomed[leaving] if leaving < len(log.doomed) else log.segments[0]).base_offset


def keep_producers(log: Log, offset: int) -> None:
    """Producers whose batches are all leaving are known from one snapshot only: it must be durable before they go (I39). In any thread."""
    try:
        snapshot = log.disk.open(files.snapshot_path(log.directory, offset))
    except FileNotFoundError:
        return  # made by a broker that takes none, or removed by hand: there is nothing to lose
    try:
        sync_all(log.disk, log.directory, [snapshot])
    finally:
        snapshot.close()
    log.disk.sync_dir(log.directory)


class Release:
    """The files of doomed segments on their way out: `run` in any thread, then `finish` on the loop. One at a time for each log.

    They lie below a log start that survives a crash, and `keep_producers` was called. A log must not be truncated meanwhile: it could
    begin a segment under a name that is just being taken away.
    """

    __slots__ = ("_due_ms", "_error", "_log", "_marked", "_segments")

    def __init__(self, log: Log, segments: list[Segment], due_ms: int) -> None:
        self._log = log
        self._segments = segments
        self._due_ms = due_ms
        self._marked: list[list[str]] = []
        self._error: DiskError | None = None
        log.release = self
        log.unsynced.forget(segments)

    def run(self) -> None:
        """Oldest first, the log file of each before its indexes. A failure is kept for `finish`."""
        log = self._log
        try:
            for segment in self._segments:
                log.disk.remove(files.snapshot_path(log.directory, segment.base_offset))
                self._marked.append(segment.rename_files(files.DELETED))
        except DiskError as error:
            self._error = error

    def finish(self) -> None:
        log = self._log
        log.release = None
        for segment, marked in zip(self._segments, self._marked, strict=False):
            segment.files_left(files.DELETED)
            log.deferred_deletes.extend((self._due_ms, path) for path in marked)
        del log.doomed[: len(self._marked)]
        if self._error is not None:
            raise self._error


def release(log: Log, durable_log_start: int, now_ms: int, *, segments_max: int = _ALL) -> Release | None:
    """Some doomed segments whose files may go now, oldest first. None: there are none, and what the log knows of them is forgotten."""
    leaving = _leaving(log, durable_log_start)
    if not leaving:
        log.epochs.truncate_from_start(min(durable_log_start, log.log_start_offset))
        return None
    due_ms = now_ms + log.config.file_delete_delay_ms
    return Release(log, log.doomed[: min(leaving, segments_max)], due_ms)


def _leaving(log: Log, durable_log_start: int) -> int:
    """How many doomed segments end at or below a log start."""
    if not log.doomed:
        return 0
    ends = [segment.base_offset for segment in log.doomed[1:]]
    ends.append(log.segments[0].base_offset)
    return bisect_right(ends, durable_log_start)


def take_due_files(log: Log, now_ms: int) -> list[str]:
    due = [path for due_ms, path in log.deferred_deletes if due_ms <= now_ms]
    if due:
        log.deferred_deletes = [(due_ms, path) for due_ms, path in log.deferred_deletes if due_ms > now_ms]
    return due
