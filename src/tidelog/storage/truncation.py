"""Cutting the end of a log, so that a crash at any step leaves the log before or after it, never between.

Several files change: later segments go, one is cut short, snapshots and epochs above the cut are forgotten. And the recovery point in the
directory's checkpoint may lie above the cut until the next checkpoint: recovery would then take batches appended afterwards for
fsynced ones. So a note, `truncation-intent`, stands in the partition's directory meanwhile. Its second line says:

    pending N R    a truncation to N has begun: recovery finishes it
    restart N R    the log is being emptied to begin anew at N: recovery finishes it
    limit N R      done; the note stays because of R and goes with the next checkpoint

R is the recovery point that was true when the note was written: none above it may be believed, nor a log start, high watermark or cleaner's offset
above N. A partition that is made under the name of a deleted one starts with `limit 0 0` for the same reason.

Kafka ignores files it does not know. Truncation is decided elsewhere, by leader epochs only (I25).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.errors import CorruptDataError
from tidelog.storage import checkpoints, files
from tidelog.storage.disk import Disk, read_file, write_file_atomically
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.replay import producers_at, snapshot_offsets
from tidelog.storage.segment import Segment

if TYPE_CHECKING:
    from tidelog.storage.log import Log

PENDING: Final = "pending"
RESTART: Final = "restart"
LIMIT: Final = "limit"
_INTENT: Final = re.compile(rb"0\n(pending|restart|limit) ([0-9]{1,19}) ([0-9]{1,19})\n")


class Intent(NamedTuple):
    kind: str
    offset: int
    recovery_point: int


def read_intent(disk: Disk, directory: str) -> Intent | None:
    path = files.join(directory, files.TRUNCATION_INTENT)
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        return None
    match = _INTENT.fullmatch(data)
    if match is None:
        # It is written atomically, so no crash leaves this.
        raise CorruptDataError(
            f"{path} holds {data[:80]!r}, not a truncation: remove it to open the log as it is"
        )
    return Intent(match[1].decode(), int(match[2]), int(match[3]))


def write_intent(disk: Disk, directory: str, intent: Intent) -> None:
    text = f"0\n{intent.kind} {intent.offset} {intent.recovery_point}\n"
    write_file_atomically(disk, files.join(directory, files.TRUNCATION_INTENT), text.encode())


def settle(disk: Disk, directory: str, intent: Intent, *, limited: bool) -> None:
    """The cut is done and durable. `limited`: a checkpoint may hold a recovery point above the true one."""
    if limited:
        write_intent(disk, directory, intent._replace(kind=LIMIT))
    else:
        disk.remove(files.join(directory, files.TRUNCATION_INTENT))
        disk.sync_dir(directory)


def remove_segments(disk: Disk, directory: str, segments: Sequence[Segment], *, snapshots_above: int) -> None:
    """Remove segments, newest first, and the producer snapshots above an offset. The caller syncs the directory."""
    for segment in reversed(segments):
        segment.remove()
    for offset in snapshot_offsets(disk, directory):
        if offset > snapshots_above:
            disk.remove(files.snapshot_path(directory, offset))


def truncate_to(log: Log, offset: int) -> bool:
    if offset >= log.log_end_offset:
        # A leader that had begun its epoch here and written nothing: its successor knows nothing of it, and would find the two logs
        # apart for ever.
        log.epochs.truncate_from_end(offset)
        return False
    if log.swap is not None:
        log.swap.end()
    number = log.segment_number(offset)
    kept, gone = log.segments[: number + 1], log.segments[number + 1 :]
    position, end_offset = kept[-1].cut_position(offset)
    if offset < log.log_start_offset or end_offset < log.log_start_offset:
        # Nothing remains that a reader may see.
        restart_at(log, min(offset, log.log_start_offset), now_ms=log.active.created_ms)
        return True
    disk, directory = log.disk, log.directory
    intent = _begin(log, PENDING, end_offset)
    log.unsynced.forget([kept[-1], *gone])
    remove_segments(disk, directory, gone, snapshots_above=end_offset)
    kept[-1].truncate(position, end_offset)
    log.replace_segments(kept)
    log.producers = producers_at(disk, directory, kept, end_offset)
    _finish(log, end_offset)
    settle(disk, directory, intent, limited=log.truncation_limited)
    return True


def restart_at(log: Log, offset: int, *, now_ms: int) -> None:
    disk, directory = log.disk, log.directory
    if log.swap is not None:
        log.swap.end()
    intent = _begin(log, RESTART, offset)
    # Also what retention has let go and no checkpoint has confirmed: it would come back before the new start, with a hole between.
    remove_segments(disk, directory, [*log.doomed, *log.segments], snapshots_above=-1)
    log.doomed.clear()
    segment = Segment.create(disk, directory, offset, log.config, now_ms=now_ms)
    log.unsynced.segments = []
    log.replace_segments([segment])
    log.producers = ProducerState()
    log.producers.end_offset = offset
    log.log_start_offset = offset
    log.epochs.clear()
    _finish(log, offset)
    log.high_watermark = log.recovery_point = offset
    settle(disk, directory, intent, limited=log.truncation_limited)


def _begin(log: Log, kind: str, offset: int) -> Intent:
    if log.release is not None:
        raise RuntimeError(f"files of {log.name} are being let go; finish that before truncating it")
    if log.unsynced.names_uncertain:
        log.unsynced.make_names_durable(log.disk, log.directory)  # the note is worth nothing if they vanish
    intent = Intent(kind, offset, min(log.recovery_point, offset))
    # A checkpoint on disk may speak of more than there is going to be.
    log.truncation_limited = log.truncation_limited or max(log.recovery_point, log.log_start_offset) > offset
    write_intent(log.disk, log.directory, intent)
    return intent


def _finish(log: Log, end_offset: int) -> None:
    log.epochs.truncate_from_end(end_offset)
    path = files.join(log.directory, files.LEADER_EPOCH_CHECKPOINT)
    log.unsynced.drop_epoch_file()
    checkpoints.write_epochs(log.disk, path, log.epochs.checkpoint_entries())
    log.epochs.dirty = False
    log.disk.sync_dir(log.directory)
    log.log_end_offset = end_offset
    log.recovery_point = min(log.recovery_point, end_offset)
    log.high_watermark = min(log.high_watermark, end_offset)
    log.cleaned_to = min(log.cleaned_to, end_offset)
    if log.flush_ticket is not None:
        # A flush under way covers nothing above the cut: what is appended there from now on is other data.
        log.flush_ticket.end_offset = min(log.flush_ticket.end_offset, end_offset)
        log.flush_ticket.position = -1
    log.producers.high_watermark_moved(log.high_watermark)
    log.truncation_count += 1


def forget_limit(log: Log, truncation_count: int) -> None:
    """The directory is synced: log starts above N are believed from now on, and files will leave because of them."""
    if log.truncation_limited and truncation_count == log.truncation_count:
        log.disk.remove(files.join(log.directory, files.TRUNCATION_INTENT))
        log.disk.sync_dir(log.directory)
        log.truncation_limited = False
