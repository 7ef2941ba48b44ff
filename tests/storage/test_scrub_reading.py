"""What is known to be damaged reaches nobody, and everything else goes on: reads, time look-ups, retention, truncation, recovery."""

from __future__ import annotations

from random import Random

import pytest

from tests.storage.log_world import DIRECTORY, NOW_MS, append, make_batch, open_orders, read_all
from tests.storage.scrub_world import apply, headers_of, is_refused, read_around, scrubbed, sealed_log
from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader
from tidelog.storage import files, log_read
from tidelog.storage.disk import read_file
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.testing.sim.disk import SimDisk

BIG = LogConfig(segment_bytes=24_000, index_interval_bytes=500)


@pytest.fixture
def log() -> Log:
    """One sealed segment of 200 batches, one record each, a millisecond apart, and the next one."""
    log = open_orders(SimDisk(Random(1)), BIG)
    for number in range(300):
        append(log, make_batch((NOW_MS + number,), value=b"%d" % number * 10))
    log.flush()
    log.set_high_watermark(log.log_end_offset)
    assert len(log.segments) > 1 and log.segments[1].base_offset > 200
    return log


def harm(log: Log, *offsets: int, at: int | tuple[int, ...] = 70) -> tuple[int, BatchHeader]:
    """Flip a bit of the batches with these offsets, in their records or elsewhere; returns the last one of them."""
    assert isinstance(log.disk, SimDisk)
    batches = {
        header.base_offset: (position, header) for position, header in headers_of(log, log.segments[0])
    }
    for number, offset in enumerate(offsets):
        flipped = at if isinstance(at, int) else at[number]
        log.disk.flip_bit(log.segments[0].file.path, batches[offset][0] + flipped, 1)
    return batches[offsets[-1]]


# ---- reading


@pytest.mark.parametrize("max_bytes", [1, 300, 5000, 1 << 20])
def test_a_read_ends_before_damage_and_one_at_it_says_so(log: Log, max_bytes: int) -> None:
    position, _ = harm(log, 77)
    apply(log, 0)
    read = log.read(70, 1 << 20, end_offset=300)
    assert read.range is not None
    assert (read.next_offset, read.upper_offset, read.position + read.size) == (77, 77, position)
    read.range.release()
    for _ in range(2):  # searched, and remembered
        with pytest.raises(
            CorruptDataError, match=f"position {position} .*offsets 77 to 78.*offset 78 is the next"
        ):
            log.read(77, max_bytes, end_offset=300)
    served, refused = read_around(log, max_bytes=max_bytes)
    assert refused == [range(77, 78)]
    assert [batch.base_offset for batch in served] == [*range(77), *range(78, 300)]


def test_damage_that_no_reader_may_see_yet_is_no_error(log: Log) -> None:
    """Above the high watermark there is nothing to read, sound or not."""
    harm(log, 77)
    apply(log, 0)
    assert log.read(77, 1000, end_offset=77).range is None
    read = log.read(60, 1 << 20, end_offset=70)
    assert read.range is not None and read.next_offset == 70
    read.range.release()
    assert log.read(70, 1000, end_offset=78).size, "up to the damage, though the end lies in it"


def test_an_end_inside_damage_cuts_before_it(log: Log) -> None:
    """A read_committed reader's last stable offset may stand anywhere."""
    harm(log, 77, 78, at=(8, 0))
    apply(log, 0)
    for end in (77, 78, 79):
        read = log.read(75, 1 << 20, end_offset=end)
        assert read.range is not None
        assert read.next_offset == 77
        read.range.release()


def test_damage_at_both_ends_of_a_segment(log: Log) -> None:
    last = log.segments[1].base_offset - 1
    harm(log, 0, last, at=16)
    apply(log, 0)
    assert [offset for offset in range(300) if is_refused(log, offset)] == [0, last]


def test_a_lookup_does_not_follow_a_length_or_an_offset_that_lies(log: Log) -> None:
    """Each of these leads a search past sound batches, or to the wrong one, while their CRCs are right."""
    harm(log, 40, 90, 140, at=(6, 10, 15))  # base offset, length, leader epoch
    apply(log, 0)
    assert [offset for offset in range(300) if is_refused(log, offset)] == [40, 90, 140]
    for offset in (41, 91, 141):
        assert read_all(log, start=offset, end=offset + 1)[0].base_offset == offset


def test_damage_not_yet_known_shows_nothing_uncommitted(log: Log) -> None:
    """A length that grew must not make a small fetch send what lies behind the end that was asked for."""
    segment = log.segments[0]
    places = {header.base_offset: position for position, header in headers_of(log, segment)}
    harm(log, 50, at=10)
    log.positions.remember(52, segment, places[52])  # as the high watermark's place is
    with pytest.raises(CorruptDataError, match=f"position {places[50]} claims"):
        log.read(50, 10, end_offset=52)


def test_a_small_read_before_unknown_damage_gets_what_is_sound(log: Log) -> None:
    position, _ = harm(log, 50, at=16)
    read = log.read(48, 1000, end_offset=300)
    assert read.range is not None
    assert read.position + read.size == position
    read.range.release()


def test_a_position_that_a_rotten_index_names_is_not_remembered(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_read, "_WALK_BYTES", 0)  # as if more was asked for than is worth a walk
    segment = log.segments[0]
    entries = list(segment.offset_index)
    path = files.segment_path(DIRECTORY, 0, files.INDEX)
    assert isinstance(log.disk, SimDisk)
    for number in range(len(entries) - 1):  # the last one is looked at when the file is opened
        log.disk.flip_bit(path, 8 * number + 7, 3)  # each position 8 bytes off
    segment.forget_indexes()
    log.positions.remember(3, segment, headers_of(log, segment)[3][0])
    read = log.read(3, 20_000, end_offset=log.segments[1].base_offset - 1)
    assert read.range is not None
    read.range.release()
    remembered = {offset: place for offset, place in log.positions._places.items() if place[0] is segment}
    starts = {position: header.base_offset for position, header in headers_of(log, segment)}
    assert all(starts.get(position) == offset for offset, (_, position) in remembered.items())


def test_bytes_that_hold_no_offsets_keep_nobody_from_the_next_segment() -> None:
    """The last batch stands where the first did, and garbage where the last was: offset 0 is lost, 1 is not, 2 follows."""
    log = sealed_log([(1, 10), (1, 10), (1, 10), (1, 10)], config=LogConfig(segment_bytes=200))
    segment = log.segments[0]
    (_, header), (position, _) = headers_of(log, segment)
    assert isinstance(log.disk, SimDisk)
    log.disk.corrupt(segment.file.path, 0, read_file(log.disk, segment.file.path)[position:])
    log.disk.corrupt(segment.file.path, position, bytes(header.size))
    (damage,) = apply(log, 0).damages
    assert (damage.first_offset, damage.end_offset) == (2, 2)
    for max_bytes in (1, 1000):
        served, refused = read_around(log, max_bytes=max_bytes)
        assert ([batch.base_offset for batch in served], refused) == ([1, 2, 3], [])


# ---- time


def test_times_before_and_behind_damage_are_found_and_those_that_may_be_in_it_are_an_error(log: Log) -> None:
    harm(log, 77)
    apply(log, 0)
    answers = {}
    for number in range(300):
        try:
            found = log.offset_for_timestamp(NOW_MS + number)
            assert found is not None
            answers[number] = found[1]
        except CorruptDataError:
            answers[number] = -1
    assert all(offset in (number, -1) for number, offset in answers.items()), "never one from behind it"
    failed = [number for number, offset in answers.items() if offset < 0]
    assert 77 in failed
    assert len(failed) < 20, "the time index vouches for the rest"
    assert log.max_timestamp_offset() == (NOW_MS + 299, 299, 0)


def test_deleted_records_do_not_make_damage_matter(log: Log) -> None:
    harm(log, 77)
    apply(log, 0)
    log.advance_log_start_offset(78)
    found = log.offset_for_timestamp(NOW_MS)
    assert found is not None and found[1] == 78


def test_a_look_up_checks_the_batch_it_answers_from(log: Log) -> None:
    """Nobody knows of the damage yet, and no client sees these bytes."""
    harm(log, 77)
    with pytest.raises(CorruptDataError, match=r"offsets 77 to 77 .* fails its CRC"):
        log.offset_for_timestamp(NOW_MS + 77)


# ---- the rest of a log's life


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("at", [0, 9, 16, 70])
def test_retention_goes_on(log: Log, at: int, known: bool) -> None:
    """The batch with the latest timestamp is damaged: the time index knows it all the same."""
    last = log.segments[1].base_offset - 1
    harm(log, last, at=at)
    log.close_cleanly()
    again = open_orders(log.disk, BIG, clean=True, recovery_point=300, high_watermark=300)
    if known:
        apply(again, 0)
    config = LogConfig(segment_bytes=24_000, index_interval_bytes=500, retention_ms=1000)
    again.update_config(config)
    assert again.apply_retention(NOW_MS + last + 990).segments == 0
    retained = again.apply_retention(NOW_MS + last + 1010)
    assert (retained.segments, again.log_start_offset) == (1, last + 1)


@pytest.mark.parametrize("offset", [60, 76, 77, 78, 79, 120])
@pytest.mark.parametrize("at", [6, 10, 70])
def test_truncation_cuts_where_it_should(log: Log, offset: int, at: int) -> None:
    before = read_all(log)
    harm(log, 77, at=at)
    apply(log, 0)
    assert log.truncate_to(offset)
    assert log.log_end_offset == offset
    served, refused = read_around(log, max_bytes=1000)
    assert served == [batch for batch in before[:offset] if batch.base_offset != 77]
    assert refused == ([range(77, 78)] if offset > 77 else [])
    assert append(log, leader_epoch=1).base_offset == offset
    assert len(read_around(log, max_bytes=1000)[0]) == len(served) + 1


@pytest.mark.parametrize("at", [0, 6, 9, 10, 16, 40, 70])
def test_indexes_are_derived_around_damage(log: Log, at: int) -> None:
    """I4 also for a damaged log, known or not: nothing that a lying header says breaks the rebuilding."""
    harm(log, 77, at=at)
    for kind in (files.INDEX, files.TIME_INDEX):
        log.disk.remove(files.segment_path(DIRECTORY, 0, kind))
    log.segments[0].forget_indexes()
    log.segments[0].rebuild_indexes()
    apply(log, 0)
    log.segments[0].rebuild_indexes()
    assert scrubbed(log, 0).index_problem is None
    served, refused = read_around(log, max_bytes=1000)
    assert refused == [range(77, 78)]
    assert len(served) == 299


@pytest.mark.parametrize("at", [16, 70])
def test_what_recovery_finds_is_kept_from_readers_too(at: int) -> None:
    log = open_orders(SimDisk(Random(1)), BIG)
    for number in range(20):
        append(log, make_batch((NOW_MS + number,)))
    log.flush()
    harm(log, 7, at=at)
    assert isinstance(log.disk, SimDisk)
    again = open_orders(log.disk.crash("keep_all"), BIG, recovery_point=20)
    assert [damage.first_offset for damage in again.recovery.damages] == [7]
    assert again.segments[0].damage == tuple(again.recovery.damages)
    served, refused = read_around(again, max_bytes=300)
    assert ([batch.base_offset for batch in served], refused) == ([*range(7), *range(8, 20)], [range(7, 8)])


def test_bytes_that_enter_a_follower_are_checked() -> None:
    """I2, M27: what a leader sends damaged is not stored."""
    follower = open_orders(SimDisk(Random(1)), BIG)
    leader = sealed_log([(1, 20)] * 4)
    data = bytearray(read_file(leader.disk, leader.segments[0].file.path))
    data[-1] ^= 1
    with pytest.raises(CorruptDataError, match="fails its CRC"):
        follower.append_as_follower(data, now_ms=NOW_MS)
    assert (follower.log_end_offset, follower.active.size) == (0, 0)
