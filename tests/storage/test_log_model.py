"""The log against a list: whatever is done to it, crashes included, it answers as the list does (I1, I3, I4, I5, I39)."""

from __future__ import annotations

import shutil
import tempfile
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.storage.log_world import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    Model,
    append,
    check_order,
    make_batch,
    open_orders,
    producers_of,
    read_all,
    remove_due_files,
)
from tidelog.errors import RequestError
from tidelog.storage import files
from tidelog.storage.log import FlushTicket, Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.posix_disk import PosixDisk
from tidelog.testing.sim.disk import SimDisk
from tidelog.wire.error_codes import ErrorCode

TIMES = st.integers(0, 40).map(lambda n: NOW_MS + 10 * n)


class LogMachine(RuleBasedStateMachine):
    config: LogConfig = SMALL
    directory: str = DIRECTORY
    disk: SimDisk | PosixDisk

    def make_disk(self, seed: int) -> SimDisk | PosixDisk:
        return SimDisk(Random(seed))

    def crash_disk(self, mode: str) -> SimDisk | PosixDisk:
        assert isinstance(self.disk, SimDisk)
        return self.disk.crash(mode)  # type: ignore[arg-type]

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        self.disk = self.make_disk(seed)
        self.log: Log = open_orders(self.disk, self.config, directory=self.directory)
        self.model = Model()
        self.sequences: dict[int, int] = {}
        self.last_sent: dict[int, tuple[bytes, int]] = {}
        self.ticket: FlushTicket | None = None
        self.leader_epoch = 0
        self.now_ms = NOW_MS
        self.checkpointed = {"recovery_point": 0, "log_start_offset": 0, "high_watermark": 0}
        self.snapshots_deleted = False

    # ---- writing

    @rule(times=st.lists(TIMES, min_size=1, max_size=4), size=st.integers(0, 120))
    def append_plain(self, times: list[int], size: int) -> None:
        batch = make_batch(times, value=b"x" * size)
        result = append(self.log, batch, leader_epoch=self.leader_epoch, now_ms=self.now_ms)
        self.model.appended(batch, result.base_offset, self.leader_epoch)

    @rule(producer_id=st.integers(1, 3), count=st.integers(1, 3), time=TIMES)
    def append_idempotent(self, producer_id: int, count: int, time: int) -> None:
        sequence = self.sequences.get(producer_id, 0)
        batch = make_batch([time] * count, producer_id=producer_id, producer_epoch=0, sequence=sequence)
        result = append(self.log, batch, leader_epoch=self.leader_epoch, now_ms=self.now_ms)
        assert not result.duplicate
        self.model.appended(batch, result.base_offset, self.leader_epoch)
        self.sequences[producer_id] = sequence + count
        self.last_sent[producer_id] = (batch, result.base_offset)

    @precondition(lambda self: self.last_sent)
    @rule(data=st.data())
    def retry_is_a_duplicate(self, data: st.DataObject) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.last_sent)))
        batch, base_offset = self.last_sent[producer_id]
        end_before = self.log.log_end_offset
        result = append(self.log, batch, leader_epoch=self.leader_epoch, now_ms=self.now_ms)
        assert result.duplicate
        assert result.base_offset == base_offset
        assert self.log.log_end_offset == end_before

    @rule(gap=st.integers(0, 5), count=st.integers(1, 3), time=TIMES)
    def append_as_follower_behind_a_gap(self, gap: int, count: int, time: int) -> None:
        base_offset = self.log.log_end_offset + gap
        batch = make_batch([time] * count, base_offset=base_offset, leader_epoch=self.leader_epoch)
        assert self.log.append_as_follower(batch, now_ms=self.now_ms) == 1
        self.model.appended(batch, base_offset, self.leader_epoch)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule()
    def new_leader_epoch(self) -> None:
        self.leader_epoch += 1
        self.log.start_epoch(self.leader_epoch)

    # ---- durability

    @precondition(lambda self: self.ticket is None)
    @rule()
    def begin_flush(self) -> None:
        self.ticket = self.log.begin_flush()

    @precondition(lambda self: self.ticket is not None)
    @rule()
    def run_and_finish_flush(self) -> None:
        assert self.ticket is not None
        self.ticket.run()
        self.log.finish_flush(self.ticket)
        self.ticket = None
        self.log.set_high_watermark(self.log.recovery_point)

    @rule()
    def checkpoint(self) -> None:
        self.checkpointed = {
            "recovery_point": self.log.recovery_point,
            "log_start_offset": self.log.log_start_offset,
            "high_watermark": self.log.high_watermark,
        }
        self.log.recovery_point_is_durable(self.log.truncation_count)
        self.log.log_start_is_durable(self.log.log_start_offset, self.now_ms)
        self.now_ms += 500
        remove_due_files(self.log, self.now_ms)

    # ---- the ends

    @rule(fraction=st.floats(0, 1))
    def move_high_watermark(self, fraction: float) -> None:
        before = self.log.high_watermark
        span = self.log.log_end_offset - self.log.log_start_offset
        target = self.log.log_start_offset + int(span * fraction)
        assert self.log.set_high_watermark(target) == max(before, target)

    @rule(fraction=st.floats(0, 1))
    def delete_records(self, fraction: float) -> None:
        span = self.log.high_watermark - self.log.log_start_offset
        self.log.advance_log_start_offset(self.log.log_start_offset + int(span * fraction))

    @rule(retention_bytes=st.integers(0, 3000))
    def retain(self, retention_bytes: int) -> None:
        high_watermark = self.log.high_watermark
        self.log.config = LogConfig(**{**_fields(self.config), "retention_bytes": retention_bytes})
        self.log.apply_retention(self.now_ms)
        self.log.config = self.config
        assert self.log.log_start_offset <= high_watermark

    @rule(fraction=st.floats(0.3, 1))
    def truncate(self, fraction: float) -> None:
        span = self.log.log_end_offset - self.log.log_start_offset
        target = self.log.log_start_offset + int(span * fraction)
        if not self.log.truncate_to(target):
            return
        assert self.log.log_end_offset <= target
        self.model.cut(self.log.log_end_offset)
        if self.log.log_end_offset == self.log.log_start_offset and not len(self.log.producers):
            self.model = Model()  # nothing is left; producers are known from batches alone again
        self.forget_lost_batches()

    @rule(gap=st.integers(0, 20))
    def start_anew_further_up(self, gap: int) -> None:
        offset = self.log.log_end_offset + gap
        self.log.truncate_fully_and_start_at(offset, now_ms=self.now_ms)
        assert (self.log.log_start_offset, self.log.log_end_offset) == (offset, offset)
        self.model = Model()
        self.forget_lost_batches()

    # ---- stops

    @rule(mode=st.sampled_from(["keep_all", "lose_unsynced", "random", "random"]))
    def crash(self, mode: str) -> None:
        promised, end_before, start_before = (
            self.log.recovery_point,
            self.log.log_end_offset,
            self.log.log_start_offset,
        )
        self.disk = self.crash_disk(mode)
        self.reopen(clean=False)
        assert self.log.log_end_offset >= promised
        assert self.log.log_end_offset <= end_before
        assert self.log.log_start_offset <= max(start_before, self.log.log_end_offset)
        assert not self.log.recovery.damages, self.log.recovery.lines()
        if mode == "keep_all":
            assert self.log.log_end_offset == end_before or not self.model.visible(
                self.log.log_end_offset, 1 << 62
            )
        self.model.cut(self.log.log_end_offset)
        self.check_producers()

    @precondition(lambda self: self.ticket is None)
    @rule()
    def stop_cleanly(self) -> None:
        end_before = self.log.log_end_offset
        self.log.close_cleanly()
        self.checkpoint_values()
        self.disk = self.crash_disk("lose_unsynced")
        self.reopen(clean=True)
        assert self.log.recovery.clean
        assert self.log.log_end_offset == end_before or not self.model.visible(
            self.log.log_end_offset, 1 << 62
        )
        assert self.log.recovery_point == self.log.log_end_offset
        self.check_producers()

    @precondition(lambda self: self.ticket is None)
    @rule(clean=st.booleans(), data=st.data())
    def stop_and_lose_derived_files(self, clean: bool, data: st.DataObject) -> None:
        self.log.close_cleanly()
        self.checkpoint_values()
        kinds = data.draw(
            st.sets(
                st.sampled_from([".index", ".timeindex", ".txnindex", ".snapshot", "checkpoint"]), min_size=1
            )
        )
        for name in self.disk.list_dir(self.directory):
            if any(name.endswith(kind) for kind in kinds):
                self.disk.remove(files.join(self.directory, name))
        self.snapshots_deleted = self.snapshots_deleted or ".snapshot" in kinds
        self.reopen(clean=clean)
        self.model.cut(self.log.log_end_offset)
        self.check_producers()

    def checkpoint_values(self) -> None:
        self.checkpointed = {
            "recovery_point": self.log.recovery_point,
            "log_start_offset": self.log.log_start_offset,
            "high_watermark": self.log.high_watermark,
        }
        self.log.recovery_point_is_durable(self.log.truncation_count)

    def reopen(self, *, clean: bool) -> None:
        self.log = open_orders(
            self.disk, self.config, directory=self.directory, clean=clean, **self.checkpointed
        )
        self.ticket = None

    def forget_lost_batches(self) -> None:
        known = producers_of(self.log.producers)
        self.sequences = {producer_id: entry[1] for producer_id, entry in known.items()}
        self.last_sent = {
            producer_id: sent
            for producer_id, sent in self.last_sent.items()
            if producer_id in known
            and any(b[1] == sent[1] + _count(sent[0]) - 1 for b in known[producer_id][2])
        }

    def check_producers(self) -> None:
        known = producers_of(self.log.producers)
        if not self.snapshots_deleted:
            assert known == self.model.producers()
        else:
            whole = self.model.producers()
            for producer_id, entry in self.model.producers(
                from_offset=self.log.segments[0].base_offset
            ).items():
                assert known[producer_id][1] == entry[1] == whole[producer_id][1]
        self.forget_lost_batches()
        for batch in self.model.visible(self.log.log_start_offset, self.log.log_end_offset):
            assert (
                self.log.epochs.epoch_for_offset(max(batch.base_offset, self.log.log_start_offset))
                == batch.leader_epoch
            )

    # ---- reading

    @rule(max_bytes=st.integers(1, 2000))
    def read_everything(self, max_bytes: int) -> None:
        expected = self.model.visible(self.log.log_start_offset, self.log.log_end_offset)
        assert read_all(self.log, max_bytes=max_bytes) == expected

    @rule(fraction=st.floats(0, 1), max_bytes=st.integers(1, 2000))
    def read_somewhere(self, fraction: float, max_bytes: int) -> None:
        span = self.log.high_watermark - self.log.log_start_offset
        start = self.log.log_start_offset + int(span * fraction)
        expected = self.model.visible(start, self.log.high_watermark)
        assert read_all(self.log, start=start, max_bytes=max_bytes, end=self.log.high_watermark) == expected
        if expected:
            assert self.log.bytes_between(start, self.log.high_watermark) >= 1

    @rule(distance=st.integers(1, 5))
    def read_outside(self, distance: int) -> None:
        for offset in (self.log.log_start_offset - distance, self.log.log_end_offset + distance):
            with pytest.raises(RequestError) as caught:
                self.log.read(offset, 100, end_offset=self.log.log_end_offset)
            assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    @rule(time=TIMES)
    def look_up_a_time(self, time: int) -> None:
        found = self.log.offset_for_timestamp(time)
        assert (found and found[:2]) == self.model.first_at(time, self.log.log_start_offset)

    @rule()
    def look_up_the_latest_time(self) -> None:
        found = self.log.max_timestamp_offset()
        start = self.log.log_start_offset
        times = [r for batch in self.model.batches for r in batch.records if r[1] >= start]
        expected = max(times, key=lambda r: (r[0], -r[1])) if times else None
        assert (found and found[:2]) == expected

    @invariant()
    def offsets_are_in_order(self) -> None:
        if hasattr(self, "log"):
            check_order(self.log)


def _count(batch: bytes) -> int:
    from tidelog.records.batch import read_header

    return read_header(batch).record_count


def _fields(config: LogConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in LogConfig.__slots__}


class PosixLogMachine(LogMachine):
    """The same on real files. A crash is a killed process: nobody closes anything, nothing is lost."""

    def make_disk(self, seed: int) -> SimDisk | PosixDisk:
        self.root = tempfile.mkdtemp(prefix="tidelog-log-")
        self.directory = f"{self.root}/orders-0"
        self.disks = [PosixDisk(max_open_files=4)]
        return self.disks[0]

    def crash_disk(self, mode: str) -> SimDisk | PosixDisk:
        self.log.close()
        self.disks.append(PosixDisk(max_open_files=4))
        return self.disks[-1]

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.log.close()
            shutil.rmtree(self.root)


_QUICK = settings(suppress_health_check=list(HealthCheck), print_blob=False)
LogMachine.TestCase.settings = settings(_QUICK, max_examples=80, stateful_step_count=40)
PosixLogMachine.TestCase.settings = settings(_QUICK, max_examples=10, stateful_step_count=30)
TestLogAgainstModel = LogMachine.TestCase
TestLogOnRealFilesAgainstModel = PosixLogMachine.TestCase
