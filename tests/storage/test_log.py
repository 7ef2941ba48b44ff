"""What a log promises to those who append, read and flush."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.storage.log_world import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    append,
    append_many,
    make_batch,
    open_orders,
    read_all,
    remove_due_files,
)
from tidelog.errors import CorruptDataError, RequestError
from tidelog.records.batch import iter_headers, read_header, restamped
from tidelog.records.control import build_end_transaction_marker
from tidelog.storage.disk import DiskError, read_file
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.txn_index import AbortedTransaction, TxnIndex
from tidelog.testing.sim.disk import SimDisk
from tidelog.wire.error_codes import ErrorCode


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(1))


@pytest.fixture
def log(disk: SimDisk) -> Log:
    return open_orders(disk)


# ---- appending


def test_offsets_follow_one_another_and_the_batch_on_disk_carries_them(log: Log) -> None:
    first = append(log, make_batch((NOW_MS, NOW_MS)), leader_epoch=4)
    second = append(log, make_batch((NOW_MS,)), leader_epoch=5)
    assert (first.base_offset, first.last_offset, second.base_offset, log.log_end_offset) == (0, 1, 2, 3)
    assert [(b.base_offset, b.last_offset, b.leader_epoch) for b in read_all(log)] == [(0, 1, 4), (2, 2, 5)]
    assert (first.log_append_time_ms, first.log_start_offset, first.duplicate) == (-1, 0, False)


def test_a_batch_that_the_broker_stamped_reports_the_time(log: Log) -> None:
    batch = make_batch((NOW_MS,))
    stamped = bytes(restamped(batch, read_header(batch), max_timestamp=NOW_MS + 77))
    assert append(log, stamped).log_append_time_ms == NOW_MS + 77


def test_a_retry_is_answered_with_the_first_offsets(log: Log) -> None:
    batch = make_batch((NOW_MS, NOW_MS), producer_id=3, producer_epoch=0, sequence=0)
    first = append(log, batch)
    append(log)
    again = append(log, batch)
    assert again.duplicate
    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset)
    assert log.log_end_offset == 3


def test_a_gap_in_the_sequence_is_refused_and_nothing_is_written(log: Log) -> None:
    append(log, make_batch(producer_id=3, producer_epoch=0, sequence=0))
    with pytest.raises(RequestError) as caught:
        append(log, make_batch(producer_id=3, producer_epoch=0, sequence=5))
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 1


def test_a_batch_larger_than_a_segment_is_refused(log: Log) -> None:
    with pytest.raises(RequestError) as caught:
        append(log, make_batch(value=b"x" * 1000))
    assert caught.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert "segment.bytes is 700" in caught.value.message
    assert log.log_end_offset == 0


def test_a_write_that_fails_leaves_no_trace_in_memory(disk: SimDisk, log: Log) -> None:
    append(log)
    disk.fail("write", errno.EIO, partial_bytes=20)
    with pytest.raises(DiskError):
        append(log)
    assert (log.log_end_offset, len(read_all(log))) == (1, 1)


# ---- rolling


def test_rolls_when_the_next_batch_would_exceed_segment_bytes(log: Log) -> None:
    append_many(log, 40)
    assert len(log.segments) > 3
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        assert segment.size <= 700
        first = read_header(following.file.read_at(61, 0))
        assert segment.size + first.size > 700
        assert first.base_offset == following.base_offset


def test_rolls_by_record_time_since_the_first_batch(disk: SimDisk) -> None:
    log = open_orders(disk, LogConfig(segment_ms=1000))
    for time in (NOW_MS, NOW_MS + 1000, NOW_MS - 5000):
        append(log, make_batch((time,)), now_ms=NOW_MS + 10**9)
    assert len(log.segments) == 1
    append(log, make_batch((NOW_MS + 1001,)))
    assert [segment.base_offset for segment in log.segments] == [0, 3]


def test_rolls_by_wall_clock_where_records_have_no_time(disk: SimDisk) -> None:
    log = open_orders(disk, LogConfig(segment_ms=1000))
    append(log, make_batch((-1,)), now_ms=NOW_MS)
    append(log, make_batch((-1,)), now_ms=NOW_MS + 1000)
    assert len(log.segments) == 1
    append(log, make_batch((-1,)), now_ms=NOW_MS + 1001)
    assert len(log.segments) == 2


def test_the_time_to_roll_survives_a_restart(disk: SimDisk) -> None:
    config = LogConfig(segment_ms=1000)
    log = open_orders(disk, config)
    append(log, make_batch((NOW_MS,)))
    log.close_cleanly()
    again = open_orders(disk, config, clean=True, recovery_point=1)
    append(again, make_batch((NOW_MS + 1001,)))
    assert len(again.segments) == 2


def test_rolls_when_an_index_is_full(disk: SimDisk) -> None:
    log = open_orders(disk, LogConfig(index_interval_bytes=0, segment_index_bytes=48))
    append_many(log, 30)
    assert len(log.segments) > 3
    assert all(
        segment.offset_index.entries <= 6 and segment.time_index.entries <= 4 for segment in log.segments
    )
    assert len(read_all(log)) == 30


def test_rolls_when_an_offset_is_too_far_from_the_segments_base(disk: SimDisk, log: Log) -> None:
    append(log)
    far = 1 << 33
    log.append_as_follower(make_batch(base_offset=far, leader_epoch=0), now_ms=NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, far - (1 << 31) + 1]
    assert [batch.base_offset for batch in read_all(log)] == [0, far]
    # An unclean restart must not take the gap for lost data.
    assert open_orders(disk.crash("keep_all")).log_end_offset == far + 1


def test_jitter_lets_segments_roll_early(disk: SimDisk) -> None:
    from tidelog.storage.recovery import open_log

    config = LogConfig(segment_ms=1000, segment_jitter_ms=900)
    log = open_log(disk, DIRECTORY, "orders", 0, config=config, now_ms=NOW_MS, rng=Random(5))
    append(log)
    log.roll(NOW_MS)
    assert 0 < log.active.jitter_ms < 900
    append(log)
    append(log, make_batch((NOW_MS + 1001 - log.active.jitter_ms,)))
    assert len(log.segments) == 3


def test_an_empty_segment_is_not_rolled(log: Log) -> None:
    log.roll(NOW_MS)
    append(log)
    log.roll(NOW_MS)
    log.roll(NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_preallocated_space_is_given_back(disk: SimDisk) -> None:
    config = LogConfig(segment_bytes=5000, preallocate=True)
    log = open_orders(disk, config)
    append(log)
    path = log.active.file.path
    assert disk.file_size(path) == 5000
    after_crash = open_orders(disk.crash("keep_all"), config)
    assert (after_crash.log_end_offset, after_crash.active.size) == (1, log.active.size)
    log.roll(NOW_MS)
    assert disk.file_size(path) == log.segments[0].size


# ---- following


def test_a_follower_takes_batches_as_they_are_and_rolls_between_them(log: Log) -> None:
    run = b"".join(make_batch((NOW_MS,), base_offset=2 * n, leader_epoch=n // 10) for n in range(30))
    assert log.append_as_follower(run + b"a cut-off tail", now_ms=NOW_MS) == 30
    assert len(log.segments) > 2
    assert [batch.base_offset for batch in read_all(log)] == list(range(0, 60, 2))
    assert [log.epochs.epoch_for_offset(offset) for offset in (0, 19, 20, 58)] == [0, 0, 1, 2]


def test_a_follower_refuses_a_damaged_batch_and_all_that_came_with_it(log: Log) -> None:
    run = bytearray(make_batch(base_offset=0, leader_epoch=0) + make_batch(base_offset=1, leader_epoch=0))
    run[-1] ^= 1
    with pytest.raises(CorruptDataError, match="offset 1 of orders-0 fails its CRC"):
        log.append_as_follower(run, now_ms=NOW_MS)
    assert log.log_end_offset == 0


def test_a_follower_refuses_offsets_it_has_already(log: Log) -> None:
    log.append_as_follower(make_batch(base_offset=5, leader_epoch=0), now_ms=NOW_MS)
    with pytest.raises(CorruptDataError, match="does not follow"):
        log.append_as_follower(make_batch(base_offset=5, leader_epoch=0), now_ms=NOW_MS)


# ---- reading


def test_the_first_batch_is_whole_even_if_larger_than_asked(log: Log) -> None:
    append(log, make_batch(value=b"x" * 300))
    append(log)
    read = log.read(0, 10, end_offset=2)
    assert read.range is not None
    assert [header.base_offset for _, header in iter_headers(read.range.read())] == [0]
    assert read.next_offset == 1
    read.range.release()
    assert log.read(0, 10, end_offset=2, min_one_batch=False).range is None


def test_nothing_at_or_above_the_end_is_read(log: Log) -> None:
    append_many(log, 20)
    for end in range(21):
        found = read_all(log, end=end, max_bytes=10_000)
        assert [batch.base_offset for batch in found] == list(range(end))


def test_an_end_inside_a_batch_hides_the_whole_batch(log: Log) -> None:
    append(log)
    append(log, make_batch((NOW_MS,) * 3))
    assert [batch.base_offset for batch in read_all(log, end=3, max_bytes=10_000)] == [0]


def test_reads_end_at_batch_boundaries(disk: SimDisk) -> None:
    log = open_orders(disk, LogConfig(index_interval_bytes=500))
    append_many(log, 3000)
    for max_bytes in (200, 5000, 70_000, 150_000):
        read = log.read(7, max_bytes, end_offset=3000)
        assert read.range is not None and read.next_offset is not None
        data = read.range.read()
        read.range.release()
        headers = list(iter_headers(data))
        assert headers[-1][0] + headers[-1][1].size == len(data)
        assert max_bytes - 1200 < len(data) <= max_bytes or len(headers) == max_bytes // 75
        assert headers[-1][1].next_offset == read.next_offset == read.upper_offset


def test_reading_outside_of_the_log_says_what_is_there(log: Log) -> None:
    append_many(log, 3)
    with pytest.raises(RequestError, match="0 to 3") as caught:
        log.read(4, 100, end_offset=3)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(3, 100, end_offset=3).range is None


class CountingDisk(SimDisk):
    """Counts what is read of index and log files."""

    reads = 0

    def _maybe_fail(self, operation: str, path: str) -> None:
        self.reads += operation == "read"
        super()._maybe_fail(operation, path)


def test_a_reader_who_keeps_up_reads_nothing_but_its_range() -> None:
    disk = CountingDisk(Random(1))
    log = open_orders(disk)
    append_many(log, 3)
    log.set_high_watermark(3)
    offset = log.read(0, 1 << 20, end_offset=3).next_offset
    assert offset == 3
    for _ in range(40):  # over several segments
        append(log)
        log.set_high_watermark(log.log_end_offset)
        before = disk.reads
        read = log.read(offset, 1 << 20, end_offset=log.high_watermark)
        assert read.size > 0
        assert log.bytes_between(offset, log.high_watermark) == read.size
        assert disk.reads == before
        offset = read.next_offset
    assert len(log.segments) > 2


def test_the_flushed_end_as_high_watermark_needs_no_search() -> None:
    disk = CountingDisk(Random(1))
    log = open_orders(disk, LogConfig())
    append_many(log, 5)
    ticket = log.begin_flush()
    assert ticket is not None
    append_many(log, 5)  # goes on while the sync runs
    ticket.run()
    log.finish_flush(ticket)
    assert log.recovery_point == 5
    log.set_high_watermark(5)
    before = disk.reads
    read = log.read(0, 1 << 20, end_offset=log.high_watermark)
    assert (read.next_offset, disk.reads) == (5, before)


def test_a_range_outlives_retention(log: Log) -> None:
    append_many(log, 20)
    log.set_high_watermark(20)
    read = log.read(0, 300, end_offset=20)
    assert read.range is not None
    before = read.range.read()
    log.update_config(LogConfig(segment_bytes=700, retention_bytes=0, file_delete_delay_ms=0))
    assert log.apply_retention(NOW_MS).segments
    log.log_start_is_durable(log.log_start_offset, NOW_MS)
    assert remove_due_files(log, NOW_MS)
    assert read.range.read() == before
    read.range.release()


# ---- flushing


def test_a_flush_covers_what_was_there_when_it_began(log: Log) -> None:
    assert log.begin_flush() is None
    append(log)
    ticket = log.begin_flush()
    assert ticket is not None
    with pytest.raises(RuntimeError, match="under way"):
        log.begin_flush()
    append(log)
    with pytest.raises(RuntimeError, match="did not run"):
        log.finish_flush(ticket)
    ticket.run()
    log.finish_flush(ticket)
    assert (log.recovery_point, log.dirty) == (1, True)
    log.flush()
    assert (log.recovery_point, log.dirty) == (2, False)


def test_a_failed_sync_is_never_followed_by_a_successful_one(disk: SimDisk, log: Log) -> None:
    """M25: the kernel may have dropped the pages that the failed sync was for."""
    append(log)
    ticket = log.begin_flush()
    assert ticket is not None
    disk.fail("sync", errno.EIO)
    with pytest.raises(DiskError):
        ticket.run()
    with pytest.raises(RuntimeError):
        log.finish_flush(ticket)
    with pytest.raises(RuntimeError):
        log.begin_flush()
    assert log.recovery_point == 0


def test_a_flush_is_due_after_so_many_messages_or_so_long_or_a_roll(disk: SimDisk) -> None:
    log = open_orders(disk, LogConfig(flush_messages=3, flush_ms=1000))
    assert not log.flush_due(NOW_MS)
    append(log)
    assert not log.flush_due(NOW_MS)
    assert log.flush_due(NOW_MS + 1000)
    append_many(log, 2)
    assert log.flush_due(NOW_MS)
    log.flush()
    assert not log.flush_due(NOW_MS + 5000)
    log.roll(NOW_MS)
    assert log.flush_due(NOW_MS + 5000)


# ---- epochs, transactions


def test_a_new_leader_leaves_its_epoch_before_it_writes(log: Log) -> None:
    append_many(log, 3, leader_epoch=1)
    log.start_epoch(4)
    assert log.end_offset_for_epoch(1) == (1, 3)
    assert log.end_offset_for_epoch(2) == (1, 3)
    assert log.end_offset_for_epoch(4) == (4, 3)
    assert log.end_offset_for_epoch(5) == (-1, -1)


def aborted_transaction_log(disk: SimDisk) -> Log:
    log = open_orders(disk)
    for sequence in range(12):
        append(log, make_batch(producer_id=9, producer_epoch=0, sequence=sequence, is_transactional=True))
        append(log)
    append(log, end_marker(commit=False))
    log.set_high_watermark(log.log_end_offset)
    return log


def end_marker(*, commit: bool) -> bytes:
    return build_end_transaction_marker(
        commit=commit, producer_id=9, producer_epoch=0, coordinator_epoch=1, timestamp=NOW_MS
    )


def test_an_open_transaction_holds_the_last_stable_offset_back(log: Log) -> None:
    append_many(log, 2)
    append(log, make_batch(producer_id=9, producer_epoch=0, sequence=0, is_transactional=True))
    append(log)
    log.set_high_watermark(4)
    assert (log.last_stable_offset, log.high_watermark) == (2, 4)
    append(log, end_marker(commit=True))
    assert log.last_stable_offset == 2  # the marker is not committed yet
    log.set_high_watermark(5)
    assert log.last_stable_offset == 5
    assert log.aborted_transactions(0, 5) == []


@pytest.mark.parametrize(
    "lose", [(), (".txnindex",), (".txnindex", ".snapshot"), (".txnindex", ".snapshot", ".index")]
)
def test_aborted_transactions_are_known_also_without_their_index(
    disk: SimDisk, lose: tuple[str, ...]
) -> None:
    log = aborted_transaction_log(disk)
    assert len(log.segments) > 2
    expected = [AbortedTransaction(9, 0, 24, 25)]
    assert log.aborted_transactions(0, 25) == log.aborted_transactions(20, 25) == expected
    assert log.aborted_transactions(25, 30) == []
    log.close_cleanly()
    for name in disk.list_dir(DIRECTORY):
        if name.endswith(lose or ("nothing",)):
            disk.remove(f"{DIRECTORY}/{name}")
    for clean in (True, False):
        again = open_orders(disk.crash("keep_all"), clean=clean, recovery_point=25)
        assert again.aborted_transactions(0, 25) == expected
        assert again.recovery.clean == clean


@pytest.mark.parametrize("seed", range(20))
def test_what_a_log_remembers_of_aborted_transactions_hides_none(disk: SimDisk, seed: int) -> None:
    """From where on nothing was aborted is remembered; the same log without that memory has to look."""
    rng, log, sequence = Random(seed), open_orders(disk), 0
    for _ in range(60):
        step = rng.choices(["record", "begin", "end", "truncate", "look"], [3, 3, 2, 0.5, 4])[0]
        if step == "record":
            append(log)
        elif step == "begin":
            append(log, make_batch(producer_id=9, producer_epoch=0, sequence=sequence, is_transactional=True))
            sequence += 1
        elif step == "end":
            append(log, end_marker(commit=rng.random() < 0.4))
        elif step == "truncate":
            log.truncate_to(rng.randint(0, log.log_end_offset))
            entry = log.producers.get(9)
            sequence = entry.next_sequence if entry is not None else 0
        else:
            start, end = sorted(rng.randint(0, log.log_end_offset) for _ in range(2))
            remembered, log.no_aborts_from = log.no_aborts_from, 1 << 63
            expected = log.aborted_transactions(start, end)
            log.no_aborts_from = remembered
            assert log.aborted_transactions(start, end) == expected


def test_a_log_without_aborted_transactions_is_walked_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    append_many(log, 40)
    assert len(log.segments) > 2
    looked: list[int] = []
    collect = TxnIndex.collect

    def counting(index: TxnIndex, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        looked.append(index.base_offset)
        return collect(index, start, end)

    monkeypatch.setattr(TxnIndex, "collect", counting)
    for start in (0, 0, 20):
        assert log.aborted_transactions(start, start + 1) == []
    assert len(looked) == len(log.segments)


# ---- truncating


def test_truncation_forgets_producers_epochs_and_segments_above_the_cut(disk: SimDisk, log: Log) -> None:
    for number in range(20):
        batch = make_batch(producer_id=3, producer_epoch=0, sequence=number)
        append(log, batch, leader_epoch=number // 5)
    log.flush()
    assert log.truncate_to(7)
    assert (log.log_end_offset, log.recovery_point, log.epochs.latest_epoch) == (7, 7, 1)
    assert not log.truncate_to(7)
    entry = log.producers.get(3)
    assert entry is not None and entry.next_sequence == 7
    assert (
        append(log, make_batch(producer_id=3, producer_epoch=0, sequence=7), leader_epoch=9).base_offset == 7
    )
    assert len(read_all(log)) == 8


def test_a_flush_under_way_does_not_cover_what_replaced_truncated_data(log: Log) -> None:
    append_many(log, 5)
    ticket = log.begin_flush()
    assert ticket is not None
    log.truncate_to(2)
    append_many(log, 5, leader_epoch=1)
    ticket.run()
    log.finish_flush(ticket)
    assert log.recovery_point == 2


def test_a_position_that_was_remembered_is_forgotten_with_what_stood_there(log: Log) -> None:
    append_many(log, 6)
    assert len(read_all(log, max_bytes=80)) == 6  # remembers where each batch ends
    log.truncate_to(2)
    append(log, make_batch(value=b"another size"), leader_epoch=1)
    append_many(log, 3, leader_epoch=1)
    for start in (5, 4, 3, 2, 1, 0):  # from the end: no read renews what the next one uses
        assert [batch.base_offset for batch in read_all(log, start=start, max_bytes=80)] == list(
            range(start, 6)
        )


# ---- real files


def test_a_log_on_real_files_with_few_descriptors(tmp_path: object) -> None:
    disk = PosixDisk(max_open_files=3)
    log = open_orders(disk, directory=f"{tmp_path}/orders-0")
    append_many(log, 50)
    log.flush()
    expected = read_all(log)
    assert len(expected) == 50
    log.close_cleanly()
    again = open_orders(PosixDisk(), directory=f"{tmp_path}/orders-0", clean=True, recovery_point=50)
    assert read_all(again) == expected
    again.close()


def test_every_byte_comes_from_a_batch_of_this_log(disk: SimDisk) -> None:
    """I9: two logs fed from one buffer that is reused hold what they were given, not what the buffer held later."""
    one, other = open_orders(disk), open_orders(disk, directory="/data/other-0")
    buffer = bytearray(make_batch(value=b"first"))
    append(one, buffer)  # type: ignore[arg-type]
    buffer[:] = make_batch(value=b"other")
    append(other, buffer)  # type: ignore[arg-type]
    assert b"first" in read_file(disk, one.active.file.path)
    assert b"first" not in read_file(disk, other.active.file.path)
    assert SMALL.segment_bytes == one.config.segment_bytes
