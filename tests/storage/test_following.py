"""A log that follows a leader: what it lets in, and what it still knows after its end was cut and after a restart."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.storage.log_world import DIRECTORY, NOW_MS, make_batch, open_orders, read_all
from tidelog.errors import CorruptDataError, RequestError
from tidelog.records.batch import read_header
from tidelog.records.control import build_end_transaction_marker
from tidelog.storage import checkpoints, files
from tidelog.storage.disk import write_file_atomically
from tidelog.storage.log import Log
from tidelog.testing.sim.disk import SimDisk
from tidelog.wire.error_codes import ErrorCode


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(1))


@pytest.fixture
def log(disk: SimDisk) -> Log:
    return open_orders(disk)


def replicate(log: Log, epoch: int, count: int = 1, **how: int) -> None:
    for _ in range(count):
        batch = make_batch(base_offset=log.log_end_offset, leader_epoch=epoch, **how)  # type: ignore[arg-type]
        log.append_as_follower(batch, now_ms=NOW_MS)


def epochs_of(log: Log) -> list[tuple[int, int]]:
    return [tuple(entry) for entry in log.epochs.checkpoint_entries()]


# ---- what is let in


def test_leader_epochs_never_go_back(log: Log) -> None:
    """No CRC covers the epoch, and where a log is cut depends on it."""
    replicate(log, 5)
    with pytest.raises(CorruptDataError, match="leader epoch 4"):
        replicate(log, 4)
    assert (log.log_end_offset, epochs_of(log)) == (1, [(5, 0)])


def test_no_record_is_of_a_leader_to_come(log: Log) -> None:
    batch = make_batch(base_offset=0, leader_epoch=9)
    with pytest.raises(CorruptDataError, match="leader epoch 9"):
        log.append_as_follower(batch, now_ms=NOW_MS, leader_epoch=8)
    assert log.append_as_follower(batch, now_ms=NOW_MS, leader_epoch=9) == 1


def test_a_full_disk_refuses_a_follower_and_costs_it_nothing(disk: SimDisk, log: Log) -> None:
    replicate(log, 1, 2)
    disk.fail("write", errno.ENOSPC, matches=lambda path: path.endswith(".log"), partial_bytes=20)
    with pytest.raises(RequestError) as caught:
        replicate(log, 2)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, epochs_of(log)) == (2, [(1, 0)]), (
        "an epoch does not begin with what is not there"
    )
    replicate(log, 2, 2)
    assert ([batch.base_offset for batch in read_all(log)], epochs_of(log)) == (
        [0, 1, 2, 3],
        [(1, 0), (2, 2)],
    )
    again = open_orders(disk.crash("keep_all"))
    assert (again.log_end_offset, epochs_of(again)) == (4, [(1, 0), (2, 2)])


# ---- what is known after a cut


def test_an_epoch_that_begins_at_the_cut_is_forgotten_even_if_no_record_goes(log: Log) -> None:
    """It was elected and wrote nothing. Its successor never heard of that epoch, and would find the two logs apart for ever."""
    replicate(log, 1, 3)
    log.start_epoch(2)
    assert not log.truncate_to(3)
    assert epochs_of(log) == [(1, 0)]
    replicate(log, 1)
    assert log.end_offset_for_epoch(1) == (1, 4)


def test_producers_are_known_up_to_the_cut(disk: SimDisk, log: Log) -> None:
    """I39: over several segments, after the cut and after a restart: what stayed is a duplicate, what went is new."""
    for sequence in range(12):
        replicate(log, 1, producer_id=7, producer_epoch=0, sequence=sequence)
    assert len(log.segments) > 1
    log.flush()
    log.truncate_to(9)
    for known in (log, open_orders(disk.crash("lose_unsynced"), recovery_point=12)):
        stored = make_batch(producer_id=7, producer_epoch=0, sequence=8)
        gone = make_batch(producer_id=7, producer_epoch=0, sequence=9)
        retried = known.append_as_leader(stored, read_header(stored), leader_epoch=2, now_ms=NOW_MS)
        assert (retried.base_offset, retried.duplicate) == (8, True)
        assert not known.append_as_leader(gone, read_header(gone), leader_epoch=2, now_ms=NOW_MS).duplicate


def test_nothing_above_the_cut_is_taken_for_durable(disk: SimDisk, log: Log) -> None:
    replicate(log, 1, 6)
    log.flush()
    log.set_high_watermark(2)
    log.truncate_to(4)
    assert (log.recovery_point, log.log_end_offset, log.high_watermark) == (4, 4, 2)
    replicate(log, 2, 3)
    assert log.recovery_point == 4
    lost = open_orders(disk.crash("lose_unsynced"), recovery_point=6)
    assert (lost.log_end_offset, epochs_of(lost)) == (4, [(1, 0)])


def test_a_flush_under_way_vouches_for_nothing_above_the_cut(log: Log) -> None:
    replicate(log, 1, 6)
    ticket = log.begin_flush()
    assert ticket is not None
    log.truncate_to(4)
    replicate(log, 2, 3)
    ticket.run()
    log.finish_flush(ticket)
    assert (log.recovery_point, log.log_end_offset) == (4, 7)


def test_a_transaction_whose_end_was_cut_off_is_open_again(log: Log) -> None:
    replicate(log, 1)
    transactional = make_batch(
        base_offset=1, leader_epoch=1, producer_id=7, producer_epoch=0, sequence=0, is_transactional=True
    )
    log.append_as_follower(transactional, now_ms=NOW_MS)
    marker = build_end_transaction_marker(
        producer_id=7, producer_epoch=0, commit=False, coordinator_epoch=0, timestamp=NOW_MS,
        base_offset=2, partition_leader_epoch=1,
    )  # fmt: skip
    log.append_as_follower(marker, now_ms=NOW_MS)
    replicate(log, 1)
    log.set_high_watermark(4)
    assert (log.last_stable_offset, len(log.aborted_transactions(0, 4))) == (4, 1)
    log.truncate_to(2)
    log.set_high_watermark(2)
    assert (log.last_stable_offset, log.aborted_transactions(0, 2)) == (1, [])


# ---- after a power cut


def test_half_of_an_epoch_checkpoint_is_none(disk: SimDisk, log: Log) -> None:
    """It is renamed before it is synced: of "6 19" a power cut may leave "6 1", which must not be believed."""
    replicate(log, 1, 19)
    replicate(log, 6, 3)
    log.flush()
    path = files.join(DIRECTORY, files.LEADER_EPOCH_CHECKPOINT)
    whole = checkpoints.encode_epochs(log.epochs.checkpoint_entries())
    assert whole == b"0\n2\n1 0\n6 19\n"
    for size in range(len(whole)):
        after = disk.crash("keep_all")
        write_file_atomically(after, path, whole[:size])
        again = open_orders(after, recovery_point=22)
        assert (epochs_of(again), len(read_all(again))) == ([(1, 0), (6, 19)], 22)
