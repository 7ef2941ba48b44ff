"""A segment finds its batches, and does not believe an index that contradicts them (I4)."""

from __future__ import annotations

from random import Random

import pytest

from tests.storage.log_world import NOW_MS, make_batch
from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader, read_header
from tidelog.storage.batch_scan import find_valid_batch, scan_batches, scan_headers
from tidelog.storage.disk import read_file
from tidelog.storage.log_config import LogConfig
from tidelog.storage.segment import Segment
from tidelog.testing.sim.disk import SimDisk

CONFIG = LogConfig(index_interval_bytes=200)
PATH = "/p/00000000000000000100"


def written(count: int = 30) -> tuple[SimDisk, Segment, list[tuple[int, BatchHeader]]]:
    """A segment from offset 100 on, two records per batch, a gap of ten after every fifth batch."""
    disk = SimDisk(Random(1))
    disk.make_dirs("/p")
    segment = Segment.create(disk, "/p", 100, CONFIG, now_ms=NOW_MS)
    placed = []
    offset = 100
    for number in range(count):
        times = (NOW_MS + 10 * number, NOW_MS + 10 * number + 5)
        batch = make_batch(times, base_offset=offset, value=b"x" * (number % 7))
        header = read_header(batch)
        position = segment.append((batch,), len(batch), header.last_offset, header.max_timestamp)
        placed.append((position, header))
        offset = header.next_offset + (10 if number % 5 == 4 else 0)
    return disk, segment, placed


def reopened(disk: SimDisk) -> Segment:
    return Segment.open(disk, "/p", 100, CONFIG, names=frozenset(disk.list_dir("/p")))


def expected(placed: list[tuple[int, BatchHeader]], offset: int) -> tuple[int, BatchHeader] | None:
    return next((pair for pair in placed if pair[1].last_offset >= offset), None)


def check_finds(segment: Segment, placed: list[tuple[int, BatchHeader]]) -> None:
    for offset in range(100, placed[-1][1].last_offset + 3):
        assert segment.find(offset) == expected(placed, offset)


def test_finds_every_offset_also_in_gaps() -> None:
    _, segment, placed = written()
    assert segment.offset_index.entries > 5
    check_finds(segment, placed)


def test_rebuilt_indexes_are_the_ones_that_appending_wrote() -> None:
    disk, segment, _ = written()
    segment.seal()
    before = [read_file(disk, PATH + kind) for kind in (".index", ".timeindex")]
    assert all(before)
    disk.remove(PATH + ".index")
    reopened(disk).find(100)
    assert [read_file(disk, PATH + kind) for kind in (".index", ".timeindex")] == before


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("entry", [0, 3, -1])
@pytest.mark.parametrize("from_end", [0, 4])  # the low byte of the second column, and of the first
def test_a_lying_index_is_found_out_and_rebuilt(kind: str, entry: int, from_end: int) -> None:
    disk, segment, placed = written()
    segment.seal()
    width = 8 if kind == ".index" else 12
    count = len(read_file(disk, PATH + kind)) // width
    disk.flip_bit(PATH + kind, (entry % count + 1) * width - 1 - from_end, 3)
    again = reopened(disk)
    check_finds(again, placed)
    assert again.max_timestamp == placed[-1][1].max_timestamp


@pytest.mark.parametrize("keep", [0, 1, 5, 13])
def test_a_torn_index_is_rebuilt(keep: int) -> None:
    disk, segment, placed = written()
    segment.seal()
    disk.open(PATH + ".timeindex").truncate(keep)
    disk.open(PATH + ".index").truncate(keep)
    check_finds(reopened(disk), placed)


def test_zeroes_behind_the_entries_of_a_preallocated_index_are_no_entries() -> None:
    disk, _, placed = written()
    for kind, size in ((".index", 8 * 1000), (".timeindex", 12 * 1000)):
        disk.open(PATH + kind).truncate(size)
    again = reopened(disk)
    check_finds(again, placed)
    assert again.load_tail() == placed[-1][1].next_offset


@pytest.mark.parametrize("of_run", [1, 2, 7, 30])
def test_a_run_of_batches_is_indexed_as_they_are_one_by_one(of_run: int) -> None:
    """A follower writes what one answer brought with one call, and each index with one more."""
    disk, _, placed = written()
    content = read_file(disk, f"{PATH}.log")
    other = SimDisk(Random(1))
    other.make_dirs("/p")
    segment = Segment.create(other, "/p", 100, CONFIG, now_ms=NOW_MS)
    for first in range(0, len(placed), of_run):
        run = placed[first : first + of_run]
        end = run[-1][0] + run[-1][1].size
        segment.append_run(content[run[0][0] : end], [header for _, header in run])
    for kind in ("log", "index", "timeindex"):
        assert read_file(other, f"{PATH}.{kind}") == read_file(disk, f"{PATH}.{kind}"), kind
    assert segment.find(placed[-1][1].last_offset) == placed[-1]


def test_the_tail_says_where_the_segment_ends() -> None:
    disk, segment, placed = written()
    again = reopened(disk)
    assert again.load_tail() == placed[-1][1].next_offset
    assert again.max_timestamp == placed[-1][1].max_timestamp
    disk.open(PATH + ".log").truncate(segment.size - 1)
    with pytest.raises(CorruptDataError):
        reopened(disk).load_tail()


def test_boundaries_are_batch_starts_within_the_limit() -> None:
    _, segment, placed = written()
    starts = {position for position, _ in placed}
    for limit in range(100, segment.size, 37):
        boundary = segment.batch_boundary(0, limit)
        assert boundary is None or (boundary in starts and 0 < boundary <= limit)
    assert segment.batch_boundary(0, segment.size) is not None


def test_cutting_takes_the_whole_batch_and_all_that_is_derived() -> None:
    disk, segment, placed = written()
    middle = placed[12]
    position, end_offset = segment.cut_position(middle[1].base_offset + 1)
    assert (position, end_offset) == (middle[0], placed[11][1].next_offset)
    disk.sync_dir("/p")
    segment.truncate(position, end_offset)
    check_finds(segment, placed[:12])
    again = reopened(disk.crash("lose_unsynced"))  # a cut is durable when it returns
    assert again.load_tail() == end_offset
    check_finds(again, placed[:12])
    assert again.max_timestamp == placed[11][1].max_timestamp


def test_reading_over_damage_reaches_the_batch_behind_it() -> None:
    disk, _, placed = written()
    position, broken = placed[6]
    disk.corrupt(PATH + ".log", position + 8, b"\xff" * 12)
    again = reopened(disk)
    with pytest.raises(CorruptDataError):
        again.find(broken.base_offset)
    for behind in placed[7:]:
        assert again.find(behind[1].base_offset) == behind


def test_the_next_valid_batch_is_found_among_garbage() -> None:
    disk, _, placed = written(6)
    data = read_file(disk, PATH + ".log")
    garbage = Random(3).randbytes(5000) + bytes(500)
    file = disk.open("/p/garbage", create=True)
    file.write_at((garbage + data,), 0)
    found = find_valid_batch(file, 0, len(garbage) + len(data), first_offset=100, last_offset=10_000)
    assert found == len(garbage)
    assert find_valid_batch(file, 0, len(garbage), first_offset=100, last_offset=10_000) is None
    assert (
        find_valid_batch(file, 0, file.size(), first_offset=101, last_offset=10_000)
        == len(garbage) + placed[1][0]
    )


def test_scans_agree_whatever_the_chunks() -> None:
    _, segment, placed = written()
    for chunk_bytes in (61, 100, 1000, 1 << 20):
        assert list(scan_headers(segment.file, 0, segment.size, chunk_bytes=chunk_bytes)) == placed
    assert [(batch.position, batch.header) for batch in scan_batches(segment.file, 0, segment.size)] == placed
    assert all(batch.crc_matches() for batch in scan_batches(segment.file, 0, segment.size))
