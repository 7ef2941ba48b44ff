"""Offset, time and transaction index: against a plain list, against Kafka's bytes, against the examples in docs/formats."""

from __future__ import annotations

import random
import re
import time
from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidelog.errors import CorruptDataError
from tidelog.storage.disk import DiskError
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.time_index import TimeIndex
from tidelog.storage.txn_index import AbortedTransaction, TxnIndex
from tidelog.testing.sim.disk import SimDisk

FORMATS = Path(__file__).parents[2] / "docs" / "formats"
BASE = 5_000_000_000

# Written by Kafka 4.3.1: 72-byte batches of one record each, an entry per batch but the first.
KAFKA_INDEX = bytes.fromhex(
    "0000000100000048000000020000009000000003000000d800000004000001200000000500000168"
)
KAFKA_TIME_INDEX = bytes.fromhex("0000018bcfe56801000000010000018bcfe56802000000020000018bcfe5680300000003")
KAFKA_TXN_INDEX = bytes.fromhex(
    "00000000000000000001000000000000000000000000000000010000000000000002"
    "00000000000000000001000000000000000400000000000000050000000000000006"
)


def sim_disk() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    return disk


def offset_index(
    disk: SimDisk, content: bytes = b"", base: int = BASE, max_bytes: int = 1 << 20
) -> OffsetIndex:
    file = disk.open("/d/x.index", create=True)
    if content:
        file.write_at([content], 0)
    return OffsetIndex(file, base, max_bytes)


def time_index(disk: SimDisk, content: bytes = b"", base: int = BASE, max_bytes: int = 1 << 20) -> TimeIndex:
    file = disk.open("/d/x.timeindex", create=True)
    if content:
        file.write_at([content], 0)
    return TimeIndex(file, base, max_bytes)


def example(page: str, name: str) -> bytes:
    """The hex block under the heading that names it."""
    text = (FORMATS / page).read_text()
    block = re.search(rf"<!-- example: {re.escape(name)} -->\n```\n(.*?)```", text, re.S)
    assert block is not None, f"docs/formats/{page} has no example {name!r}"
    columns = (line.split("#")[0] for line in block[1].splitlines())
    return bytes.fromhex("".join(columns))


# -- against a list ---------------------------------------------------------------------------------------------------


class OffsetIndexModel(RuleBasedStateMachine):
    """Appends in large strides, so that the index has blocks, a tail, and boundaries between them."""

    @initialize(padding=st.sampled_from([0, 0, 2, 700]))
    def begin(self, padding: int) -> None:
        self.disk = sim_disk()
        self.model: list[tuple[int, int]] = []
        self.index = offset_index(self.disk)
        self.padding = padding

    @rule(count=st.sampled_from([1, 2, 511, 513, 1100]), stride=st.integers(1, 50))
    def append(self, count: int, stride: int) -> None:
        offset, position = self.model[-1] if self.model else (BASE, 10)
        for _ in range(count):
            offset += stride
            position += 3 * stride
            self.index.append(offset, position)
            self.model.append((offset, position))

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        top = self.model[-1][0] + 5 if self.model else BASE + 5
        offset = data.draw(st.integers(BASE - 3, top))
        number = bisect_right(self.model, (offset, 1 << 40)) - 1
        assert self.index.lookup(offset) == (self.model[number] if number >= 0 else (BASE, 0))
        position = data.draw(st.integers(0, self.model[-1][1] + 5 if self.model else 5))
        later = [entry for entry in self.model if entry[1] >= position]
        assert self.index.first_at_or_after_position(position) == (later[0] if later else None)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(BASE - 3, self.model[-1][0] + 5 if self.model else BASE))
        self.index.truncate_to(offset)
        self.model = [entry for entry in self.model if entry[0] < offset]

    @rule()
    def reopen(self) -> None:
        assert list(self.index) == self.model
        self.index.check(deep=True)
        self.index.close()
        file = self.disk.open("/d/x.index")
        assert file.size() == 8 * len(self.model)
        file.write_at([bytes(8 * self.padding)], file.size())  # as a preallocating writer leaves it
        self.index = OffsetIndex(file, BASE, 1 << 20)

    @invariant()
    def same_entries(self) -> None:
        if hasattr(self, "index"):
            assert self.index.entries == len(self.model)
            assert self.index.last_offset == (self.model[-1][0] if self.model else BASE)


TestOffsetIndexModel = OffsetIndexModel.TestCase
TestOffsetIndexModel.settings = settings(max_examples=30, stateful_step_count=15)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(-5, 40), st.integers(0, 3)), max_size=60),
    st.integers(-3, 1000),
    st.integers(0, 130),
    st.integers(1, 40),
)
def test_time_index_is_a_running_maximum(
    steps: list[tuple[int, int]], wanted: int, cut: int, scale: int
) -> None:
    index = time_index(sim_disk())
    model: list[tuple[int, int]] = []
    timestamp, offset = 100, BASE
    for move, gap in steps * scale:
        timestamp += move
        offset += gap
        newer = not model or timestamp > model[-1][0]
        assert index.append_if_newer(timestamp, offset) is newer
        if newer:
            model.append((timestamp, offset))
    assert list(index) == model
    assert index.last_entry == (model[-1] if model else (-1, BASE))
    below = [entry for entry in model if entry[0] <= wanted]
    assert index.lookup(wanted) == (below[-1] if below else (-1, BASE))
    index.truncate_to(BASE + cut)
    assert list(index) == [entry for entry in model if entry[1] < BASE + cut]
    index.check(deep=True)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(0, 9)), max_size=140),
    st.integers(0, 300),
    st.integers(0, 300),
)
def test_txn_index_collects_what_overlaps(steps: list[tuple[int, int, int]], start: int, cut: int) -> None:
    disk = sim_disk()
    index = TxnIndex(disk, "/d/x.txnindex", 0)
    model: list[AbortedTransaction] = []
    offset = 0
    for back, ahead, stable in steps:
        offset += ahead
        aborted = AbortedTransaction(7, max(0, offset - back), offset, max(0, offset - stable))
        assert index.append(aborted) is (not model)
        model.append(aborted)
    end = start + 20
    found, complete = index.collect(start, end)
    decided = next((n for n, entry in enumerate(model) if entry.last_stable_offset >= end), None)
    assert complete is (decided is not None)
    considered = model if decided is None else model[: decided + 1]
    assert found == [e for e in considered if e.last_offset >= start and e.first_offset < end]
    index.check()
    index.truncate_to(cut)
    model = [entry for entry in model if entry.last_offset < cut]
    index.close()
    again = TxnIndex(disk, "/d/x.txnindex", 0)
    assert list(again) == model
    assert again.entries == len(model)


# -- against Kafka's bytes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [0, 8, 10 * 1024 * 1024 - len(KAFKA_INDEX)])
def test_an_index_written_by_kafka_is_read(padding: int) -> None:
    index = offset_index(sim_disk(), KAFKA_INDEX + bytes(padding), base=0)
    index.check(deep=True)
    assert list(index) == [(1, 72), (2, 144), (3, 216), (4, 288), (5, 360)]
    assert index.lookup(0) == (0, 0)
    assert index.lookup(3) == (3, 216)
    assert index.lookup(10**9) == (5, 360)
    index.append(6, 432)
    assert index.entries == 6
    index.close()


def test_padding_is_cut_on_close_and_on_truncation() -> None:
    for finish in (OffsetIndex.close, lambda index: index.truncate_to(100)):
        disk = sim_disk()
        index = offset_index(disk, KAFKA_INDEX + bytes(8000), base=0)
        assert index.entries == 5
        finish(index)
        assert disk.file_size("/d/x.index") == len(KAFKA_INDEX)


def test_a_preallocated_index_without_entries_is_empty() -> None:
    index = offset_index(sim_disk(), bytes(4096))
    assert (index.entries, index.last_offset, index.lookup(BASE + 9)) == (0, BASE, (BASE, 0))
    index.append(BASE, 0)
    assert list(index) == [(BASE, 0)]


def test_a_time_index_written_by_kafka_is_read() -> None:
    index = time_index(sim_disk(), KAFKA_TIME_INDEX + bytes(1200), base=0)
    index.check(deep=True)
    first = 1_700_000_000_001
    assert list(index) == [(first, 1), (first + 1, 2), (first + 2, 3)]
    assert index.lookup(first - 1) == (-1, 0)
    assert index.lookup(first + 1) == (first + 1, 2)


def test_a_single_entry_at_time_zero_is_an_entry() -> None:
    index = time_index(sim_disk())
    assert index.append_if_newer(0, BASE)
    index.close()
    disk = sim_disk()
    assert list(time_index(disk, bytes(12))) == [(0, BASE)]


def test_what_we_write_is_what_kafka_writes() -> None:
    disk = sim_disk()
    index = offset_index(disk, base=0)
    times = time_index(disk, base=0)
    for number in range(1, 6):
        index.append(number, 72 * number)
    for number in range(1, 4):
        times.append_if_newer(1_700_000_000_000 + number, number)
    aborted = TxnIndex(disk, "/d/x.txnindex", 0)
    aborted.append(AbortedTransaction(1, 0, 1, 2))
    aborted.append(AbortedTransaction(1, 4, 5, 6))
    assert disk.open("/d/x.index").read_at(999, 0) == KAFKA_INDEX
    assert disk.open("/d/x.timeindex").read_at(999, 0) == KAFKA_TIME_INDEX
    assert disk.open("/d/x.txnindex").read_at(999, 0) == KAFKA_TXN_INDEX


def test_the_examples_in_the_docs_are_true() -> None:
    index = offset_index(sim_disk(), example("indexes.md", "offset index"), base=1000)
    assert list(index) == [(1005, 4180), (1011, 8402)]
    assert index.lookup(1010) == (1005, 4180)
    times = time_index(sim_disk(), example("indexes.md", "time index"), base=1000)
    assert list(times) == [(1_700_000_000_000, 1005), (1_700_000_000_250, 1011)]
    disk = sim_disk()
    disk.open("/d/x.txnindex", create=True).write_at([example("indexes.md", "transaction index")], 0)
    assert list(TxnIndex(disk, "/d/x.txnindex", 1000)) == [AbortedTransaction(4001, 1006, 1012, 1013)]


# -- limits and damage --------------------------------------------------------------------------------------------------


def test_offsets_must_rise_and_fit_in_32_bits() -> None:
    index = offset_index(sim_disk())
    index.append(BASE + 7, 70)
    for offset in (BASE + 7, BASE + 6, BASE - 1, BASE + 2**31):
        with pytest.raises(ValueError, match="does not fit"):
            index.append(offset, 80)
    index.append(BASE + 2**31 - 1, 80)
    times = time_index(sim_disk())
    times.append_if_newer(5, BASE + 7)
    for offset in (BASE + 6, BASE + 2**31):
        with pytest.raises(ValueError, match="does not fit"):
            times.append_if_newer(6, offset)
    aborted = TxnIndex(sim_disk(), "/d/x.txnindex", 0)
    aborted.append(AbortedTransaction(1, 0, 5, 5))
    with pytest.raises(ValueError, match="not behind"):
        aborted.append(AbortedTransaction(2, 0, 5, 5))


def test_full_indexes_say_so() -> None:
    index = offset_index(sim_disk(), max_bytes=31)
    times = time_index(sim_disk(), max_bytes=36)
    for number in range(1, 4):
        assert not index.is_full
        index.append(BASE + number, number)
    assert index.is_full
    with pytest.raises(ValueError, match="roll"):
        index.append(BASE + 9, 9)
    times.append_if_newer(1, BASE)
    times.append_if_newer(2, BASE)
    assert times.is_full
    with pytest.raises(ValueError, match="roll"):
        times.append_if_newer(3, BASE)
    assert times.append_if_newer(3, BASE, closing=True)


def test_damage_is_found() -> None:
    with pytest.raises(CorruptDataError, match="multiple"):
        offset_index(sim_disk(), KAFKA_INDEX[:-1]).check()
    with pytest.raises(CorruptDataError, match="relative offset -1"):
        offset_index(sim_disk(), KAFKA_INDEX + b"\xff" * 4 + bytes(4)).check()
    swapped = KAFKA_INDEX[8:16] + KAFKA_INDEX[:8] + KAFKA_INDEX[16:]
    offset_index(sim_disk(), swapped).check()
    with pytest.raises(CorruptDataError, match="entry 1"):
        offset_index(sim_disk(), swapped).check(deep=True)
    with pytest.raises(CorruptDataError, match="multiple"):
        time_index(sim_disk(), KAFKA_TIME_INDEX + b"x").check()
    with pytest.raises(CorruptDataError, match="ends with timestamp"):
        time_index(sim_disk(), KAFKA_TIME_INDEX[12:] + KAFKA_TIME_INDEX[:12]).check()
    for content, message in (
        (KAFKA_TXN_INDEX[:-1], "multiple"),
        (b"\0\1" + KAFKA_TXN_INDEX[2:], "version 1"),
        (KAFKA_TXN_INDEX[34:] + KAFKA_TXN_INDEX[:34], "entry 1"),
    ):
        disk = sim_disk()
        disk.open("/d/x.txnindex", create=True).write_at([content], 0)
        with pytest.raises(CorruptDataError, match=message):
            TxnIndex(disk, "/d/x.txnindex", 0).check()


def test_a_failed_append_leaves_the_index_as_it_was() -> None:
    disk = sim_disk()
    index = offset_index(disk)
    index.append(BASE + 1, 1)
    disk.fail("write", partial_bytes=3)
    with pytest.raises(DiskError):
        index.append(BASE + 2, 2)
    assert list(index) == [(BASE + 1, 1)]
    index.append(BASE + 3, 3)
    assert list(index) == [(BASE + 1, 1), (BASE + 3, 3)]


def test_nothing_of_the_old_end_is_remembered_after_truncation() -> None:
    index = offset_index(sim_disk(), base=0)
    for number in range(1, 3001):
        index.append(number, number)
    for offset in (600, 1100, 1600, 2100):
        assert index.lookup(offset) == (offset, offset)
    index.truncate_to(301)
    for number in range(1, 3001):
        index.append(300 + number * 2, 300 + number)
    for number in range(1, 3001, 7):
        assert index.lookup(300 + number * 2 + 1) == (300 + number * 2, 300 + number)


def test_the_bounds_of_a_collection_are_half_open() -> None:
    index = TxnIndex(sim_disk(), "/d/x.txnindex", 0)
    index.append(AbortedTransaction(1, 10, 20, 10))
    for start, end, found in ((20, 30, 1), (21, 30, 0), (0, 11, 1), (0, 10, 0)):
        assert len(index.collect(start, end)[0]) == found
    assert index.collect(0, 10)[1] is True
    assert index.collect(0, 11)[1] is False


def test_the_txn_index_exists_only_once_needed() -> None:
    disk = sim_disk()
    index = TxnIndex(disk, "/d/x.txnindex", 0)
    assert index.file is None
    assert index.collect(0, 100) == ([], False)
    index.truncate_to(0)
    index.sync()
    index.close()
    assert not disk.exists("/d/x.txnindex")
    assert index.append(AbortedTransaction(1, 2, 3, 4)) is True
    assert index.append(AbortedTransaction(1, 5, 6, 7)) is False
    disk.rename("/d/x.txnindex", "/d/y")
    index.moved_to("/d/y")
    assert index.path == "/d/y"
    index.clear()
    assert list(index) == []


def test_lookups_need_few_reads(tmp_path: Path) -> None:
    """Not a benchmark: only that a lookup in a full 2 MiB index is far from reading it all."""
    disk = PosixDisk()
    file = disk.open(f"{tmp_path}/x.index", create=True)
    entries = 1 << 18
    file.write_at([b"".join((n * 10).to_bytes(4) + (n * 40).to_bytes(4) for n in range(1, entries + 1))], 0)
    index = OffsetIndex(file, 0, 1 << 21)
    assert index.is_full
    draw = random.Random(3)
    durations = []
    for _ in range(2000):
        offset = draw.randrange(10, entries * 10)
        begin = time.perf_counter()
        found = index.lookup(offset)
        durations.append(time.perf_counter() - begin)
        assert found == (offset // 10 * 10, offset // 10 * 40)
    assert sorted(durations)[1000] < 200e-6


def test_held_entries_are_written_together_and_found_before_and_after() -> None:
    disk = sim_disk()
    index = offset_index(disk)
    index.append(BASE + 1, 100)
    index.hold()
    index.append(BASE + 5, 200)
    index.append(BASE + 9, 300)
    assert disk.open("/d/x.index").size() == 8
    assert index.lookup(BASE + 7) == (BASE + 5, 200)
    index.let_go()
    assert list(index) == [(BASE + 1, 100), (BASE + 5, 200), (BASE + 9, 300)]
    index.append(BASE + 10, 400)
    assert index.entries == 4


def test_held_entries_that_cannot_be_written_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = sim_disk()
    index = offset_index(disk)
    index.append(BASE + 1, 100)
    index.hold()
    index.append(BASE + 5, 200)
    with monkeypatch.context() as patched:
        patched.setattr(type(index.file), "write_at", _full)
        with pytest.raises(DiskError):
            index.let_go()
    assert index.entries == 1
    index.truncate_to(BASE + 5)
    index.append(BASE + 5, 200)
    assert list(index) == [(BASE + 1, 100), (BASE + 5, 200)]


def _full(*_arguments: object) -> int:
    raise DiskError("write", "/d/x.index", OSError(28, "no space left on device"))
