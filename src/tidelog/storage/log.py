"""The commit log of one partition on this broker: ordered batches in segments, from log start to log end.

Owns offsets (I1: assigned once, strictly increasing), the order log start ≤ last stable ≤ high watermark ≤ log end (I5), when
segments roll, what is durable (`recovery_point`: everything below is fsynced) and the state derived from the batches: producers (I39)
and leader epochs. One writer, no locks: everything happens on the loop's thread except `FlushTicket.run`.

It never decides what is committed: the caller moves the high watermark. It never removes data by itself: retention does, and
never at or above the high watermark (I8). A `DiskError` that leaves it means that its log directory must go offline (I7).

Logs are made by `recovery.open_log`. What a follower appends is checked in `log_append`; reading is in `log_read`, time lookups in
`log_lookup`, what to sync in `log_flush`, deletion in `retention`, cutting the end in `truncation`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.errors import RequestError
from tidelog.ports import Rng
from tidelog.records.batch import (
    CONTROL_FLAG,
    LOG_OVERHEAD,
    PATCHED_PREFIX_SIZE,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    patched_prefix,
)
from tidelog.storage import (
    checkpoints,
    files,
    full_disk,
    log_append,
    log_lookup,
    log_read,
    replay,
    retention,
    truncation,
)
from tidelog.storage.disk import Buffer, Disk, DiskError
from tidelog.storage.disk_space import SpaceGuard
from tidelog.storage.epoch_cache import LeaderEpochCache
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_flush import DirectoryNames, FlushTicket, Unsynced
from tidelog.storage.log_read import LogRead, Positions
from tidelog.storage.producer_snapshot import write_snapshot
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.recovery_report import RecoveryReport
from tidelog.storage.retention import Retained
from tidelog.storage.segment import MAX_RELATIVE_OFFSET, Segment
from tidelog.storage.txn_index import AbortedTransaction
from tidelog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from tidelog.storage.segment_swap import SegmentSwap

__all__ = ["AppendResult", "FlushTicket", "Log", "LogRead"]

_NEVER: Final = 1 << 63


class AppendResult(NamedTuple):
    """Where a batch stands. `duplicate`: it was there already, nothing was written."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 unless the broker set the timestamps
    log_start_offset: int
    duplicate: bool


class Log:
    __slots__ = (
        "_bases", "_high_watermark_place", "_rng", "_roll_after_ms", "_roll_after_timestamp", "_segment_bytes",
        "_unflushed_since_ms", "active", "cleaned_to", "config", "deferred_deletes", "directory", "disk", "doomed", "epochs", "flush_ticket",
        "high_watermark", "log_end_offset", "log_start_offset", "name", "no_aborts_from", "partition", "positions",
        "producers", "recovery", "recovery_point", "release", "sealed", "segments", "space", "swap", "times_are_known", "topic",
        "topic_id", "truncation_count", "truncation_limited", "unsynced",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        directory: str,
        topic: str,
        partition: int,
        *,
        topic_id: bytes,
        config: LogConfig,
        rng: Rng | None,
        segments: Sequence[Segment],
        unsynced: Sequence[Segment],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        high_watermark: int,
        epochs: LeaderEpochCache,
        producers: ProducerState,
        recovery: RecoveryReport,
        cleaned_to: int = 0,
    ) -> None:
        self.disk = disk
        self._rng = rng
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.topic_id = topic_id
        self.config = config
        self.recovery = recovery
        self.segments = list(segments)
        self._bases = [segment.base_offset for segment in segments]
        self.active = self.segments[-1]
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.high_watermark = max(log_start_offset, min(high_watermark, log_end_offset))
        self.epochs = epochs
        self.producers = producers
        self.producers.high_watermark_moved(self.high_watermark)
        self.positions = Positions()
        self.no_aborts_from = _NEVER
        """No transaction was aborted at or behind this offset; not looked for yet if it is `_NEVER`."""
        self._high_watermark_place: tuple[Segment, int] | None = None
        self.unsynced = Unsynced(unsynced)
        self.space = SpaceGuard()  # the log directory's, once a manager has given it
        self.times_are_known = False  # the latest of every segment: see `segment_times`
        # Shared by the logs of a manager: those that have sealed a segment since somebody last looked.
        self.sealed: dict[tuple[str, int], None] | None = None
        self.flush_ticket: FlushTicket | None = None
        self._unflushed_since_ms: int | None = None
        # Segments that no reader sees any more but whose files wait until the log start is durable, then until they are due.
        self.doomed: list[Segment] = []
        self.release: retention.Release | None = None
        self.deferred_deletes: list[tuple[int, str]] = []
        self.swap: SegmentSwap | None = None
        self.truncation_count = 0
        self.truncation_limited = False
        self.cleaned_to = cleaned_to  # a cleaning has got through below this offset: see `cleaner_plan`
        self._segment_bytes = config.segment_bytes
        self.set_roll_deadline()

    def __repr__(self) -> str:
        return f"Log({self.name}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def last_stable_offset(self) -> int:
        """`read_committed` consumers read below it: the first open transaction, or the high watermark."""
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    @property
    def latest_epoch(self) -> int | None:
        return self.epochs.latest_epoch

    # ---- appending

    def append_as_leader(
        self, batch: Buffer, header: BatchHeader, *, leader_epoch: int, now_ms: int
    ) -> AppendResult:
        """Give one validated batch the next offsets and write it.

        RequestError when its producer is out of order or fenced, or when the disk is full; the log is then as it was before.
        Budget: 7.5 µs for a small batch, the write included (`bench/budgets.py`).
        """
        producer_id = header[9]
        attributes = header[5]
        if producer_id >= 0 and not attributes & CONTROL_FLAG:
            duplicate = self.producers.check(header)
            if duplicate is not None:
                append_time = duplicate.timestamp if attributes & TIMESTAMP_TYPE_FLAG else -1
                return AppendResult(
                    duplicate.first_offset, duplicate.last_offset, append_time, self.log_start_offset, True
                )
        size = header[1] + LOG_OVERHEAD
        space = self.space
        if size > space.allowance:
            full_disk.claim(self, header, size, now_ms)
        space.allowance -= size
        first_offset = self.log_end_offset
        last_offset = first_offset + header[6]
        max_timestamp = header[8]
        segment = self.active
        try:
            if (
                segment.size + size > self._segment_bytes
                or max_timestamp > self._roll_after_timestamp
                or now_ms > self._roll_after_ms
                or segment.index_full
                or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            ):
                if size > self._segment_bytes:
                    raise RequestError(
                        ErrorCode.RECORD_LIST_TOO_LARGE,
                        f"a batch of {size} bytes does not fit into a segment of {self.name}: segment.bytes is"
                        f" {self._segment_bytes}",
                    )
                segment = self.roll_for(last_offset, now_ms)
            if leader_epoch != self.epochs.latest_epoch:
                self.start_epoch(leader_epoch)
            position = segment.append(
                (
                    patched_prefix(first_offset, header[1], leader_epoch),
                    memoryview(batch)[PATCHED_PREFIX_SIZE:],
                ),
                size,
                last_offset,
                max_timestamp,
            )
        except DiskError as error:
            full_disk.refuse(self, header, error, now_ms)
            raise
        if position == 0:
            self.set_roll_deadline()
        self.log_end_offset = last_offset + 1
        if producer_id >= 0:
            if attributes & CONTROL_FLAG:
                self.apply_marker(batch, 0, header, first_offset)
            else:
                self.producers.append(header, first_offset, last_offset)
        append_time = max_timestamp if attributes & TIMESTAMP_TYPE_FLAG else -1
        return AppendResult(first_offset, last_offset, append_time, self.log_start_offset, False)

    def append_as_follower(self, records: Buffer, *, now_ms: int, leader_epoch: int | None = None) -> int:
        """Append batches as the leader sent them, offsets and epochs included; returns how many. A cut-off tail is ignored.

        CorruptDataError, and nothing appended, when a CRC fails, an offset is not above what is here (M27), or a leader epoch is below
        what is here or above that of the leader. RequestError when the disk is full.
        """
        return log_append.append_as_follower(self, records, now_ms, leader_epoch)

    def must_roll(self, header: BatchHeader, now_ms: int, *, pending_bytes: int = 0) -> bool:
        """Whether a batch needs a new segment, with `pending_bytes` about to be written before it."""
        segment = self.active
        filled = segment.size + pending_bytes
        return (
            (filled > 0 and filled + header.size > self._segment_bytes)
            or header.max_timestamp > self._roll_after_timestamp
            or now_ms > self._roll_after_ms
            or segment.index_full
            or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        )

    def fits(self, size: int, max_timestamp: int, *, last_offset: int, now_ms: int) -> bool:
        """Whether batches of this size, largest timestamp and last offset can all go to the active segment: none of them `must_roll`."""
        segment = self.active
        return not (
            segment.size + size > self._segment_bytes
            or max_timestamp > self._roll_after_timestamp
            or now_ms > self._roll_after_ms
            or segment.index_full
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        )

    def apply_marker(self, batch: Buffer, position: int, header: BatchHeader, offset: int) -> None:
        aborted = replay.apply_marker(self.producers, batch, position, header, offset)
        if aborted is not None:
            self.no_aborts_from = max(self.no_aborts_from, offset + 1)
            if self.active.txn_index.append(aborted):
                self.unsynced.new_names = True

    def start_epoch(self, leader_epoch: int) -> None:
        """This log's leader is now in `leader_epoch`: its records begin at the log's end (KIP-279 wants this before any is there).

        Stored when the active segment is sealed, or at a clean stop: whatever else ends this process, the next one reads the
        active segment and finds its epochs in the batches.
        """
        self.epochs.assign(leader_epoch, self.log_end_offset)

    def store_epochs(self) -> None:
        if self.epochs.dirty:
            self.unsynced.store_epochs(self.disk, self.directory, self.epochs)

    # ---- segments

    def segment_number(self, offset: int) -> int:
        """Which segment holds `offset`, or would."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def roll(self, now_ms: int, *, base_offset: int | None = None) -> Segment:
        """Seal the active segment and begin a new one at the log's end. An empty one has nothing to seal and stays."""
        active = self.active
        base = self.log_end_offset if base_offset is None else base_offset
        if active.size == 0 and active.base_offset == base:
            active.created_ms = now_ms
            self.set_roll_deadline()
            return active
        if self.unsynced.names_uncertain:
            self.unsynced.make_names_durable(self.disk, self.directory)
        self.store_epochs()
        active.seal()
        # Recovery replays the last segment from here. In the snapshot's name is the log's end: what it reflects.
        snapshot = files.snapshot_path(self.directory, base)
        written = write_snapshot(self.disk, snapshot, self.producers)
        try:
            segment = Segment.create(self.disk, self.directory, base, self.config, now_ms=now_ms)
        except DiskError:
            written.close()
            self.unsynced.new_names = True  # of a segment that was not to be: they must not come back
            raise
        self.unsynced.add(written)
        if self._rng is not None and self.config.segment_jitter_ms > 0:
            segment.jitter_ms = self._rng.randrange(
                min(self.config.segment_jitter_ms, self.config.segment_ms) or 1
            )
        self.unsynced.segments.append(active)
        if self.sealed is not None:
            self.sealed[self.topic, self.partition] = None
        self.segments.append(segment)
        self._bases.append(base)
        self.active = segment
        self.positions.remember(self.log_end_offset, segment, 0)  # readers who wait at the end go on here
        self.set_roll_deadline()
        return segment

    def roll_for(self, last_offset: int, now_ms: int) -> Segment:
        """A new segment that can hold `last_offset`: at the log's end unless a gap of more than 2**31 lies before the batch."""
        return self.roll(now_ms, base_offset=max(self.log_end_offset, last_offset - MAX_RELATIVE_OFFSET))

    def set_roll_deadline(self) -> None:
        """`segment.ms` counts in record time from the first batch; in wall time only where records have no timestamps."""
        segment = self.active
        self._roll_after_timestamp = self._roll_after_ms = _NEVER
        if segment.size == 0:
            return
        wait_ms = self.config.segment_ms_max - segment.jitter_ms
        if segment.roll_timestamp >= 0:
            self._roll_after_timestamp = segment.roll_timestamp + wait_ms
        else:
            self._roll_after_ms = segment.created_ms + wait_ms

    def replace_segments(self, segments: Sequence[Segment]) -> None:
        """For retention and truncation: these are the segments now, and no remembered position is safe."""
        self.segments = list(segments)
        self._bases = [segment.base_offset for segment in segments]
        self.active = self.segments[-1]
        self.positions.clear()
        self._high_watermark_place = None
        self.times_are_known = False
        self.set_roll_deadline()

    # ---- reading

    def read(
        self, start_offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True
    ) -> LogRead:
        """Batches from the one that holds `start_offset` on, below `end_offset`, from one segment.

        RequestError(OFFSET_OUT_OF_RANGE) outside of log start and end; CorruptDataError where damaged bytes stand.
        """
        return log_read.read(
            self, start_offset, max_bytes, end_offset=end_offset, min_one_batch=min_one_batch
        )

    def bytes_between(self, start_offset: int, end_offset: int) -> int:
        return log_read.bytes_between(self, start_offset, end_offset)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record as late as `timestamp`."""
        return log_lookup.offset_for_timestamp(self, timestamp)

    def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the largest timestamp."""
        return log_lookup.max_timestamp_offset(self)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that a `read_committed` reader of [start, end) must know."""
        return replay.aborted_transactions(self, start_offset, end_offset)

    # ---- high watermark

    def set_high_watermark(self, offset: int) -> int:
        """Only upwards, and never outside of the log. Returns the high watermark."""
        log_end_offset = self.log_end_offset
        if offset > log_end_offset:
            offset = log_end_offset
        if offset > self.high_watermark:
            self.high_watermark = offset
            if offset == log_end_offset:
                self._high_watermark_place = (self.active, self.active.size)
            else:
                self._high_watermark_place = self.positions.get(offset)
            self.producers.high_watermark_moved(offset)
        return self.high_watermark

    def high_watermark_place(self) -> tuple[Segment, int]:
        """Segment and position where the high watermark stands, so that a fetch up to it needs no search."""
        if self._high_watermark_place is None:
            self._high_watermark_place = log_read.position_of(self, self.high_watermark)
        return self._high_watermark_place

    # ---- durability

    @property
    def flushing(self) -> bool:
        return self.flush_ticket is not None

    @property
    def dirty(self) -> bool:
        """Something is here that a power loss could take."""
        return self.log_end_offset > self.recovery_point or self.unsynced.anything

    def flush_due(self, now_ms: int) -> bool:
        """A flush is wanted whatever the durability of the broker: a segment was sealed, or `flush.messages` or `flush.ms` say so."""
        unflushed = self.log_end_offset - self.recovery_point
        if unflushed <= 0 or self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        return bool(self.unsynced) or (
            unflushed > 0
            and (
                unflushed >= self.config.flush_messages
                or now_ms - self._unflushed_since_ms >= self.config.flush_ms
            )
        )

    def begin_flush(self) -> FlushTicket | None:
        """A ticket for everything not durable yet, or None if there is nothing. One at a time."""
        if self.flush_ticket is not None:
            raise RuntimeError(f"a flush of {self.name} is under way; finish it first")
        if not self.dirty:
            return None
        self.flush_ticket = self.unsynced.take(
            self.disk,
            self.directory,
            self.active,
            active_is_dirty=self.log_end_offset > max(self.recovery_point, self.active.base_offset),
            end_offset=self.log_end_offset,
        )
        return self.flush_ticket

    def finish_flush(self, ticket: FlushTicket) -> None:
        """The ticket ran without an error: everything below its end offset is durable."""
        if ticket is not self.flush_ticket or not ticket.done:
            raise RuntimeError(
                f"this flush of {self.name} did not run to its end, or is not the one under way"
            )
        self.flush_ticket = None
        self._unflushed_since_ms = None
        if ticket.settles_names:
            self.unsynced.names_uncertain = False
        ticket.release()
        if ticket.end_offset > self.recovery_point:
            self.recovery_point = ticket.end_offset
            # The caller is about to make this the high watermark. At a sealed segment's end the next one begins: roll knows it.
            segment, position = ticket.segment, ticket.position
            if position >= 0 and (segment is self.active or position < segment.size):
                self.positions.remember(ticket.end_offset, segment, position)

    def flush(self) -> None:
        """Begin, run and finish on this thread: for shutdown and tests."""
        ticket = self.begin_flush()
        if ticket is not None:
            ticket.run()
            self.finish_flush(ticket)

    # ---- the ends

    def advance_log_start_offset(self, offset: int) -> bool:
        """Records below `offset` are deleted for every reader at once; their segments go with the next retention.

        The new start survives a crash once a checkpoint holds it (`LogManager.checkpoint`); answer a client after that.
        """
        return retention.advance_log_start(self, offset)

    def apply_retention(self, now_ms: int, *, segments_max: int = _NEVER) -> Retained:
        """Take segments out of the log that time, size or log start let go. Their files leave after `log_start_is_durable`."""
        return retention.apply(self, now_ms, segments_max=segments_max)

    def log_start_is_durable(self, offset: int, now_ms: int) -> None:
        """A checkpoint holds this log start: files of segments below it may go."""
        snapshot = retention.kept_producers(self, offset)
        if snapshot is not None:
            retention.keep_producers(self, snapshot)
        release = retention.release(self, offset, now_ms)
        while release is not None:
            release.run()
            release.finish()
            release = retention.release(self, offset, now_ms)

    def take_due_files(self, now_ms: int) -> list[str]:
        """Files whose `file.delete.delay.ms` is over: whoever takes them removes them, in a thread of its choice."""
        return retention.take_due_files(self, now_ms)

    def truncate_to(self, offset: int) -> bool:
        """Cut the log so that nothing at or above `offset` remains, no leader epoch that begins there either. False if no record was there.
        Durable when it returns.
        """
        return truncation.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Throw everything away and begin anew at `offset`: a follower whose leader has deleted what would come next."""
        truncation.restart_at(self, offset, now_ms=now_ms)

    def recovery_point_is_durable(self, truncation_count: int) -> None:
        """A recovery point taken after that many truncations is checkpointed: the note of an earlier one may go."""
        truncation.forget_limit(self, truncation_count)

    # ---- settings and the end

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        self._segment_bytes = config.segment_bytes
        for segment in self.segments:
            segment.config = config
        self.set_roll_deadline()

    def set_topic_id(self, topic_id: bytes, names_above: DirectoryNames) -> None:
        """Write `partition.metadata`. Durable with the next flush; half of it is taken for none, and written again."""
        checkpoints.write_partition_metadata(
            self.disk, files.join(self.directory, files.PARTITION_METADATA), topic_id
        )
        self.topic_id = topic_id
        self.unsynced.begin(names_above)

    def expire_producers(self, now_ms: int) -> int:
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    def abandon_flush(self) -> None:
        """The partition is on its way out: a flush under way need not succeed any more. To be said before its directory is renamed, or the flush's
        thread may find the directory gone, and take that for a failing disk.
        """
        if self.flush_ticket is not None:
            self.flush_ticket.abandoned = True

    def directory_moved(self, directory: str) -> None:
        """The partition's directory was renamed, on its way out."""
        if self.swap is not None:
            self.swap.abandon()
        self.directory = directory
        for segment in self.segments:
            segment.moved_to(directory)

    @property
    def is_short(self) -> bool:
        """All there is are a few batches in one segment: reading them again is as quick as reading what could be derived from them."""
        active = self.active
        # The same measure as `Segment.may_be_unindexed` takes: who opens the log must come to the same answer.
        fits = active.size <= self.config.index_interval_bytes
        return len(self.segments) == 1 and active.base_offset == 0 and active.unindexed and fits

    def close_cleanly(self) -> None:
        """Make everything durable, with a producer snapshot at the log's end, so that the next start reads next to nothing."""
        if self.swap is not None:
            self.swap.end()
        if (
            self.log_end_offset == 0
        ):  # never written to: recovery of an empty log is as quick as reading its files
            self.close()
            return
        if self.is_short:
            if self.epochs.dirty and self.disk.exists(
                files.join(self.directory, files.LEADER_EPOCH_CHECKPOINT)
            ):
                self.store_epochs()  # a truncation has written it: it must not contradict the batches
            self.flush()
            self.close()
            return
        snapshot = files.snapshot_path(self.directory, self.log_end_offset)
        if self.dirty or not self.disk.exists(
            snapshot
        ):  # otherwise nothing has happened since the last clean stop or roll
            try:
                self.store_epochs()
                self.active.seal()
                self.unsynced.add(write_snapshot(self.disk, snapshot, self.producers))
            except DiskError as error:
                if not error.out_of_space:  # otherwise the next start reads a little more
                    raise
            for file in self.active.all_files()[1:]:
                self.unsynced.add(file)
            self.flush()
        self.close()

    def close(self) -> None:
        """Let go of the files without promising anything."""
        if self.swap is not None:
            self.swap.abandon()
        for segment in (*self.segments, *self.doomed):
            segment.close()
        self.unsynced.close()
