"""The walk over every batch that an unclean stop may have touched: `recovery` decides where it begins, this decides what is valid.

Owns the judgement of batches and the two answers to a bad one (see `recovery`): cut above the recovery point, keep and report below.
Each valid batch goes to indexes, producer state and epochs, in the same way as when it was appended (I4).
"""

from __future__ import annotations

from tidelog.errors import CorruptDataError
from tidelog.storage import files, truncation
from tidelog.storage.batch_scan import Batch, find_valid_batch, scan_batches, scan_headers
from tidelog.storage.disk import Disk
from tidelog.storage.epoch_cache import LeaderEpochCache
from tidelog.storage.failed_sync import sync_all
from tidelog.storage.log_config import LogConfig
from tidelog.storage.producer_snapshot import write_snapshot
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.recovery_report import Cut, Damage, RecoveryReport
from tidelog.storage.replay import apply_marker
from tidelog.storage.segment import MAX_RELATIVE_OFFSET, Segment


class _CapReached(Exception):
    """A truncation that a crash interrupted wants this batch and all behind it gone."""


class Recovery:
    """`run` once; then `segments` and `next_offset` are the log's."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        segments: list[Segment],
        *,
        recovery_point: int,
        cap: int | None,
        epochs: LeaderEpochCache,
        producers: ProducerState,
        report: RecoveryReport,
        now_ms: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._recovery_point = recovery_point
        self._cap = cap
        self._epochs = epochs
        self._producers = producers
        self._report = report
        self._now_ms = now_ms
        self._ends_in_damage: Segment | None = None
        self._segment_end = 0
        self.segments = segments
        self.next_offset = 0

    def run(self, first: int) -> None:
        self.next_offset = self.segments[first].base_offset
        number = first
        while number < len(self.segments):
            segment = self.segments[number]
            if number > first:
                problem = self._discontinuity(segment)
                if problem is not None:
                    self._drop_from(number, problem)
                    break
                self.next_offset = max(self.next_offset, segment.base_offset)
                write_snapshot(
                    self._disk, files.snapshot_path(self._directory, segment.base_offset), self._producers
                ).close()
            if not self._recover_segment(segment):
                self._drop_from(number + 1, "it follows a segment that was cut")
                break
            number += 1
        if self.segments[-1] is self._ends_in_damage:
            # Nothing may be appended behind bytes that are no batches.
            self.segments.append(
                Segment.create(
                    self._disk, self._directory, self.next_offset, self._config, now_ms=self._now_ms
                )
            )
        elif self.next_offset < self._recovery_point:
            self._report_missing()

    # ---- between segments

    def _discontinuity(self, segment: Segment) -> str | None:
        """Why this segment cannot follow. A log rolls exactly at its end; below the recovery point a cleaner may have made gaps."""
        if segment.base_offset < self.next_offset:
            return f"it begins at offset {segment.base_offset}, the one before ends at {self.next_offset}"
        if segment.base_offset == self.next_offset or self.next_offset < self._recovery_point:
            return None
        if _first_last_offset(segment) == segment.base_offset + MAX_RELATIVE_OFFSET:
            return None  # rolled because of a gap too wide for one segment
        return f"offsets {self.next_offset} to {segment.base_offset} (exclusive) are missing before it"

    def _drop_from(self, number: int, problem: str) -> None:
        dropped = self.segments[number:]
        if not dropped:
            return
        for segment in dropped:
            self._report.cuts.append(Cut(segment.file.path, 0, segment.size, self.next_offset, problem))
        del self.segments[number:]
        truncation.remove_segments(
            self._disk, self._directory, dropped, snapshots_above=self.segments[-1].base_offset
        )

    # ---- inside a segment

    def _recover_segment(self, segment: Segment) -> bool:
        """Check every batch and index it. False if the segment was cut, so that nothing can follow it."""
        self._segment_end = end = segment.size
        segment.reset_indexes()
        segment.replace_txn_index()
        while segment.size < end:
            try:
                for batch in scan_batches(segment.file, segment.size, end):
                    self._apply(segment, batch)
                break
            except _CapReached:
                self._cut(segment, "a truncation to this offset was under way")
                return False
            except CorruptDataError as error:
                if self.next_offset >= self._recovery_point:
                    self._report.cuts.append(
                        Cut(segment.file.path, segment.size, end - segment.size, self.next_offset, str(error))
                    )
                    self._cut(segment, str(error))
                    return False
                self._step_over(segment, end, str(error))
        if segment is not self.segments[-1]:
            segment.seal()
        self._report.bytes_checked += segment.size
        return True

    def _apply(self, segment: Segment, batch: Batch) -> None:
        header = batch.header
        if self._cap is not None and header.last_offset >= self._cap:
            raise _CapReached
        problem = self._problem(segment, batch)
        if problem is not None:
            raise CorruptDataError(f"the batch at position {batch.position} {problem}")
        if header.producer_id >= 0:
            if header.is_control:
                aborted = apply_marker(
                    self._producers, batch.buffer, batch.offset, header, header.base_offset
                )
                if aborted is not None:
                    segment.txn_index.append(aborted)
            else:
                self._producers.append(header, header.base_offset, header.last_offset)
        segment.note_batch(batch.position, header)
        latest = self._epochs.latest_epoch
        if header.partition_leader_epoch > (-1 if latest is None else latest):
            self._epochs.assign(header.partition_leader_epoch, header.base_offset)
        self.next_offset = header.next_offset
        self._report.batches_checked += 1

    def _problem(self, segment: Segment, batch: Batch) -> str | None:
        header = batch.header
        if header.base_offset < self.next_offset:
            return f"begins at offset {header.base_offset}, the one before ends at {self.next_offset}"
        if header.last_offset_delta < 0 or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            return f"ends at offset {header.last_offset}, which its segment cannot hold"
        latest = -1 if self._epochs.latest_epoch is None else self._epochs.latest_epoch
        if 0 <= header.partition_leader_epoch < latest:
            return f"has leader epoch {header.partition_leader_epoch} after {latest}"
        if not batch.crc_matches():
            return "fails its CRC"
        if header.base_offset > self.next_offset or header.partition_leader_epoch > latest:
            return self._contradiction(segment, batch, latest)
        return None

    def _contradiction(self, segment: Segment, batch: Batch, latest_epoch: int) -> str | None:
        """Offset and leader epoch are not under the CRC. A batch that leaves a gap, as cleaners make them, or begins an epoch is believed if nothing
        says otherwise: the recovery point, over which there is no gap, or the next batch below it, which would have to lie itself.
        """
        header, expected = batch.header, self.next_offset
        if expected < self._recovery_point < header.base_offset:
            return f"begins at offset {header.base_offset}, and offsets from {expected} on were synced"
        following = batch.position + header.size
        try:
            for _, after in scan_headers(segment.file, following, self._segment_end):
                if after.base_offset >= self._recovery_point:
                    break  # it may be a leftover itself
                if expected <= after.base_offset < header.next_offset:
                    return f"begins at offset {header.base_offset}, and the next one at {after.base_offset}"
                if max(latest_epoch, 0) <= after.partition_leader_epoch < header.partition_leader_epoch:
                    return f"has leader epoch {header.partition_leader_epoch}, and the next one {after.partition_leader_epoch}"
                break
        except CorruptDataError:
            pass  # the next one's own problem
        return None

    def _cut(self, segment: Segment, problem: str) -> None:
        position = segment.size
        segment.file.truncate(position)
        sync_all(self._disk, self._directory, segment.all_files())

    def _step_over(self, segment: Segment, end: int, problem: str) -> None:
        """Damage below the recovery point: go on at the next valid batch, or give the rest of the file up but keep it."""
        position, first_offset = segment.size, self.next_offset
        found = find_valid_batch(
            segment.file,
            position + 1,
            end,
            first_offset=first_offset + 1,  # what is damaged held at least one offset
            last_offset=segment.base_offset + MAX_RELATIVE_OFFSET,
        )
        if found is not None and segment.base_offset_at(found) <= self._recovery_point:
            segment.skip_damage(found)
            self.next_offset = segment.base_offset_at(found)
        else:
            segment.skip_damage(end)
            self.next_offset = max(first_offset, self._end_of(segment))
            self._ends_in_damage = segment
        damage = Damage(
            segment.file.path, position, segment.size - position, first_offset, self.next_offset, problem
        )
        self._report.damages.append(damage)
        segment.damage = (*(segment.damage or ()), damage)

    def _end_of(self, segment: Segment) -> int:
        """Where offsets go on behind a segment whose end cannot be read: no offset that was promised is given again."""
        number = self.segments.index(segment) + 1
        if number < len(self.segments):
            return min(self.segments[number].base_offset, self._recovery_point)
        return self._recovery_point

    def _report_missing(self) -> None:
        last = self.segments[-1]
        self._report.damages.append(
            Damage(
                last.file.path,
                last.size,
                0,
                self.next_offset,
                self._recovery_point,
                "the file ends before data that was synced",
            )
        )


def _first_last_offset(segment: Segment) -> int | None:
    try:
        for _, header in scan_headers(segment.file, 0, segment.size):
            return header.last_offset
    except CorruptDataError:
        pass  # whoever checks the segment will say what is wrong
    return None
