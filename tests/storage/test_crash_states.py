"""Every crash of small histories: whatever of the unsynced operations survives, the log opens and keeps its promises.

For each history of a few steps, the simulated disk enumerates what a crash after each single operation may leave, torn and reordered
writes and reverted names included. Each of these disks is opened and checked against what was appended (I1, I3, I4, I5, I7, I39).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.storage.log_world import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    Model,
    Stored,
    append,
    check_order,
    make_batch,
    open_orders,
    producers_of,
    read_all,
    remove_due_files,
)
from tidelog.records.batch import read_header
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.testing.sim.disk import SimDisk


class History:
    """A log on a recording disk, and after how many disk operations which promise was made."""

    def __init__(self, config: LogConfig = SMALL) -> None:
        self.config = config
        self.disk = SimDisk(Random(7), record=True)
        self.disk.make_dirs("/data")
        self.log: Log = open_orders(self.disk, config)
        self.models: list[tuple[int, Model]] = []  # the batches that may be found from this operation on
        self.model = Model()
        self.promises: list[tuple[int, int]] = []  # (operation, everything below this offset is durable)
        self.starts: list[
            tuple[int, int]
        ] = []  # (operation, records below this offset were deleted for good)
        self.checkpoints: list[tuple[int, dict[str, int]]] = [(0, dict.fromkeys(_CHECKPOINTS, 0))]
        self.sequence = 0
        self.number = 0
        self._note_model()

    def _note_model(self) -> None:
        copy = Model()
        copy.batches = list(self.model.batches)
        self.models.append((self.disk.operations, copy))

    def append(self, count: int = 1, size: int = 40, *, epoch: int = 0) -> None:
        for _ in range(count):
            batch = make_batch(
                (NOW_MS + self.number,), value=b"%06d" % self.number * (size // 6), producer_id=5, producer_epoch=0,
                sequence=self.sequence,
            )  # fmt: skip
            # Whatever is written from here on may survive, also if this call never returned.
            self.model.appended(batch, self.log.log_end_offset, epoch)
            self._note_model()
            append(self.log, batch, leader_epoch=epoch)
            self.number += 1
            self.sequence += 1

    def flush(self) -> None:
        self.log.flush()
        self.promises.append((self.disk.operations, self.log.recovery_point))

    def commit(self) -> None:
        self.log.set_high_watermark(self.log.log_end_offset)

    def checkpoint(self) -> None:
        """As the log manager does it, with a file of its own in the same disk, so that it is as durable as that."""
        values = {
            "recovery_point": self.log.recovery_point,
            "log_start_offset": self.log.log_start_offset,
            "high_watermark": self.log.high_watermark,
        }
        self.checkpoints.append((self.disk.operations, values))
        self.starts.append((self.disk.operations, self.log.log_start_offset))
        self.log.recovery_point_is_durable(self.log.truncation_count)
        self.log.log_start_is_durable(self.log.log_start_offset, NOW_MS)

    def truncate(self, offset: int) -> None:
        before = self.disk.operations
        self.promises.append((before, 0))  # from here on nothing above the cut is promised
        self.model.cut(offset)
        self._note_model()
        assert self.log.truncate_to(offset)
        self.promises.append((self.disk.operations, self.log.recovery_point))
        self.sequence = self.log.producers.get(5).next_sequence if self.log.producers.get(5) else 0

    def restart(self, offset: int) -> None:
        self.promises.append((self.disk.operations, 0))
        self.model = Model()
        self._note_model()
        self.log.truncate_fully_and_start_at(offset, now_ms=NOW_MS)
        self.promises.append((self.disk.operations, self.log.recovery_point))
        self.sequence = 0

    # ---- judging

    def check_all(self, *, subsets_up_to: int = 4) -> int:
        count = 0
        for state in self.disk.crash_states(subsets_up_to=subsets_up_to):
            if not state.disk.is_dir("/data"):
                continue
            count += 1
            try:
                self.check(state.operations, state.disk, and_go_on=count % 4 == 0)
            except Exception as error:
                error.add_note(f"after {state.operations} operations, {state.label}")
                raise
        return count

    def check(self, operations: int, disk: SimDisk, *, and_go_on: bool) -> None:
        past = [values for at, values in self.checkpoints if at <= operations]
        log = open_orders(disk, self.config, **past[-1])
        check_order(log)
        assert not log.recovery.damages, log.recovery.lines()
        promised = max([0, *_since_last_cut(self.promises, operations)])
        assert log.log_end_offset >= promised, "something that was fsynced is gone"
        durable_start = max([0, *(offset for at, offset in self.starts if at <= operations)])
        assert log.log_start_offset >= durable_start, "deleted records are back"
        found = read_all(log)
        self._check_epochs_and_times(log, found)
        assert self._is_known(operations, log, found), f"{found} is no prefix of what was appended"
        if log.log_start_offset <= promised:  # what was never synced is promised to nobody
            self._check_producers(operations, log)
        if and_go_on:
            self._check_goes_on(log, disk)

    def _candidates(self, operations: int) -> list[Model]:
        """The histories that the disk may show: the one at this moment, or, in the middle of a step, the one before."""
        known = [(at, model) for at, model in self.models if at <= operations]
        later = [model for at, model in self.models if at > operations]
        return [model for _, model in known[-2:]] + later[:1]

    def _is_known(self, operations: int, log: Log, found: list[Stored]) -> bool:
        return any(
            found == model.visible(log.log_start_offset, log.log_end_offset)
            for model in self._candidates(operations)
        )

    def _check_epochs_and_times(self, log: Log, found: list[Stored]) -> None:
        """Derived state agrees with the batches, also below the recovery point, where nothing was scanned."""
        for batch in found:
            assert (
                log.epochs.epoch_for_offset(max(batch.base_offset, log.log_start_offset))
                == batch.leader_epoch
            )
        times = {batch.base_offset: read_header(bytes(16) + batch.payload).max_timestamp for batch in found}
        for offset, time in times.items():
            assert log.offset_for_timestamp(time) == (time, offset, log.epochs.epoch_for_offset(offset))
        for segment, end in zip(
            log.segments, [*(s.base_offset for s in log.segments[1:]), log.log_end_offset], strict=True
        ):
            inside = [time for offset, time in times.items() if segment.base_offset <= offset < end]
            assert segment.max_timestamp >= max(inside, default=-1), "retention would delete it too early"

    def _check_producers(self, operations: int, log: Log) -> None:
        expected = []
        for model in self._candidates(operations):
            cut = Model()
            cut.batches = list(model.batches)
            cut.cut(log.log_end_offset)
            expected.append(cut.producers())
        assert producers_of(log.producers) in expected

    def _check_goes_on(self, log: Log, disk: SimDisk) -> None:
        """The log is alive: the next batch gets the next offset, a retry of it does not, and a clean restart agrees."""
        entry = log.producers.get(5)
        batch = make_batch(
            (NOW_MS,), producer_id=5, producer_epoch=0, sequence=entry.next_sequence if entry else 0
        )
        end = log.log_end_offset
        assert append(log, batch, leader_epoch=9).base_offset == end
        assert append(log, batch, leader_epoch=9).duplicate
        before = read_all(log)
        start = log.log_start_offset
        log.close_cleanly()
        again = open_orders(
            disk.crash("lose_unsynced"),
            self.config,
            clean=True,
            recovery_point=end + 1,
            log_start_offset=start,
        )
        assert read_all(again) == before
        assert producers_of(again.producers) == producers_of(log.producers)


_CHECKPOINTS = ("recovery_point", "log_start_offset", "high_watermark")


def _since_last_cut(promises: list[tuple[int, int]], operations: int) -> list[int]:
    past = [offset for at, offset in promises if at <= operations]
    cut = max((number for number, offset in enumerate(past) if offset == 0), default=0)
    return past[cut:]


def append_and_flush(history: History) -> None:
    history.append(2)
    history.flush()
    history.append(2)


def roll(history: History) -> None:
    history.append(6)
    history.log.roll(NOW_MS)
    history.append(2)


def roll_then_flush(history: History) -> None:
    history.append(4)
    history.log.roll(NOW_MS)
    history.append(1)
    history.flush()
    history.checkpoint()
    history.append(1)


def roll_while_a_flush_runs(history: History) -> None:
    history.append(4)  # enough for the time index to have more than the entry it gets when it is sealed
    ticket = history.log.begin_flush()
    assert ticket is not None
    history.log.roll(NOW_MS)
    ticket.run()
    history.log.finish_flush(ticket)
    history.promises.append((history.disk.operations, history.log.recovery_point))
    history.checkpoint()
    history.append(2)


def new_epochs(history: History) -> None:
    history.append(2, epoch=1)
    history.flush()
    history.append(1, epoch=2)
    history.log.roll(NOW_MS)
    history.append(1, epoch=3)
    history.flush()
    history.checkpoint()
    history.append(1, epoch=4)


def retention(history: History) -> None:
    history.append(3)
    history.log.roll(NOW_MS)
    history.append(2)
    history.log.roll(NOW_MS)
    history.append(1)
    history.commit()
    history.log.config = LogConfig(
        segment_bytes=700, index_interval_bytes=150, retention_bytes=1, file_delete_delay_ms=0
    )
    assert history.log.apply_retention(NOW_MS).segments == 2
    history.checkpoint()
    remove_due_files(history.log, NOW_MS)
    history.log.config = history.config
    history.append(1)
    history.flush()


def retention_takes_everything(history: History) -> None:
    history.append(3)
    history.flush()
    history.commit()
    history.log.config = LogConfig(retention_ms=0, file_delete_delay_ms=0)
    assert history.log.apply_retention(NOW_MS + 1000).segments == 1
    history.log.config = history.config
    history.checkpoint()
    remove_due_files(history.log, NOW_MS + 1)
    history.append(1)


def delete_records(history: History) -> None:
    history.append(3)
    history.log.roll(NOW_MS)
    history.append(2)
    history.flush()
    history.commit()
    history.log.advance_log_start_offset(4)
    history.checkpoint()
    history.log.apply_retention(NOW_MS)
    history.checkpoint()
    history.append(1)


def truncate_inside_a_segment(history: History) -> None:
    history.append(3)
    history.flush()
    history.checkpoint()
    history.truncate(1)
    history.append(2, size=40, epoch=1)
    history.flush()


def truncate_over_segments(history: History) -> None:
    history.append(2)
    history.log.roll(NOW_MS)
    history.append(2)
    history.log.roll(NOW_MS)
    history.append(1)
    history.flush()
    history.checkpoint()
    history.truncate(1)
    history.append(2, epoch=1)


def truncate_what_was_never_synced(history: History) -> None:
    history.append(2)
    history.log.roll(NOW_MS)
    history.append(2)
    history.truncate(3)
    history.append(2, epoch=1)
    history.flush()


def start_anew_elsewhere(history: History) -> None:
    history.append(2)
    history.log.roll(NOW_MS)
    history.append(2)
    history.flush()
    history.checkpoint()
    history.restart(10)
    history.append(1, epoch=1)
    history.flush()


def start_anew_after_retention(history: History) -> None:
    history.append(2)
    history.log.roll(NOW_MS)
    history.append(1)
    history.flush()
    history.commit()
    history.log.advance_log_start_offset(2)
    assert history.log.apply_retention(NOW_MS).segments == 1
    history.restart(3)
    history.append(1, epoch=1)
    history.flush()


HISTORIES: list[Callable[[History], None]] = [
    append_and_flush, roll, roll_then_flush, roll_while_a_flush_runs, new_epochs, retention, retention_takes_everything,
    delete_records, truncate_inside_a_segment, truncate_over_segments, truncate_what_was_never_synced, start_anew_elsewhere,
    start_anew_after_retention,
]  # fmt: skip


@pytest.mark.parametrize("steps", HISTORIES, ids=lambda steps: steps.__name__)
def test_every_crash_state_opens_and_keeps_its_promises(steps: Callable[[History], None]) -> None:
    history = History()
    steps(history)
    assert history.check_all() > 20


def test_a_crash_during_recovery_is_as_good_as_one_before() -> None:
    """F20: recovery itself writes; whatever of that survives, the next recovery finds the same log."""
    history = History()
    roll(history)
    crashed = history.disk.crash("keep_all")
    torn = crashed.open(f"{DIRECTORY}/00000000000000000006.log")
    torn.truncate(torn.size() - 7)
    expected_end = 7
    crashed.start_recording()
    first = open_orders(crashed)
    assert first.log_end_offset == expected_end
    expected = read_all(first)
    states = 0
    for state in crashed.crash_states(subsets_up_to=3):
        if state.label != "killed":
            continue
        states += 1
        assert read_all(open_orders(state.disk)) == expected, state.operations
    assert states > 5
