"""What leaves a log, when, and in which order its files follow (I8)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.storage.log_world import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    append,
    make_batch,
    open_orders,
    producers_of,
    read_all,
    remove_due_files,
)
from tidelog.errors import RequestError
from tidelog.storage.log import Log
from tidelog.testing.sim.clock import SimClock
from tidelog.testing.sim.disk import SimDisk
from tidelog.wire.error_codes import ErrorCode


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(1), clock=SimClock(NOW_MS))


@pytest.fixture
def log(disk: SimDisk) -> Log:
    """Four segments of three batches, at NOW, NOW + 1000, NOW + 2000, NOW + 3000; all committed."""
    log = open_orders(disk)
    for segment in range(4):
        if segment:
            log.roll(NOW_MS)
        for _ in range(3):
            append(log, make_batch((NOW_MS + 1000 * segment,)))
    log.set_high_watermark(12)
    return log


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_segments_older_than_retention_ms_go(log: Log) -> None:
    log.update_config(replace(SMALL, retention_ms=5000))
    assert log.apply_retention(NOW_MS + 5000).segments == 0
    gone = log.apply_retention(NOW_MS + 6001)
    assert (gone.segments, gone.reasons, gone.log_start_offset) == (2, ("time", "time"), 6)
    assert (log.log_start_offset, bases(log)) == (6, [6, 9])
    with pytest.raises(RequestError) as caught:
        log.read(5, 100, end_offset=12)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_segment_stays_while_one_record_in_it_is_young(disk: SimDisk) -> None:
    log = open_orders(disk, replace(SMALL, retention_ms=5000))
    append(log, make_batch((NOW_MS - 9000, NOW_MS, NOW_MS - 9000)))
    log.roll(NOW_MS)
    append(log)
    log.set_high_watermark(4)
    assert log.apply_retention(NOW_MS + 4000).segments == 0
    assert log.apply_retention(NOW_MS + 5001).segments == 2


def test_nothing_at_or_above_the_high_watermark_goes(disk: SimDisk, log: Log) -> None:
    for high_watermark in (0, 2, 3, 8, 12):
        again = open_orders(disk.crash("keep_all"), replace(SMALL, retention_ms=0, retention_bytes=0))
        again.set_high_watermark(high_watermark)
        again.apply_retention(NOW_MS + 10**9)
        assert again.log_start_offset == high_watermark // 3 * 3
        assert [batch.base_offset for batch in read_all(again)] == list(range(again.log_start_offset, 12))


def test_an_active_segment_that_has_expired_is_rolled_first(log: Log) -> None:
    log.update_config(replace(SMALL, retention_ms=0))
    gone = log.apply_retention(NOW_MS + 10**6)
    assert (gone.segments, log.log_start_offset, log.log_end_offset, bases(log)) == (4, 12, 12, [12])
    assert log.apply_retention(NOW_MS + 10**6).segments == 0
    assert append(log).base_offset == 12


def test_retention_bytes_keeps_at_least_that_much(log: Log) -> None:
    size = log.segments[0].size
    log.update_config(replace(SMALL, retention_bytes=2 * size + 1))
    gone = log.apply_retention(NOW_MS)
    assert (gone.segments, gone.bytes, gone.reasons) == (1, size, ("size",))
    assert log.size_bytes == 3 * size
    log.update_config(replace(SMALL, retention_bytes=2 * size))
    assert log.apply_retention(NOW_MS).segments == 1


def test_negative_limits_mean_for_ever(log: Log) -> None:
    log.update_config(replace(SMALL, retention_ms=-1, retention_bytes=-1))
    assert log.apply_retention(NOW_MS + 10**12).segments == 0


def test_a_compacted_topic_loses_only_what_is_below_the_log_start(log: Log) -> None:
    log.update_config(
        replace(SMALL, delete_policy=False, compact_policy=True, retention_ms=0, retention_bytes=0)
    )
    assert log.apply_retention(NOW_MS + 10**6).segments == 0
    log.advance_log_start_offset(7)
    gone = log.apply_retention(NOW_MS)
    assert (gone.segments, gone.reasons, bases(log)) == (2, ("log start", "log start"), [6, 9])


def test_records_without_time_go_by_the_age_of_their_file(disk: SimDisk) -> None:
    log = open_orders(disk, replace(SMALL, retention_ms=5000))
    append(log, make_batch((-1,)))
    log.roll(NOW_MS)
    append(log)
    log.set_high_watermark(2)
    assert log.apply_retention(NOW_MS + 5000).segments == 0
    assert log.apply_retention(NOW_MS + 5001).segments == 2


def test_deleting_records_hides_them_at_once_and_their_segments_follow(log: Log) -> None:
    assert log.advance_log_start_offset(4)
    assert not log.advance_log_start_offset(3)
    assert [batch.base_offset for batch in read_all(log)] == list(range(4, 12))
    assert bases(log) == [0, 3, 6, 9]
    log.apply_retention(NOW_MS)
    assert (bases(log), log.log_start_offset) == ([3, 6, 9], 4)
    with pytest.raises(RequestError) as caught:
        log.advance_log_start_offset(13)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_files_wait_for_a_durable_log_start_and_then_for_their_time(disk: SimDisk, log: Log) -> None:
    log.update_config(replace(SMALL, retention_bytes=0, file_delete_delay_ms=1000))
    log.apply_retention(NOW_MS)
    first = f"{DIRECTORY}/{0:020d}.log"
    assert disk.exists(first)
    log.log_start_is_durable(2, NOW_MS)  # an older checkpoint: not far enough
    assert disk.exists(first)
    log.log_start_is_durable(3, NOW_MS)
    assert not disk.exists(first) and disk.exists(first + ".deleted")
    assert disk.exists(f"{DIRECTORY}/{3:020d}.log")
    log.log_start_is_durable(12, NOW_MS)
    assert remove_due_files(log, NOW_MS + 999) == 0
    assert remove_due_files(log, NOW_MS + 1000) == 16
    assert [
        name for name in disk.list_dir(DIRECTORY) if "deleted" in name or name.startswith(f"{3:020d}")
    ] == []


def test_producers_are_remembered_when_all_their_batches_are_gone(disk: SimDisk) -> None:
    """I39, H11: a retry after retention and a restart is still a duplicate."""
    log = open_orders(disk, replace(SMALL, retention_bytes=0, file_delete_delay_ms=0))
    batch = make_batch(producer_id=3, producer_epoch=0, sequence=0)
    append(log, batch)
    log.roll(NOW_MS)
    append(log)
    log.set_high_watermark(2)
    log.apply_retention(NOW_MS)
    log.log_start_is_durable(2, NOW_MS)
    remove_due_files(log, NOW_MS)
    for mode in ("keep_all", "lose_unsynced"):
        again = open_orders(disk.crash(mode), log_start_offset=2)  # type: ignore[arg-type]
        assert producers_of(again.producers) == producers_of(log.producers)
        assert append(again, batch).duplicate
