"""A log on a full disk: whichever operation of an append finds no room, the batch is refused, nothing else changes, and it fits later.

The disk has no room for the k-th operation, for every k of a history that writes, indexes and rolls; then it has again. Every batch is
retried until it is taken, as a producer does. The log must then be what it would be without the trouble, also after a power cut (I1-I7).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

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
)
from tidelog.errors import RequestError
from tidelog.records.batch import read_header
from tidelog.storage.disk import DiskError
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager
from tidelog.storage.posix_disk import PosixDisk
from tidelog.testing.sim.clock import SimClock
from tidelog.testing.sim.disk import Fault, SimDisk
from tidelog.wire.error_codes import ErrorCode

EFFORT = int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))
GROWING = ("write", "create", "rename")
BATCHES = 16
FLUSH_EVERY = 4
TRIES_MAX = 4


def batches() -> Iterator[bytes]:
    """Of all sizes, so that after a refused roll a smaller one still fits into the old segment."""
    for number in range(BATCHES):
        yield make_batch(
            (NOW_MS + 10 * number, NOW_MS + 10 * number + 3),
            value=b"%d" % number * (1 + 40 * (number % 3)),
            producer_id=7,
            producer_epoch=0,
            sequence=2 * number,
        )


class Trouble(Fault):
    """No room for the operations from number `first` on, `count` of them; `partial_bytes` of a write still find some."""

    def __init__(self, disk: SimDisk, first: int, count: int, partial_bytes: int) -> None:
        super().__init__("", errno.ENOSPC, lambda path: True, 1 << 30, partial_bytes)
        self._trouble = range(first, first + count)
        self.seen = 0
        disk.faults.append(self)

    def strikes(self, operation: str, path: str) -> bool:
        if operation not in GROWING:
            return False
        self.seen += 1
        return self.seen - 1 in self._trouble


class History:
    def __init__(self, disk: SimDisk, *, epochs: bool = False) -> None:
        self.disk = disk
        self.log = open_orders(disk)
        self.model = Model()
        self.durable_end = 0
        self.refused = 0
        self._epochs = epochs

    def run(self) -> None:
        for number, batch in enumerate(batches()):
            self._append(batch, leader_epoch=number // 6 if self._epochs else 0)
            if number % FLUSH_EVERY == FLUSH_EVERY - 1:
                self.log.flush()
                self.log.set_high_watermark(self.log.log_end_offset)
                self.durable_end = self.log.log_end_offset

    def _append(self, batch: bytes, leader_epoch: int) -> None:
        for _ in range(TRIES_MAX):
            try:
                result = append(self.log, batch, leader_epoch=leader_epoch)
            except RequestError as error:
                assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
                assert "No space left" in error.message
                self.refused += 1
                self._check_untouched()
            else:
                assert not result.duplicate
                self.model.appended(batch, result.base_offset, leader_epoch)
                return
        raise AssertionError("the disk has room again, and the batch is refused all the same")

    def _check_untouched(self) -> None:
        check_same(self.log, self.model)
        active = self.log.active
        assert self.disk.file_size(active.file.path) == active.size, "what was half written is gone"
        for index in (active.offset_index, active.time_index):
            assert self.disk.file_size(index.file.path) == index.size_bytes
        bases = {segment.base_offset for segment in self.log.segments}
        on_disk = {int(name.split(".")[0]) for name in self.disk.list_dir(DIRECTORY) if name.endswith(".log")}
        assert on_disk == bases, "no segment is left on disk that the log does not know"


def check_same(log: Log, model: Model) -> None:
    check_order(log)
    assert read_all(log) == model.visible(0, log.log_end_offset)
    assert producers_of(log.producers) == model.producers()
    for timestamp in range(NOW_MS, NOW_MS + 10 * BATCHES, 37):
        found = log.offset_for_timestamp(timestamp)
        assert (found[:2] if found else None) == model.first_at(timestamp, 0)


def operations(epochs: bool) -> int:
    disk = SimDisk(random.Random(0))
    history = History(disk, epochs=epochs)
    trouble = Trouble(disk, 1 << 30, 0, 0)
    history.run()
    return trouble.seen


WAYS = [
    (partial_bytes, count, epochs)
    for partial_bytes in (0, 5, 70)
    for count in (1, 2)
    for epochs in (False, True)
]
if EFFORT == 1:
    WAYS = [(0, 1, True), (5, 2, False), (70, 2, True)]


@pytest.mark.parametrize(("partial_bytes", "count", "epochs"), WAYS)
def test_no_room_for_any_one_operation(partial_bytes: int, count: int, epochs: bool) -> None:
    refused = 0
    for first in range(operations(epochs)):
        disk = SimDisk(random.Random(first))
        history = History(disk, epochs=epochs)
        Trouble(disk, first, count, partial_bytes)
        history.run()
        refused += history.refused
        check_same(history.log, history.model)
        disk.faults.clear()
        for mode in ("keep_all", "lose_unsynced", "random"):
            check_after(disk.crash(mode), history)  # type: ignore[arg-type]
        history.log.close_cleanly()
        again = open_orders(disk, clean=True)
        check_same(again, history.model)
        assert again.epochs.checkpoint_entries() == history.log.epochs.checkpoint_entries()
    assert refused >= operations(epochs) // 2, "hardly anything was refused: nothing was shown"


def check_after(disk: SimDisk, history: History) -> None:
    """What was flushed is there; what follows it is a part of what was appended, without a gap."""
    log = open_orders(disk, recovery_point=history.durable_end)
    end = log.log_end_offset
    assert history.durable_end <= end <= history.log.log_end_offset
    assert read_all(log) == history.model.visible(0, end)


class NoInodes(PosixDisk):
    """The real disk, which has no room for another time index."""

    def _open_descriptor(self, path: str, flags: int) -> int:
        if path.endswith(".timeindex") and flags & os.O_CREAT and not os.path.exists(path):
            raise DiskError("open", path, OSError(errno.ENOSPC, "No space left on device"))
        return super()._open_descriptor(path, flags)


def test_refused_rolls_hold_no_files(tmp_path: Path) -> None:
    """A producer retries for hours: what each try opens is closed again."""
    directory = str(tmp_path / "orders-0")
    log = open_orders(PosixDisk(), directory=directory)
    batch = make_batch(value=b"x" * 600)
    append(log, batch)
    log.flush()
    log.close()
    disk = NoInodes()
    log = open_orders(disk, directory=directory)
    counts = set()
    for _ in range(20):
        with pytest.raises(RequestError, match="No space left"):
            append(log, batch)
        counts.add(disk.open_files)
    assert len(counts) == 1
    assert sorted(name for name in os.listdir(directory) if name.endswith(".log")) == [
        "00000000000000000000.log"
    ]


def test_a_refused_batch_leaves_no_timestamp_behind() -> None:
    """It is given up; the one after it is older."""
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    append(log, make_batch((NOW_MS,), value=b"x" * 200))
    disk.fail("write", errno.ENOSPC, matches=lambda path: path.endswith(".index"))
    with pytest.raises(RequestError):
        append(log, make_batch((NOW_MS + 10**6,), value=b"x" * 200))
    append(log, make_batch((NOW_MS + 5,)))
    assert log.active.max_timestamp == NOW_MS + 5
    assert log.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 5, 1, 0)
    append(log, make_batch((NOW_MS + 6,)))
    assert log.active.offset_index.entries == 1, "the next entry is not late"


def test_a_refused_roll_stays_undone_after_a_power_cut() -> None:
    """The name of the segment that was not to be must not come back behind data that has grown past it."""
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    append(log, make_batch(value=b"x" * 300))
    log.flush()
    disk.start_recording()
    disk.fail("create", errno.ENOSPC, matches=lambda path: path.endswith(".txnindex"))
    with pytest.raises(RequestError):
        append(log, make_batch(value=b"x" * 500))
    append(log)
    log.flush()
    durable = disk.operations
    states = 0
    for state in disk.crash_states():
        if state.operations >= durable:
            states += 1
            assert open_orders(state.disk, recovery_point=2).log_end_offset == 2, state.label
    assert states


@pytest.mark.parametrize("operation", ["write", "create"])
def test_any_other_failure_is_the_disks(operation: str) -> None:
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    append(log)
    disk.fail(operation, errno.EIO)
    with pytest.raises(DiskError):
        append(log, make_batch(value=b"x" * 600))


def test_a_cut_that_fails_is_the_disks() -> None:
    """What was half written cannot be cut off, so the log cannot go on."""
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    append(log)
    disk.fail("write", errno.ENOSPC, partial_bytes=20)
    disk.fail("truncate", errno.EIO)
    with pytest.raises(DiskError) as failure:
        append(log)
    assert failure.value.operation == "truncate"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_sync_that_finds_no_room_is_never_taken_lightly(code: int) -> None:
    """A thin or remote volume learns only then that it is full, and has dropped the data."""
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    append(log)
    disk.fail("sync", code)
    with pytest.raises(DiskError) as failure:
        log.flush()
    assert not failure.value.out_of_space


# ---- producers whose first batch finds no room


def sequence(number: int, *, producer_id: int = 9, epoch: int = 0) -> bytes:
    return make_batch(producer_id=producer_id, producer_epoch=epoch, sequence=number)


def code_of(work: Callable[[], object]) -> str:
    try:
        work()
    except RequestError as error:
        return error.code.name
    return "NONE"


def test_the_batch_behind_a_refused_first_one_does_not_take_its_place() -> None:
    """A new producer may begin anywhere, so its second batch, sent before it heard of the refusal, would be taken for its first."""
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    disk.fail("write", errno.ENOSPC)
    assert code_of(lambda: append(log, sequence(0))) == "KAFKA_STORAGE_ERROR"
    assert code_of(lambda: append(log, sequence(1))) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert code_of(lambda: append(log, sequence(5, producer_id=10))) == "NONE", "another producer"
    assert [code_of(lambda n=n: append(log, sequence(n))) for n in range(3)] == ["NONE"] * 3  # type: ignore[misc]
    assert append(log, sequence(1)).duplicate


def test_a_producer_that_gives_the_refused_batch_up_begins_a_new_epoch() -> None:
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    disk.fail("write", errno.ENOSPC, times=2)
    assert code_of(lambda: append(log, sequence(0))) == "KAFKA_STORAGE_ERROR"
    assert code_of(lambda: append(log, sequence(0, epoch=1))) == "KAFKA_STORAGE_ERROR"
    assert code_of(lambda: append(log, sequence(1, epoch=1))) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert code_of(lambda: append(log, sequence(0, epoch=1))) == "NONE"


def test_refused_producers_take_bounded_memory() -> None:
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    for number in range(3000):
        log.producers.refused(read_header(sequence(0, producer_id=number)))
    assert len(log.producers._refused) == 1000
    assert code_of(lambda: append(log, sequence(1, producer_id=2999))) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


# ---- what else writes


def test_retention_goes_on_when_the_next_segment_does_not_fit() -> None:
    """On a full disk nothing must be written in order to delete: the last segment waits, the others go."""
    disk = SimDisk(random.Random(0))
    log = open_orders(disk, replace(SMALL, retention_ms=1000))
    for batch in batches():
        append(log, batch)
    log.flush()
    log.set_high_watermark(log.log_end_offset)
    before = len(log.segments)
    disk.fail("create", errno.ENOSPC, times=1 << 30)
    assert log.apply_retention(NOW_MS + 10**6).segments == before - 1
    assert log.apply_retention(NOW_MS + 10**6).segments == 0
    disk.faults.clear()
    done = log.apply_retention(NOW_MS + 10**6)
    assert (done.segments, done.reasons, log.log_start_offset) == (1, ("time",), log.log_end_offset)


# ---- several directories


def test_new_partitions_go_where_there_is_room() -> None:
    disk = SimDisk(random.Random(0))
    logs = LogManager(disk, SimClock(), random.Random(0), ["/a", "/b"], node_id=0)
    logs.open()
    logs.dir_of("/a").space.ran_out(DiskError("write", "/a/x", OSError(errno.ENOSPC, "full")), NOW_MS)
    homes = [logs.create("orders", number, b"i" * 16, SMALL).directory for number in range(3)]
    assert homes == [f"/b/orders-{number}" for number in range(3)]
    logs.dir_of("/b").space.ran_out(DiskError("write", "/b/x", OSError(errno.ENOSPC, "full")), NOW_MS)
    assert logs.create("orders", 3, b"i" * 16, SMALL).directory == "/a/orders-3", "all are full: as ever"


def test_the_reserve_is_kept_from_records_and_not_from_metadata() -> None:
    disk = SimDisk(random.Random(0), capacity_bytes=20_000)
    logs = LogManager(disk, SimClock(), random.Random(0), ["/a"], node_id=0)
    logs.open()
    log = logs.create("orders", 0, b"i" * 16, SMALL)
    logs.keep_free(10_000)
    count = 0
    with pytest.raises(RequestError, match=r"log\.dir\.reserve\.bytes"):
        for count in range(10_000):  # noqa: B007
            append(log)
    assert count > 50
    assert 9000 < disk.volume_bytes("/a")[1] < 10_100, "indexes and snapshots take a little"
    metadata = logs.open_metadata_log()
    for _ in range(30):
        append(metadata)
    assert disk.volume_bytes("/a")[1] < 9000
    logs.close()
    again = LogManager(disk, SimClock(), random.Random(0), ["/a"], node_id=0)
    again.open()
    assert again.stopped_cleanly, "a clean stop found room"
    again.keep_free(10_000)
    with pytest.raises(RequestError, match=r"log\.dir\.reserve\.bytes"):
        append(again.logs["orders", 0])


@pytest.mark.parametrize("crash", ["clean", "keep_all", "lose_unsynced"])
def test_a_checkpoint_that_does_not_fit_is_put_off(crash: str) -> None:
    disk = SimDisk(random.Random(0))
    logs = LogManager(disk, SimClock(), random.Random(0), ["/a", "/b"], node_id=0)
    logs.open()
    for number in range(2):
        log = logs.create("orders", number, b"i" * 16, SMALL)
        append(log)
        log.flush()
    disk.fail("write", errno.ENOSPC, times=1 << 30, matches=lambda path: path.startswith("/b/"))
    work = logs.checkpoint()
    work.run()
    assert work.finish(NOW_MS) == {}
    assert list(work.postponed) == ["/b"]
    assert logs.offline_dirs == {} and len(logs.logs) == 2
    disk.faults.clear()
    if crash == "clean":
        logs.close()
    else:
        disk = disk.crash(crash)  # type: ignore[arg-type]
    again = LogManager(disk, SimClock(), random.Random(0), ["/a", "/b"], node_id=0)
    again.open()
    assert [again.logs["orders", number].log_end_offset for number in range(2)] == [1, 1]
