"""The metadata log and its snapshots as the quorum sees them: one history that begins with a snapshot and ends with a log.

Owns what ties the two together (I15): where the log begins, a snapshot must end or lie ahead. `open_history` restores that after a crash between the two;
a gap is never bridged. The core only reads here (`LogView`); the driver changes it. It never decides what is to be cut or committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from tidelog.errors import CorruptDataError, RequestError
from tidelog.quorum.snapshot_store import SnapshotStore
from tidelog.quorum.values import LogEnd, SnapshotId
from tidelog.records.batch import iter_headers, read_header
from tidelog.records.control import LeaderChange, Voter, build_leader_change
from tidelog.storage.disk import DiskError
from tidelog.storage.log import FlushTicket, Log

KEPT_SNAPSHOTS: Final = 2
"""So that damage of one file does not cost the cluster its metadata."""


class LogView(Protocol):
    """What decisions are made from. Nothing of it changes within a step."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end(self) -> LogEnd: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def synced_offset(self) -> int:
        """Everything below survives a power loss."""
        ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    def end_of_epoch(self, epoch: int) -> LogEnd:
        """The greatest epoch here that is not above `epoch`, and where its records end."""
        ...

    def epoch_before_start(self) -> int | None:
        """The epoch of the last record that is not in the log any more, if that is known."""
        ...

    def epoch_at(self, offset: int) -> int | None: ...

    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> bytes: ...

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[int, bytes]: ...


class QuorumLog:
    def __init__(self, log: Log, snapshots: SnapshotStore) -> None:
        self.log = log
        self.snapshots = snapshots

    # ---- LogView

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def end(self) -> LogEnd:
        log = self.log
        epoch = log.epochs.latest_epoch
        if epoch is None:
            epoch = self.epoch_before_start()
        return LogEnd(0 if epoch is None else epoch, log.log_end_offset)

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def synced_offset(self) -> int:
        return self.log.recovery_point

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots.latest

    def end_of_epoch(self, epoch: int) -> LogEnd:
        return LogEnd(*self.log.end_offset_for_epoch(epoch))

    def epoch_before_start(self) -> int | None:
        snapshot = self.snapshots.ending_at(self.log.log_start_offset)
        return None if snapshot is None else snapshot.epoch

    def epoch_at(self, offset: int) -> int | None:
        return self.log.epochs.epoch_for_offset(offset)

    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> bytes:
        """Whole batches from `offset` on; at least one if there is one."""
        found = self.log.read(offset, max_bytes, end_offset=end_offset)
        if found.range is None:
            return b""
        try:
            return found.range.read()
        finally:
            found.range.release()

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[int, bytes]:
        return self.snapshots.read(snapshot, position, max_bytes)

    # ---- changes

    def append_leader_change(
        self, leader_id: int, voters: Sequence[int], granting: Sequence[int], *, epoch: int, now_ms: int
    ) -> None:
        change = LeaderChange(leader_id, tuple(map(Voter, voters)), tuple(map(Voter, granting)))
        batch = build_leader_change(
            change, leader_epoch=epoch, timestamp=now_ms, base_offset=self.log.log_end_offset
        )
        self.log.append_as_leader(batch, read_header(batch), leader_epoch=epoch, now_ms=now_ms)

    def append(self, batches: Sequence[bytes], *, epoch: int, now_ms: int) -> int:
        """All of them or none, although the disk may be full after the first; returns the log's end. RequestError: the disk is full."""
        log = self.log
        before = log.log_end_offset
        try:
            for batch in batches:
                header = read_header(batch)
                if header.base_offset != log.log_end_offset:
                    raise ValueError(
                        f"a batch for offset {header.base_offset} where the log ends at {log.log_end_offset}"
                    )
                log.append_as_leader(batch, header, leader_epoch=epoch, now_ms=now_ms)
        except (RequestError, ValueError):
            log.truncate_to(before)  # nobody has seen it
            raise
        return log.log_end_offset

    def append_fetched(self, records: bytes, *, epoch: int, now_ms: int) -> None:
        """What a leader of `epoch` sent. CorruptDataError, and nothing written, unless it goes on where this log ends."""
        end = self.end
        for _, header in iter_headers(records):
            if header.base_offset != end.offset or not end.epoch <= header.partition_leader_epoch <= epoch:
                raise CorruptDataError(
                    f"a batch of epoch {header.partition_leader_epoch} at offset {header.base_offset} cannot follow"
                    f" offset {end.offset - 1} of epoch {end.epoch} in epoch {epoch}"
                )
            end = LogEnd(header.partition_leader_epoch, header.next_offset)
        self.log.append_as_follower(records, now_ms=now_ms)

    def truncate_to(self, offset: int) -> None:
        if offset < self.log.high_watermark:
            raise AssertionError(
                f"the metadata log was to be cut at {offset}, below its high watermark {self.log.high_watermark}"
            )
        self.log.truncate_to(offset)

    def begin_at(self, snapshot: SnapshotId, *, now_ms: int) -> None:
        """The snapshot is durable: the log begins anew where it ends."""
        self.snapshots.add(snapshot)
        self.log.truncate_fully_and_start_at(snapshot.end_offset, now_ms=now_ms)

    def snapshot_taken(self, snapshot: SnapshotId, *, now_ms: int) -> None:
        """The listeners have made a durable snapshot: what is before the older of the two that are kept may go."""
        self.snapshots.add(snapshot)
        self.snapshots.remove_but(KEPT_SNAPSHOTS)
        if len(self.snapshots.known) < KEPT_SNAPSHOTS:
            return
        try:
            self.log.roll(now_ms)  # segments go as a whole
        except DiskError as error:
            if not error.out_of_space:
                raise
        self.log.advance_log_start_offset(self.snapshots.known[0].end_offset)
        self.log.apply_retention(now_ms)

    def begin_flush(self) -> FlushTicket | None:
        return self.log.begin_flush()


def open_history(log: Log, *, now_ms: int) -> QuorumLog:
    """The log with its snapshots, made to fit each other. CorruptDataError if nothing durable says what was before the log.

    A crash may come between a fetched snapshot and the log's new beginning; and the end of a log that was not synced may be lost although a snapshot of
    it is durable. Then the snapshot is all that counts. The same if the log was in another history when it reached the snapshot's end.
    """
    history = QuorumLog(log, SnapshotStore(log.disk, log.directory))
    snapshot = history.snapshots.latest
    if snapshot is None or snapshot.end_offset < log.log_start_offset:
        if log.log_start_offset > 0:
            raise CorruptDataError(
                f"the metadata log in {log.directory} begins at offset {log.log_start_offset}, and no snapshot covers what was before."
                " Bring one back from a copy of the directory"
            )
        return history
    if log.log_end_offset < snapshot.end_offset or _is_another_history(log, snapshot):
        history.snapshots.check(
            snapshot
        )  # a log is given up for what is better, never for a file that nobody can read
        log.disk.sync_dir(log.directory)  # a killed process may have left its name in the page cache only
        history.begin_at(snapshot, now_ms=now_ms)
    return history


def _is_another_history(log: Log, snapshot: SnapshotId) -> bool:
    if log.log_start_offset >= snapshot.end_offset:
        return False
    return log.epochs.epoch_for_offset(snapshot.end_offset - 1) != snapshot.epoch
