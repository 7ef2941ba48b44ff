"""Opens a partition's directory as a `Log`, whatever the last stop left in it.

After a clean stop a handful of small reads suffice: the names, the tail of the active segment, epochs and the producer snapshot.
After an unclean one every batch from the segment that holds the recovery point on is checked (length, magic, CRC, offsets, epochs), and
indexes, producer state and epochs of that part are derived anew. What is found wrong is treated by where it stands:

* At or above the recovery point it was never fsynced: the log is cut to its valid prefix and later segments go (I3).
* Below it, it was fsynced once and something has damaged it since. It is kept as it is, reported, and stepped over: readers of
  those offsets get an error, never a silent gap, and offsets are never given twice (I1, I2, I6). What to do about it (fetch it
  again from another replica, leave the ISR) is decided by the broker, with the report in hand.

Derived files that are missing or broken come back either way (I4). Nothing here deletes a partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from tidelog.errors import CorruptDataError
from tidelog.ports import Rng
from tidelog.storage import checkpoints, files, short_log, truncation
from tidelog.storage.disk import Disk
from tidelog.storage.epoch_cache import LeaderEpochCache
from tidelog.storage.failed_sync import forget_cache, sync_all
from tidelog.storage.leftovers import put_away
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_flush import DirectoryNames
from tidelog.storage.producer_snapshot import write_snapshot
from tidelog.storage.producer_state import ProducerState, is_expired
from tidelog.storage.recovery_report import Cut, RecoveryReport
from tidelog.storage.recovery_scan import Recovery
from tidelog.storage.replay import (
    load_producers,
    producers_at,
    snapshot_offsets,
    snapshots_in,
    stored_batches,
)
from tidelog.storage.segment import Segment
from tidelog.storage.truncation import LIMIT, PENDING, RESTART, Intent

NO_TOPIC_ID = bytes(16)


def open_log(
    disk: Disk,
    directory: str,
    topic: str,
    partition: int,
    *,
    config: LogConfig,
    now_ms: int,
    rng: Rng | None = None,
    topic_id: bytes = NO_TOPIC_ID,
    clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    high_watermark: int = 0,
    cleaned_to: int = 0,
    name_reused: bool = False,
    names_above: DirectoryNames | None = None,
) -> Log:
    """The log in `directory`, which is made if it is not there. The four offsets are what the last checkpoints say.

    `name_reused`: the log is new, but checkpoints on disk may still speak of a deleted one of its name. A `topic_id` is written if the directory has none yet; one that differs from the directory's is CorruptDataError.
    `names_above` is that of the log directory, if several logs share it.
    """
    names_above = names_above or DirectoryNames(disk, files.parent(directory))
    if not disk.is_dir(directory):
        disk.make_dirs(files.parent(directory))
        disk.make_dir(directory)
    if name_reused:
        truncation.write_intent(disk, directory, Intent(LIMIT, 0, 0))
    names = put_away(disk, directory)
    report = RecoveryReport(topic, partition, directory)
    if forget_cache(disk, directory, names):
        clean = False
        report.cache_forgotten = True
    intent = truncation.read_intent(disk, directory) if files.TRUNCATION_INTENT in names else None
    checkpointed = max(recovery_point, log_start_offset, high_watermark)
    if intent is None and checkpointed > 0 and _was_never_finished(names):
        # Whoever was making it stopped before it had anything of its own: the checkpoints speak of an earlier one.
        name_reused, intent = True, Intent(LIMIT, 0, 0)
        truncation.write_intent(disk, directory, intent)
    checkpointed_recovery_point = recovery_point
    if intent is not None:
        clean = clean and intent.kind == LIMIT
        recovery_point = min(recovery_point, intent.recovery_point)
        high_watermark = min(high_watermark, intent.offset)
        cleaned_to = min(cleaned_to, intent.offset)
        if log_start_offset > intent.offset:
            log_start_offset = 0
    never_flushed = recovery_point == 0
    segments = _open_segments(disk, directory, config, names, intent, log_start_offset, report, now_ms)
    log_start_offset = max(log_start_offset, segments[0].base_offset)
    opened = None
    if clean:
        opened = _load_clean(
            disk, directory, config, segments, names, recovery_point, log_start_offset, now_ms
        )
    if opened is None:
        report.clean = False
        cap = intent.offset if intent is not None and intent.kind == PENDING else None
        opened = _recover(
            disk, directory, config, segments, recovery_point, log_start_offset, cap, now_ms, report
        )
    segments, unsynced, log_end_offset, epochs, producers = opened
    recovery_point = min(recovery_point, log_end_offset)
    if intent is not None:
        # What was done on the note's behalf outlives the note, also if a killed process did it and only the page cache knows.
        sync_all(disk, directory, segments[-1].all_files() if intent.kind == PENDING else ())
        disk.sync_dir(directory)
    limited = name_reused or _settle_intent(
        disk, directory, intent, recovery_point, checkpointed_recovery_point
    )
    if log_start_offset > log_end_offset:
        segments, producers = _begin_at_log_start(
            disk, directory, config, segments, producers, log_start_offset, report, now_ms
        )
        unsynced, log_end_offset = [], log_start_offset
        epochs.clear()
    report.missing_committed = max(0, high_watermark - log_end_offset)
    if len(segments) > 1 or snapshots_in(names):
        _remove_stray_snapshots(disk, directory, segments, log_end_offset)
    log = Log(
        disk,
        directory,
        topic,
        partition,
        topic_id=_read_topic_id(disk, directory, topic_id, may_be_unfinished=never_flushed),
        config=config,
        rng=rng,
        segments=segments,
        unsynced=unsynced,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        recovery_point=recovery_point,
        high_watermark=high_watermark,
        epochs=epochs,
        producers=producers,
        recovery=report,
        cleaned_to=cleaned_to if cleaned_to <= log_end_offset else 0,
    )
    log.truncation_limited = limited
    if not report.clean or never_flushed:
        # What the process before made may be in the page cache only, the name of a first segment for example. The first flush
        # covers it. After a clean stop, what was ever flushed is durable.
        log.unsynced.begin(names_above)
    if report.cuts or report.deleted_segments:
        disk.sync_dir(directory)  # removed names must not come back behind what is appended next
    if topic_id != NO_TOPIC_ID and log.topic_id == NO_TOPIC_ID:
        log.set_topic_id(topic_id, names_above)
    if len(segments) > 1 and epochs.dirty and not _are_stored(disk, directory, epochs):
        log.store_epochs()  # those of the active segment are found again by whoever reads it
    return log


def _was_never_finished(names: Sequence[str]) -> bool:
    """Neither a segment nor an id, and no note either: nothing that a partition has once it was made."""
    return files.PARTITION_METADATA not in names and not any(name.endswith(files.LOG) for name in names)


def _open_segments(
    disk: Disk,
    directory: str,
    config: LogConfig,
    names: Sequence[str],
    intent: Intent | None,
    log_start_offset: int,
    report: RecoveryReport,
    now_ms: int,
) -> list[Segment]:
    """The segments on disk that belong to the log; a first one if there is none."""
    parsed = [file for name in names if (file := files.parse_segment_name(name)) is not None]
    bases = [file.base_offset for file in parsed if file.kind == files.LOG]
    listing = frozenset(names)
    segments = [Segment.open(disk, directory, base, config, names=listing) for base in sorted(bases)]
    if segments:
        segments[-1].may_be_unindexed(listing)
    first_offset = log_start_offset
    if intent is not None and intent.kind == RESTART:
        truncation.remove_segments(disk, directory, segments, snapshots_above=-1)
        disk.remove(files.join(directory, files.LEADER_EPOCH_CHECKPOINT))
        disk.sync_dir(directory)
        segments, first_offset = [], intent.offset
    elif intent is not None and intent.kind == PENDING:
        kept = max(1, bisect_right([segment.base_offset for segment in segments], intent.offset))
        truncation.remove_segments(disk, directory, segments[kept:], snapshots_above=intent.offset)
        disk.sync_dir(directory)
        del segments[kept:]
    if not segments:
        return [Segment.create(disk, directory, first_offset, config, now_ms=now_ms)]
    return _without_deleted(disk, directory, segments, log_start_offset, report)


def _without_deleted(
    disk: Disk, directory: str, segments: list[Segment], log_start_offset: int, report: RecoveryReport
) -> list[Segment]:
    """Segments wholly below the log start were let go; their files had not left yet. What they say of producers stays (I39)."""
    first = max(0, bisect_right([segment.base_offset for segment in segments], log_start_offset) - 1)
    if not first:
        return segments
    base_offset = segments[first].base_offset
    producers = load_producers(disk, directory, at_most=base_offset)
    if producers.end_offset < base_offset:
        producers = producers_at(disk, directory, segments[:first], base_offset)
        _write_durable_snapshot(disk, directory, base_offset, producers)
    else:
        # A killed process may have written it a moment ago, and never synced it. Not written anew: it may be durable, and all there is.
        _sync_snapshot(disk, directory, base_offset)
    for segment in segments[:first]:
        segment.remove()
        disk.remove(files.snapshot_path(directory, segment.base_offset))
    report.deleted_segments = first
    return segments[first:]


def _write_durable_snapshot(disk: Disk, directory: str, offset: int, producers: ProducerState) -> None:
    write_snapshot(disk, files.snapshot_path(directory, offset), producers).close()
    _sync_snapshot(disk, directory, offset)


def _sync_snapshot(disk: Disk, directory: str, offset: int) -> None:
    file = disk.open(files.snapshot_path(directory, offset))
    sync_all(disk, directory, [file])
    file.close()
    disk.sync_dir(directory)


def _begin_at_log_start(
    disk: Disk,
    directory: str,
    config: LogConfig,
    segments: list[Segment],
    producers: ProducerState,
    log_start_offset: int,
    report: RecoveryReport,
    now_ms: int,
) -> tuple[list[Segment], ProducerState]:
    """All that is left was deleted before the crash: an empty log at its start. Deleted records do not come back, nor offsets.

    The producers are made durable before anything goes: if this is interrupted, the batches that told of them may be gone.
    """
    for segment in segments:
        problem = f"it lies below the log start {log_start_offset}"
        report.cuts.append(Cut(segment.file.path, 0, segment.size, log_start_offset, problem))
    known = load_producers(disk, directory, at_most=log_start_offset)
    if known.end_offset == log_start_offset:
        producers = known
    _write_durable_snapshot(disk, directory, log_start_offset, producers)
    truncation.remove_segments(disk, directory, segments, snapshots_above=log_start_offset)
    return [Segment.create(disk, directory, log_start_offset, config, now_ms=now_ms)], producers


_Opened = tuple[list[Segment], list[Segment], int, LeaderEpochCache, ProducerState]


def _load_clean(
    disk: Disk,
    directory: str,
    config: LogConfig,
    segments: list[Segment],
    names: Sequence[str],
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
) -> _Opened | None:
    """Believe the marker of a clean stop, as far as the active segment bears it out. None: it does not, recover."""
    snapshots = snapshots_in(names)
    is_short = len(segments) == 1 and segments[0].base_offset == 0 and segments[0].unindexed and not snapshots
    try:
        if is_short:
            log_end_offset, epochs, producers = short_log.load(segments[0])
        else:
            log_end_offset = segments[-1].load_tail()
    except CorruptDataError:
        return None
    if log_end_offset < recovery_point:
        return None
    if not is_short:
        epochs = _read_epochs(disk, directory) or _epochs_from_batches(segments, log_end_offset)
        producers = producers_at(disk, directory, segments, log_end_offset, snapshots=snapshots)
    _fit_epochs(epochs, log_start_offset, log_end_offset)
    if any(is_expired(entry, now_ms, config.producer_id_expiration_ms) for entry in producers):
        producers.expire(now_ms, config.producer_id_expiration_ms)
    return segments, [], log_end_offset, epochs, producers


def _recover(
    disk: Disk,
    directory: str,
    config: LogConfig,
    segments: list[Segment],
    recovery_point: int,
    log_start_offset: int,
    cap: int | None,
    now_ms: int,
    report: RecoveryReport,
) -> _Opened:
    # A segment that was sealed while a flush up to its very end was under way has unsynced indexes: it is checked as well.
    first = max(0, bisect_left([segment.base_offset for segment in segments], recovery_point) - 1)
    start_offset = segments[first].base_offset
    producers = producers_at(
        disk, directory, segments[:first], start_offset, snapshots=() if start_offset == 0 else None
    )
    epochs = _read_epochs(disk, directory)
    if epochs is None:
        epochs = _epochs_from_batches(segments[:first], start_offset)
        if epochs:
            report.rebuilt.append(files.LEADER_EPOCH_CHECKPOINT)
    epochs.truncate_from_end(start_offset)
    scan = Recovery(
        disk,
        directory,
        config,
        segments,
        recovery_point=recovery_point,
        cap=cap,
        epochs=epochs,
        producers=producers,
        report=report,
        now_ms=now_ms,
    )
    scan.run(first)
    _fit_epochs(epochs, log_start_offset, scan.next_offset)
    producers.expire(now_ms, config.producer_id_expiration_ms)
    producers.end_offset = scan.next_offset
    return scan.segments, scan.segments[first:-1], scan.next_offset, epochs, producers


def _settle_intent(
    disk: Disk, directory: str, intent: Intent | None, recovery_point: int, checkpointed: int
) -> bool:
    """Leave a note if the checkpoint claims more than is true, and only then. True if there is one."""
    if checkpointed > recovery_point:
        if intent is None or intent.kind != LIMIT or intent.recovery_point > recovery_point:
            truncation.write_intent(disk, directory, Intent(LIMIT, recovery_point, recovery_point))
        return True
    if intent is not None:
        truncation.settle(disk, directory, intent, limited=False)
    return False


def _read_epochs(disk: Disk, directory: str) -> LeaderEpochCache | None:
    try:
        entries = checkpoints.read_epochs(disk, files.join(directory, files.LEADER_EPOCH_CHECKPOINT))
    except CorruptDataError:
        return None
    # An empty one is what a crash leaves of a checkpoint that was being replaced, or a log without batches.
    return LeaderEpochCache(entries) if entries else None


def _epochs_from_batches(segments: Sequence[Segment], end_offset: int) -> LeaderEpochCache:
    epochs = LeaderEpochCache()
    for _, _, header in stored_batches(segments, 0, end_offset):
        if header.partition_leader_epoch > (epochs.latest_epoch if epochs.latest_epoch is not None else -1):
            epochs.assign(header.partition_leader_epoch, header.base_offset)
    return epochs


def _fit_epochs(epochs: LeaderEpochCache, log_start_offset: int, log_end_offset: int) -> None:
    epochs.truncate_from_end(log_end_offset)
    epochs.truncate_from_start(log_start_offset)


def _are_stored(disk: Disk, directory: str, epochs: LeaderEpochCache) -> bool:
    """Recovery has found the same epochs as stand in the file."""
    try:
        stored = checkpoints.read_epochs(disk, files.join(directory, files.LEADER_EPOCH_CHECKPOINT))
    except CorruptDataError:
        return False
    return (stored or []) == epochs.checkpoint_entries()


def _read_topic_id(disk: Disk, directory: str, expected: bytes, *, may_be_unfinished: bool) -> bytes:
    path = files.join(directory, files.PARTITION_METADATA)
    topic_id = checkpoints.read_partition_metadata(disk, path, may_be_unfinished=may_be_unfinished)
    if topic_id is None:
        return NO_TOPIC_ID
    if expected not in (NO_TOPIC_ID, topic_id):
        raise CorruptDataError(
            f"{path} says topic id {checkpoints.encode_uuid(topic_id)}, expected is"
            f" {checkpoints.encode_uuid(expected)}: the directory belongs to another topic of this name"
        )
    return topic_id


def _remove_stray_snapshots(
    disk: Disk, directory: str, segments: Sequence[Segment], log_end_offset: int
) -> None:
    """Keep the snapshots at segment starts and the newest one; what lies above the log's end speaks of data that is gone."""
    bases = {segment.base_offset for segment in segments}
    newest_seen = False
    stale = False
    for offset in snapshot_offsets(disk, directory):
        if offset > log_end_offset or (newest_seen and offset not in bases):
            disk.remove(files.snapshot_path(directory, offset))
            stale = stale or offset > log_end_offset
        else:
            newest_seen = True
    if stale:
        # Once the log has grown past it, a stale one that came back could not be told from a true one.
        disk.sync_dir(directory)
