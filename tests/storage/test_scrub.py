"""The scrub finds what a disk does to sealed segments, and says exactly which batch it is (I2)."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.storage.log_world import NOW_MS, append, make_batch, open_orders, read_all
from tests.storage.scrub_world import apply, headers_of, read_around, scrubbed, sealed_log
from tidelog.records.batch import BatchHeader
from tidelog.storage import files, scrub
from tidelog.storage.disk import read_file
from tidelog.storage.epoch_cache import LeaderEpochCache
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.scrub import SegmentScrub
from tidelog.testing.sim.disk import SimDisk


def test_sound_segments_stay_unblamed() -> None:
    log = sealed_log()
    assert len(log.segments) > 3
    for number in range(len(log.segments) - 1):
        for budget in (1, 100, 1 << 20):
            found = scrubbed(log, number, budget=budget)
            assert (found.damages, found.gaps, found.index_problem, found.epoch_conflicts) == (
                [],
                [],
                None,
                0,
            )
            assert found.batches == len(headers_of(log, log.segments[number]))


# ---- single bits


def holder(log: Log, number: int, at: int) -> tuple[int, BatchHeader]:
    """The batch that a byte belongs to."""
    return [found for found in headers_of(log, log.segments[number]) if found[0] <= at][-1]


def check_one_batch_is_blamed(found: SegmentScrub, position: int, header: BatchHeader) -> None:
    assert [(d.position, d.length, d.first_offset, d.end_offset) for d in found.damages] == [
        (position, header.size, header.base_offset, header.next_offset)
    ], found.damages


@pytest.mark.parametrize("number", [0, 1, 3])
def test_every_single_bit_is_found_and_its_batch_alone_is_blamed(number: int) -> None:
    log = sealed_log()
    disk, path = log.disk, log.segments[number].file.path
    assert isinstance(disk, SimDisk)
    whole = headers_of(log, log.segments[number])
    for position, header in whole:
        # All of the header, and a byte here and there behind it: the CRC treats those alike.
        for at in [*range(61), *range(61, header.size, 7)]:
            for bit in range(8):
                disk.flip_bit(path, position + at, bit)
                check_one_batch_is_blamed(scrubbed(log, number, budget=1 << 20), position, header)
                disk.flip_bit(path, position + at, bit)
    assert not scrubbed(log, number).damages


SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 120)), min_size=2, max_size=40)


@settings(max_examples=60)
@given(
    shapes=SHAPES,
    epochs=st.lists(st.integers(0, 3), min_size=1, max_size=4).map(sorted),
    segment_bytes=st.integers(1500, 6000),
    chunk_bytes=st.sampled_from([64, 100, 333, 4096]),
    budget=st.sampled_from([1, 100, 1000, 1 << 20]),
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_any_bit_of_any_log_is_found(
    shapes: list[tuple[int, int]],
    epochs: list[int],
    segment_bytes: int,
    chunk_bytes: int,
    budget: int,
    where: float,
    bit: int,
) -> None:
    """Whatever the batches, the size of the pieces, and where chunks end: also in the middle of a header."""
    log = sealed_log(
        shapes, epochs=epochs, config=LogConfig(segment_bytes=segment_bytes, index_interval_bytes=200)
    )
    disk = log.disk
    assert isinstance(disk, SimDisk)
    before = read_all(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scrub, "CHUNK_BYTES", chunk_bytes)
        number = int(where * (len(log.segments) - 1))
        segment = log.segments[number]
        at = int((where * 7919) % 1 * segment.size)
        position, header = holder(log, number, at)
        disk.flip_bit(segment.file.path, at, bit)
        found = apply(log, number, budget=budget)
        check_one_batch_is_blamed(found, position, header)
        assert found.damages[0].path == segment.file.path
    served, refused = read_around(log, max_bytes=300)
    assert refused == [range(header.base_offset, header.next_offset)]
    assert served == [batch for batch in before if batch.base_offset != header.base_offset]


# ---- more than a bit


@st.composite
def harms(draw: st.DrawFn) -> tuple[str, float, int]:
    return draw(st.sampled_from(["zero", "garbage", "cut"])), draw(st.floats(0, 1)), draw(st.integers(1, 700))


@settings(max_examples=80)
@given(shapes=SHAPES, harm=st.lists(harms(), min_size=1, max_size=4), seed=st.integers(0, 1 << 32))
@example(shapes=[(3, 55), (2, 0), (1, 0)], harm=[("zero", 0.0, 267)], seed=0)
def test_whatever_a_disk_does_nothing_changed_is_served_and_nothing_sound_is_lost(
    shapes: list[tuple[int, int]], harm: list[tuple[str, float, int]], seed: int
) -> None:
    log = sealed_log(shapes, config=LogConfig(segment_bytes=4000, index_interval_bytes=200))
    disk, segment = log.disk, log.segments[0]
    assert isinstance(disk, SimDisk)
    path = segment.file.path
    before, true_bytes = read_all(log), read_file(disk, path)
    batches = headers_of(log, segment)
    for kind, where, length in harm:
        at = int(where * (segment.size - 1))
        now = read_file(disk, path)
        if kind == "cut":
            disk.open(path).truncate(min(len(now), max(1, at)))
        elif at + length < len(now):
            disk.corrupt(path, at, bytes(length) if kind == "zero" else Random(seed).randbytes(length))
    changed = read_file(disk, path).ljust(len(true_bytes), b"\0")
    short = len(read_file(disk, path))
    hurt = {
        header.base_offset
        for position, header in batches
        if changed[position : position + header.size] != true_bytes[position : position + header.size]
        or position + header.size > short
    }
    found = apply(log, 0)
    assert bool(found.damages) == bool(hurt)
    served, refused = read_around(log, max_bytes=300)
    assert all(batch in before and batch.base_offset not in hurt for batch in served)
    # Between two that are gone, nothing but the index knows where a batch belongs, and it does not know all of them.
    bases = [header.base_offset for _, header in batches]
    alone = {
        base
        for base, left, right in zip(bases[1:], bases, bases[2:], strict=False)
        if left in hurt and right in hurt
    }
    kept_back = {batch.base_offset for batch in before} - {batch.base_offset for batch in served}
    assert hurt <= kept_back <= hurt | alone, "what is unharmed and has a neighbour is served"
    lost = {offset for offsets in refused for offset in offsets}
    assert lost == {
        offset
        for batch in before
        if batch.base_offset in kept_back
        for offset in range(batch.base_offset, batch.last_offset + 1)
    }


@pytest.mark.parametrize("reach", range(1, 9))
@pytest.mark.parametrize("records", [1, 300])
def test_harm_that_ends_within_the_next_base_offset_moves_nothing(reach: int, records: int) -> None:
    """The CRC does not cover those eight bytes: the batch is sound by itself, and would be served at offsets of the lost one."""
    log = sealed_log([(20, 0), (records, 1), (1, 30), (2, 30)], config=LogConfig(segment_bytes=1 << 20))
    disk, path = log.disk, log.segments[0].file.path
    assert isinstance(disk, SimDisk)
    before, true_bytes = read_all(log), read_file(disk, path)
    (_, (start, _), (third, _), _) = headers_of(log, log.segments[0])
    disk.corrupt(path, start, bytes(third + reach - start))
    is_hurt = read_file(disk, path)[third : third + 8] != true_bytes[third : third + 8]
    apply(log, 0)
    served, refused = read_around(log, max_bytes=300)
    assert served == ([before[0], before[3]] if is_hurt else [before[0], *before[2:]])
    assert [offsets.start for offsets in refused] == [20]


@pytest.mark.parametrize("has_index", [True, False])
def test_between_two_that_are_gone_the_index_knows_where_a_batch_belongs(has_index: bool) -> None:
    config = LogConfig(segment_bytes=1 << 20, index_interval_bytes=100 if has_index else 1 << 20)
    log = sealed_log([(1, 120)] * 5, config=config)
    disk, path = log.disk, log.segments[0].file.path
    assert isinstance(disk, SimDisk)
    before, batches = read_all(log), headers_of(log, log.segments[0])
    for number in (1, 3):
        position, header = batches[number]
        disk.corrupt(path, position, bytes(header.size))
    apply(log, 0)
    served, refused = read_around(log, max_bytes=300)
    if has_index:
        assert served == before[::2]
    else:
        assert (served, refused) == ([before[0], before[4]], [range(1, 4)])


@settings(max_examples=80)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0, 30])), min_size=4, max_size=40),
    source=st.integers(0, 40),
    target=st.integers(0, 40),
    count=st.integers(1, 5),
)
@example(
    # It ends in the middle of a batch, with a byte that was there before: an index entry leads into it.
    shapes=[(2, 30), (3, 30), (1, 0), (1, 0), (1, 0), (3, 30), (1, 0)],
    source=3,
    target=0,
    count=3,
)
def test_a_write_that_went_astray_loses_nothing_in_silence(
    shapes: list[tuple[int, int]], source: int, target: int, count: int
) -> None:
    """Sound batches stand where others should: each offset is right, refused, or reported missing."""
    log = sealed_log(shapes, config=LogConfig(segment_bytes=8000, index_interval_bytes=200))
    disk, segment = log.disk, log.segments[0]
    assert isinstance(disk, SimDisk)
    before, batches = read_all(log), headers_of(log, segment)
    count = min(count, len(batches))
    source, target = source % (len(batches) - count + 1), target % (len(batches) - count + 1)
    start, end = batches[source][0], batches[source + count - 1][0] + batches[source + count - 1][1].size
    astray = read_file(disk, segment.file.path)[start:end]
    disk.corrupt(segment.file.path, batches[target][0], astray[: segment.size - batches[target][0]])
    found = apply(log, 0)
    served, refused = read_around(log, max_bytes=300)
    assert all(batch in before for batch in served)
    explained = {offset for offsets in refused for offset in offsets} | {
        offset for gap in found.gaps for offset in range(gap.first_offset, gap.end_offset)
    }
    got = {offset for batch in served for offset in range(batch.base_offset, batch.last_offset + 1)}
    assert set(range(log.log_end_offset)) == got | explained


def test_a_length_that_leads_to_another_batch_hides_none() -> None:
    """Equal batches of a power of two bytes: one bit in a length makes a batch swallow its neighbour, and ends at a boundary."""
    log = open_orders(SimDisk(Random(1)), LogConfig(segment_bytes=4000))
    batch = make_batch(value=bytes(100 + 256 - len(make_batch(value=bytes(100)))))
    assert len(batch) == 256
    for _ in range(10):
        append(log, batch)
    log.roll(NOW_MS)
    log.flush()
    before = read_all(log)
    assert isinstance(log.disk, SimDisk)
    log.disk.flip_bit(log.segments[0].file.path, 3 * 256 + 10)
    assert headers_of(log, log.segments[0])[3][1].size == 512
    found = apply(log, 0)
    assert [(d.position, d.length) for d in found.damages] == [(3 * 256, 256)]
    assert read_around(log, max_bytes=1)[0] == [*before[:3], *before[4:]]


def test_bytes_inside_a_record_are_not_taken_for_the_batch_behind_it() -> None:
    """Someone stores record batches in records. The damaged batch's own length, where it is right, leads past them."""
    log = open_orders(SimDisk(Random(1)), LogConfig(segment_bytes=10_000))
    append(log)
    inner = make_batch([NOW_MS] * 2, base_offset=2, leader_epoch=0)
    append(log, make_batch([NOW_MS] * 5, value=inner))
    append(log)
    log.roll(NOW_MS)
    log.flush()
    assert isinstance(log.disk, SimDisk)
    position, header = headers_of(log, log.segments[0])[1]
    log.disk.flip_bit(log.segments[0].file.path, position + header.size - 3)
    check_one_batch_is_blamed(scrubbed(log, 0), position, header)


def test_more_damage_than_can_be_told_apart_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "DAMAGES_MAX", 3)
    log = sealed_log([(1, 10)] * 20, config=LogConfig(segment_bytes=4000))
    assert isinstance(log.disk, SimDisk)
    batches = headers_of(log, log.segments[0])
    for position, header in batches[1::2]:
        log.disk.flip_bit(log.segments[0].file.path, position + header.size - 1)
    found = apply(log, 0)
    assert len(found.damages) == 3
    assert found.damages[-1].end_offset == 20
    served, _ = read_around(log, max_bytes=300)
    assert [batch.base_offset for batch in served] == [0, 2, 4]


# ---- offsets in a log with gaps


def test_between_gaps_either_of_two_that_contradict_each_other_may_be_wrong() -> None:
    log = open_orders(SimDisk(Random(1)), LogConfig(segment_bytes=4000))
    for base in (0, 100, 200, 300):  # as a cleaner leaves them
        log.append_as_follower(make_batch(base_offset=base, leader_epoch=0), now_ms=NOW_MS)
    log.roll(NOW_MS)
    log.flush()
    whole = scrubbed(log, 0)
    assert whole.damages == []
    assert [(gap.first_offset, gap.end_offset) for gap in whole.gaps] == [(1, 100), (101, 200), (201, 300)]
    assert isinstance(log.disk, SimDisk)
    (_, (first, _), (second, header), _) = headers_of(log, log.segments[0])
    log.disk.corrupt(log.segments[0].file.path, second, (50).to_bytes(8, "big"))
    (damage,) = scrubbed(log, 0).damages
    assert (damage.position, damage.end_position) == (first, second + header.size)
    assert (damage.first_offset, damage.end_offset) == (1, 300)


# ---- epochs


def test_a_wrong_epoch_cache_is_no_damage_of_the_log() -> None:
    """It is derived (I4): batches that agree with each other win."""
    log = sealed_log(epochs=(0, 1, 2))
    log.epochs = LeaderEpochCache([(0, 0), (2, 1)])
    found = [scrubbed(log, number) for number in range(len(log.segments) - 1)]
    assert not any(each.damages for each in found)
    assert sum(each.epoch_conflicts for each in found) > 4


def test_what_lies_below_the_log_start_need_not_be_in_the_epoch_cache() -> None:
    log = sealed_log(epochs=(0, 1, 2, 3))
    log.advance_log_start_offset(log.segments[1].base_offset - 1)
    log.epochs.truncate_from_start(log.log_start_offset)
    assert scrubbed(log, 0).damages == []


# ---- indexes


@pytest.mark.parametrize("kind", [files.INDEX, files.TIME_INDEX])
def test_every_bit_of_an_index_is_found_and_blamed_on_the_index(kind: str) -> None:
    log = sealed_log()
    assert isinstance(log.disk, SimDisk)
    path = files.segment_path(log.directory, 0, kind)
    size = log.disk.file_size(path)
    assert size >= 24
    for at in range(size):
        for bit in range(8):
            log.disk.flip_bit(path, at, bit)
            found = scrubbed(log, 0, budget=1 << 20)
            assert (found.damages, found.index_problem is None) == ([], False)
            log.disk.flip_bit(path, at, bit)
    log.disk.open(path).truncate(size - 1)
    assert scrubbed(log, 0).index_problem is not None


def test_an_index_of_a_damaged_batch_is_not_blamed() -> None:
    log = sealed_log()
    assert isinstance(log.disk, SimDisk)
    segment = log.segments[0]
    for offset, position in list(segment.offset_index):
        log.disk.corrupt(segment.file.path, position, bytes(61))
        found = scrubbed(log, 0)
        assert found.index_problem is None, offset
        assert found.damages


# ---- bounds


class CountingFile:
    def __init__(self, file: object) -> None:
        self._file = file
        self.bytes = self.largest = 0

    def read_at(self, count: int, position: int, /) -> bytes:
        data: bytes = self._file.read_at(count, position)  # type: ignore[attr-defined]
        self.bytes += len(data)
        self.largest = max(self.largest, len(data))
        return data

    @property
    def path(self) -> str:
        return "counted"


@pytest.mark.parametrize("harm", ["none", "last byte", "header", "zeroes"])
def test_a_huge_batch_is_checked_in_bounded_memory_and_bounded_steps(harm: str) -> None:
    log = open_orders(SimDisk(Random(1)), LogConfig(segment_bytes=64 << 20, max_message_bytes=64 << 20))
    append(log, make_batch(value=bytes(1000)))
    append(log, make_batch(value=Random(1).randbytes(12 << 20)))
    append(log, make_batch(value=bytes(1000)))
    log.roll(NOW_MS)
    log.flush()
    assert isinstance(log.disk, SimDisk)
    segment = log.segments[0]
    position, header = headers_of(log, segment)[1]
    if harm == "last byte":
        log.disk.flip_bit(segment.file.path, position + header.size - 1)
    elif harm == "header":
        log.disk.flip_bit(segment.file.path, position + 16)
    elif harm == "zeroes":
        log.disk.corrupt(segment.file.path, position, bytes(1 << 20))
    counted = CountingFile(segment.file)
    facts = scrubbed(log, 0, budget=1 << 30).facts
    check = SegmentScrub(counted, facts, offset_index=segment.offset_index, time_index=segment.time_index)
    read_before, step_bytes_max = 0, 0
    tracemalloc.start()
    while not check.done:
        check.step(256 << 10)
        step_bytes_max = max(step_bytes_max, counted.bytes - read_before)
        read_before = counted.bytes
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert counted.largest <= 1 << 20
    assert step_bytes_max <= 2 << 20
    if harm == "none":
        assert check.damages == []
        assert counted.bytes <= segment.size + (1 << 10)
    else:
        check_one_batch_is_blamed(check, position, header)


def test_the_file_may_have_shrunk_between_two_steps() -> None:
    """A truncation while the check is under way: it ends, and whoever began it knows that what it says is of no interest."""
    log = sealed_log([(1, 100)] * 30, config=LogConfig(segment_bytes=4000))
    facts = scrubbed(log, 0).facts
    segment = log.segments[0]
    for size in range(0, segment.size, 97):
        file = log.disk.open(segment.file.path)
        check = SegmentScrub(file, facts, offset_index=None, time_index=None)
        check.step(1)
        whole = file.read_at(segment.size, 0)
        file.truncate(size)
        while not check.done:
            check.step(1000)
        file.write_at((whole,), 0)


def test_a_tail_that_is_missing_since_before_the_start_is_a_gap() -> None:
    """The file was cut at the end of a batch while the broker was down: nothing in it is wrong."""
    log = sealed_log()
    segment = log.segments[0]
    position, header = headers_of(log, segment)[-1]
    segment.file.truncate(position)
    segment.size = position
    segment.rebuild_indexes()
    found = scrubbed(log, 0)
    assert found.damages == []
    assert [tuple(gap) for gap in found.gaps] == [(position, header.base_offset, header.next_offset)]
