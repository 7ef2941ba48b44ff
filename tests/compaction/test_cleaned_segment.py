"""The files that a cleaning writes: the same indexes as if the batches had been appended, and no offset that nobody speaks for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.compaction.compaction_world import COMPACT, NOW_MS, RETENTION_MS, World
from tidelog.records.compression import Codec
from tidelog.storage import files
from tidelog.storage.cleaner import horizon_for
from tidelog.storage.cleaner_job import Limits, NoRoomToClean
from tidelog.storage.disk import read_file
from tidelog.storage.index_rebuild import rebuild
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.scrub import SegmentFacts, SegmentScrub
from tidelog.storage.segment import Segment
from tidelog.testing.sim.clock import SimClock
from tidelog.testing.sim.disk import SimDisk

KINDS = (files.INDEX, files.TIME_INDEX)


@pytest.fixture(params=["simulated", "real files"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "simulated":
        return World()
    return World(PosixDisk(max_open_files=3), directory=f"{tmp_path}/orders-0")


def fill(world: World, count: int = 60, keys: int = 25) -> None:
    rng = Random(5)
    for number in range(count):
        pairs = [
            (b"key %d" % rng.randrange(keys), b"%d" % number + b"." * rng.randrange(80)) for _ in range(3)
        ]
        times = [world.now_ms + rng.randrange(-50, 50) for _ in pairs]
        world.put(*pairs, codec=Codec(number % 5), timestamps=times)
        world.clock.advance(10)
    world.seal()


def indexes(segment: Segment) -> list[bytes]:
    path = files.segment_path(segment.directory, segment.base_offset, "")
    return [read_file(segment.disk, path + kind) for kind in KINDS]


@pytest.mark.parametrize("output_bytes_max", [1 << 30, 700])
def test_indexes_are_those_of_appended_batches(world: World, output_bytes_max: int) -> None:
    fill(world)
    world.clean(Limits(output_bytes_max=output_bytes_max, buffer_bytes=8 << 10))
    assert len(world.log.segments) > 3
    for segment in world.log.segments[:-1]:
        written = indexes(segment)
        rebuild(segment, segment.disk)
        assert indexes(segment) == written
        assert segment.max_timestamp == max(
            raw.header.max_timestamp for raw in world.batches() if raw.header.base_offset >= segment.base_offset
            and raw.header.last_offset < world.log.segments[world.log.segments.index(segment) + 1].base_offset
        )  # fmt: skip


def test_every_segment_ends_where_the_next_begins(world: World) -> None:
    fill(world, keys=3)
    for groups in (5, 1):  # what has become small becomes one with its neighbours the next time
        world.clean()
        segments = world.log.segments
        for segment, following in pairwise(segments):
            assert segment.load_tail() == following.base_offset
        assert len(segments) == groups + 1
    assert [raw.header.last_offset for raw in world.batches()][-1] == world.log.log_end_offset - 1


def test_what_stands_for_offsets_that_are_gone_keeps_epochs_and_the_latest_time(world: World) -> None:
    for epoch in (1, 1, 3, 4, 4):
        world.put((b"a", b"v"), epoch=epoch)
        world.clock.advance(100)
    world.seal()
    world.put((b"a", b"last"), epoch=4)
    world.seal()
    before = world.log.epochs.checkpoint_entries()
    timestamp = world.log.segments[0].max_timestamp
    world.log.update_config(replace(COMPACT, segment_bytes=1))  # no two segments become one
    world.clean()
    fillers = [raw.header for raw in world.batches() if not raw.header.record_count]
    assert [(f.partition_leader_epoch, f.base_offset, f.last_offset) for f in fillers] == [
        (1, 0, 1),
        (3, 2, 2),
        (4, 3, 4),
    ]
    assert max(f.max_timestamp for f in fillers) == timestamp
    world.restart(clean=False)
    assert world.log.epochs.checkpoint_entries() == before
    assert not world.log.recovery.cuts and not world.log.recovery.damages


def test_a_gap_of_an_earlier_cleaning_is_not_given_to_a_later_epoch(world: World) -> None:
    """Offsets 1 and 2 were written in epoch 1, and are gone since the first cleaning; then the rest of epoch 2 goes as well."""
    for epoch, key in ((1, b"x"), (1, b"a"), (1, b"a"), (2, b"b"), (2, b"a")):
        world.put((key, b"v"), epoch=epoch)
    world.seal()
    world.put((b"a", b"last"), epoch=2)
    world.seal()
    world.log.update_config(replace(COMPACT, segment_bytes=1))  # no two segments become one
    before = world.log.epochs.checkpoint_entries()
    world.clean()
    world.log.update_config(COMPACT)
    world.put((b"b", b"last"), epoch=2)
    world.seal()
    world.log.update_config(replace(COMPACT, segment_bytes=1))
    world.clean()
    first = [raw.header for raw in world.batches() if raw.header.last_offset < 5]
    assert [(h.partition_leader_epoch, h.base_offset, h.last_offset, h.record_count) for h in first] == [
        (1, 0, 0, 1),
        (2, 3, 4, 0),
    ]
    facts = SegmentFacts(0, 5, world.log.segments[0].size, 0, tuple(before))
    scrub = SegmentScrub(world.log.segments[0].file, facts, offset_index=None, time_index=None)
    while not scrub.done:
        scrub.step(1 << 20)
    assert not scrub.damages
    world.restart(clean=False)
    assert world.log.epochs.checkpoint_entries()[:1] == before[:1]
    assert world.log.epochs.epoch_for_offset(2) == 1


def test_tombstones_may_stay_for_ever() -> None:
    assert NOW_MS < horizon_for(NOW_MS, 2**63 - 1) < 2**62


def test_times_are_found_as_before(world: World) -> None:
    fill(world, keys=10)
    world.clean()
    records = world.records()
    for timestamp in sorted({record.timestamp for record in records}):
        first = next(record for record in records if record.timestamp >= timestamp)
        found = world.log.offset_for_timestamp(timestamp)
        assert found is not None and found[:2] == (first.timestamp, first.offset)
    latest = max(records, key=lambda record: record.timestamp)
    assert world.log.offset_for_timestamp(latest.timestamp + 1) is None
    answer = world.log.max_timestamp_offset()
    assert answer is not None and answer[0] == latest.timestamp


def test_an_emptied_batch_with_the_latest_time_does_not_hide_the_latest_record() -> None:
    world = World()
    world.put((b"a", b"1"), producer=7, timestamps=[world.now_ms + 9000])
    world.put((b"a", b"2"), timestamps=[world.now_ms])
    world.seal()
    world.clean()
    assert any(not raw.header.record_count and raw.header.producer_id == 7 for raw in world.batches())
    assert world.log.max_timestamp_offset() == (world.now_ms, 1, 0)


def test_the_log_can_be_read_from_every_offset(world: World) -> None:
    fill(world, keys=10)
    world.clean()
    batches = world.batches()
    for offset in range(world.log.log_end_offset):
        expected = next(raw for raw in batches if raw.header.last_offset >= offset)
        read = world.log.read(offset, 1, end_offset=world.log.log_end_offset)
        assert read.range is not None
        assert read.range.read() == expected.data
        read.range.release()


def test_a_batch_larger_than_the_buffer_is_read_all_the_same(world: World) -> None:
    world.put((b"a", b"old"))
    world.put((b"a", b"x" * 1500), (b"b", b"y" * 300))
    world.seal()
    world.put((b"c", b"z" * 1200))
    world.seal()
    world.clean(Limits(buffer_bytes=0))
    assert world.latest() == {b"a": b"x" * 1500, b"b": b"y" * 300, b"c": b"z" * 1200}


def test_without_room_nothing_is_begun() -> None:
    clock = SimClock()
    world = World(SimDisk(Random(1), clock=clock, capacity_bytes=100_000))
    fill(world)
    before = world.disk.list_dir(world.directory)
    with pytest.raises(NoRoomToClean, match=r"log\.dir\.reserve\.bytes"):
        world.clean(Limits(reserve_bytes=95_000))
    assert world.disk.list_dir(world.directory) == before
    assert world.clean(Limits(reserve_bytes=0)) is not None


def test_a_tombstone_is_seen_until_its_time_and_then_gone(world: World) -> None:
    world.put((b"a", b"1"), (b"b", b"1"))
    world.put((b"a", None))
    world.seal()
    world.clean()
    assert world.latest() == {b"b": b"1", b"a": None}
    world.clock.advance(RETENTION_MS - 1)
    world.clean()
    assert world.latest() == {b"b": b"1", b"a": None}
    world.clock.advance(1)
    cleaned = world.clean()
    assert world.latest() == {b"b": b"1"}
    assert cleaned is not None and cleaned.latest_horizon_ms == -1
