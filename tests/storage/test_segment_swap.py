"""Replacing segments while a log is used: readers, refusals, and what waits. Crashes are in `test_crash_swap`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from kafka.record import MemoryRecords

from tests.storage.log_world import NOW_MS, SMALL, append, append_many, make_batch, open_orders, read_all
from tidelog.records.batch import crc_matches, read_header
from tidelog.records.record import iter_records
from tidelog.storage import segment_swap
from tidelog.storage.batch_scan import scan_batches
from tidelog.storage.disk import Disk
from tidelog.storage.log import Log
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.segment import Segment
from tidelog.storage.segment_swap import SegmentSwap, empty_batch, new_segment
from tidelog.testing.sim.disk import SimDisk


@pytest.fixture(params=["simulated", "real files"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """Sealed, durable segments and an active one."""
    disk: Disk = SimDisk(Random(1)) if request.param == "simulated" else PosixDisk(max_open_files=3)
    opened = open_orders(disk, directory=f"{tmp_path}/orders-0")
    for _ in range(3):
        append_many(opened, 3)
        opened.roll(NOW_MS)
    append(opened)
    opened.flush()
    opened.set_high_watermark(opened.log_end_offset)
    yield opened
    opened.close()


def copied(log: Log, old: list[Segment], *, without: frozenset[int] = frozenset()) -> Segment:
    """One new segment with the batches of the old ones."""
    segment = new_segment(log, old[0].base_offset, now_ms=NOW_MS)
    for source in old:
        for batch in scan_batches(source.file, 0, source.size):
            if batch.header.base_offset not in without:
                segment.append_run(bytes(batch.bytes()), [batch.header])
    return segment


def test_readers_see_the_new_segments_and_finish_what_they_hold(log: Log) -> None:
    before = read_all(log)
    held = log.read(1, 1000, end_offset=log.log_end_offset).range
    assert held is not None
    expected = held.read()
    old = log.segments[:2]
    SegmentSwap(log, old, [copied(log, old)], now_ms=NOW_MS).run()
    assert [segment.base_offset for segment in log.segments] == [0, 6, 9]
    assert held.read() == expected
    held.release()
    assert read_all(log) == before
    append(log)
    log.flush()
    names = log.disk.list_dir(log.directory)
    assert not [name for name in names if name.endswith((".swap", ".cleaned"))]
    for path in log.take_due_files(NOW_MS + SMALL.file_delete_delay_ms):
        log.disk.remove(path)
    assert not [name for name in log.disk.list_dir(log.directory) if name.endswith(".deleted")]
    assert read_all(open_orders(log.disk, directory=log.directory)) == read_all(log)


def test_each_step_leaves_a_log_that_can_be_read_and_written(log: Log) -> None:
    before = read_all(log)
    old = log.segments[:3]
    swap = SegmentSwap(log, old, [copied(log, old)], now_ms=NOW_MS)
    steps = 0
    while (job := swap.advance()) is not None:
        assert read_all(log, end=10) == before
        job()
        assert read_all(log, end=10) == before
        append(log)
        steps += 1
    assert steps == 4 and log.swap is None
    assert log.log_end_offset == 14


def test_many_old_segments_go_in_turns(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names change on the loop, which others wait for."""
    monkeypatch.setattr(segment_swap, "OLD_AT_ONCE", 2)
    before = read_all(log)
    old = log.segments[:3]
    swap = SegmentSwap(log, old, [copied(log, old)], now_ms=NOW_MS)
    gone = []
    while (job := swap.advance()) is not None:
        gone.append(sum(".log.deleted" in path for _, path in log.deferred_deletes))
        job()
        assert read_all(log) == before
    assert gone == [0, 0, 2, 3, 3]


def test_offsets_of_records_that_are_gone_are_spoken_for(log: Log) -> None:
    old = log.segments[:3]
    SegmentSwap(log, old, [copied(log, old, without=frozenset((0, 4, 7, 8)))], now_ms=NOW_MS).run()
    found = [(batch.base_offset, batch.last_offset) for batch in read_all(log)]
    assert found == [(1, 1), (2, 2), (3, 3), (5, 5), (6, 6), (7, 8), (9, 9)]
    again = open_orders(
        log.disk, directory=log.directory
    )  # nothing is known to be durable, and nothing is taken for lost
    assert [(batch.base_offset, batch.last_offset) for batch in read_all(again)] == found
    assert not again.recovery.cuts and not again.recovery.damages


def test_a_batch_without_records_is_one_for_every_reader() -> None:
    batch = empty_batch(7, 11, 3)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (7, 11, 3)
    assert crc_matches(batch, 0, header)
    assert list(iter_records(batch, 0, header)) == []
    following = make_batch((NOW_MS,), base_offset=12)
    theirs = MemoryRecords(batch + following)
    first, second = theirs.next_batch(), theirs.next_batch()
    assert first.validate_crc() and list(first) == []
    assert [record.offset for record in second] == [12]


def test_a_swap_that_would_lose_something_is_refused(log: Log) -> None:
    segments = log.segments

    def refused(old: list[Segment], *bases: int) -> str:
        new = [new_segment(log, base, now_ms=NOW_MS) for base in bases]
        with pytest.raises(ValueError) as caught:
            SegmentSwap(log, old, new, now_ms=NOW_MS)
        assert log.swap is None
        return str(caught.value)

    assert "active segment" in refused(segments[2:], 6)
    assert "no run" in refused([segments[0], segments[2]], 0)
    assert "no run" in refused([], 0)
    assert "cannot stand for" in refused(segments[:2], 1)
    assert "cannot stand for" in refused(segments[:2], 0, 6)
    assert "cannot stand for" in refused(segments[:2])
    log.roll(NOW_MS)
    assert "flush it first" in refused(log.segments[:4], 0)


def test_retention_waits_until_segments_have_changed_places(log: Log) -> None:
    old = log.segments[:2]
    swap = SegmentSwap(log, old, [copied(log, old)], now_ms=NOW_MS)
    log.advance_log_start_offset(9)
    assert log.apply_retention(NOW_MS).segments == 0
    swap.run()
    assert log.apply_retention(NOW_MS).segments == 2


def test_an_attempt_that_was_given_up_does_not_harm_the_next(log: Log) -> None:
    """A lower `.cleaned` of an earlier attempt would make a start undo what is committed."""
    new_segment(log, 0, now_ms=NOW_MS).close()
    old = log.segments[1:3]
    before = read_all(log)
    swap = SegmentSwap(log, old, [copied(log, old)], now_ms=NOW_MS)
    for _ in range(2):
        job = swap.advance()
        assert job is not None
        job()
    swap.advance()  # the old files have new names
    assert read_all(open_orders(log.disk, directory=log.directory)) == before
