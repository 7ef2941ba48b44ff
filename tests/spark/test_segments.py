"""Segments as a table, without Spark: ranges, pruning, what is stable, damage and files that change, compared with a model in plain Python."""

from __future__ import annotations

import os
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spark.segments_world import (
    INDEXED_SELDOM,
    NOW_MS,
    SMALL,
    LogMaker,
    flipped,
    records,
    rows_of,
    segment_paths,
    table,
)
from tidelog.records.compression import Codec
from tidelog.spark.filters import Narrowing
from tidelog.spark.loss import DataLossError
from tidelog.spark.options import OptionError
from tidelog.spark.segments import pieces
from tidelog.spark.segments.ahead import ahead
from tidelog.spark.segments.errors import DamagedSegmentError, Harm, SegmentsError
from tidelog.spark.segments.options import SegmentOptions
from tidelog.spark.segments.plan import cut_and_packed
from tidelog.spark.segments.reader import plan_tasks
from tidelog.storage import files
from tidelog.storage.log_config import LogConfig

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["data"] * 8 + ["commit", "abort", "abort", "roll"]),
        st.sampled_from((-1, 7, 8)),
        st.integers(1, 4),
    ),
    min_size=5,
    max_size=60,
)


def run(maker: LogMaker, steps: list[Step]) -> None:
    for number, (what, producer, count) in enumerate(steps):
        if what == "data":
            codec = (Codec.NONE, Codec.LZ4, Codec.GZIP)[number % 3]
            # Rising on the whole, with some that are late.
            times = [
                NOW_MS + number * 2 - (number * 37 + n * 11) % 7 * (number % 5 == 0) for n in range(count)
            ]
            maker.data(times, producer_id=producer, transactional=producer >= 0, codec=codec)
        elif what == "roll":
            maker.roll()
        elif producer >= 0:
            maker.marker(producer, commit=what == "commit")


@settings(max_examples=60)
@given(
    steps=STEPS,
    cut=st.integers(0, 200),
    start=st.integers(0, 60),
    cleanly=st.booleans(),
    lost=st.sampled_from(["", files.SNAPSHOT, files.INDEX, files.TIME_INDEX, "newest snapshot"]),
)
def test_readers_see_what_a_broker_would_show(
    steps: list[Step], cut: int, start: int, cleanly: bool, lost: str
) -> None:
    """Whatever the high watermark, and whichever derived files are there."""
    with tempfile.TemporaryDirectory() as directory:
        maker = LogMaker(Path(directory))
        run(maker, steps)
        # The high watermark stands between batches.
        edges = [0] + [each.last_offset + 1 for each in maker._batches]
        water = edges[-1 if cut % 3 == 0 else cut % len(edges)]
        log_start = min(start, water)
        maker.stop(high_watermark=water, log_start=log_start, cleanly=cleanly)
        if lost == "newest snapshot":
            for path in sorted(maker.directory.glob("*.snapshot"))[-1:]:
                path.unlink()
        elif lost:
            for path in maker.directory.glob(f"*{lost}"):
                path.unlink()
        for level in ("read_uncommitted", "read_committed"):
            expected = maker.visible(
                high_watermark=water, start=log_start, committed=level == "read_committed"
            )
            assert records(Path(directory), isolationLevel=level) == expected, level


@settings(max_examples=40)
@given(steps=STEPS, moment=st.integers(-5, 105), tasks=st.integers(1, 9), cleanly=st.booleans())
def test_times_and_splits_lose_nothing(steps: list[Step], moment: int, tasks: int, cleanly: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        maker = LogMaker(Path(directory), config=INDEXED_SELDOM)
        run(maker, steps)
        maker.stop(cleanly=cleanly)
        seen, timestamp = maker.visible(), NOW_MS + moment * 2 * len(steps) // 100
        narrowed = rows_of(table(Path(directory), narrowing=Narrowing(not_before_ms=timestamp)))
        assert {row for row in seen if row.timestamp >= timestamp} <= set(narrowed) <= set(seen)
        # A start by time is the first record that is as late, and all behind it.
        options = {"startingTimestamp": str(timestamp), "startingOffsetsByTimestampStrategy": "latest"}
        stamped = [(record.offset, record.timestamp) for record in seen] + [
            (each.first_offset, NOW_MS) for each in maker._batches if each.commits is not None
        ]
        first = min((offset for offset, time in stamped if time >= timestamp), default=maker.end)
        assert records(Path(directory), **options) == [row for row in seen if row.offset >= first]
        assert records(Path(directory), endingTimestamp=str(timestamp)) == [
            row for row in seen if row.offset < first
        ]
        assert records(Path(directory), minPartitions=str(tasks)) == seen
        assert records(Path(directory), maxRecordsPerPartition=str(tasks)) == seen
        low, high = maker.end // 3, maker.end * 2 // 3
        narrowing = Narrowing(low=low, high=high)
        assert rows_of(table(Path(directory), narrowing=narrowing)) == [
            row for row in seen if low <= row.offset < high
        ]


@pytest.mark.parametrize("config", [SMALL, INDEXED_SELDOM])
@pytest.mark.parametrize("cleanly", [True, False])
def test_every_lower_bound_on_time(tmp_path: Path, config: LogConfig, cleanly: bool) -> None:
    maker = LogMaker(tmp_path, config=config)
    for number in range(24):
        late = 25 if number % 7 == 3 else 0
        maker.data([NOW_MS + 10 * number - late, NOW_MS + 10 * number], value_bytes=30)
    maker.stop(cleanly=cleanly)
    seen = maker.visible()
    read = 0
    for timestamp in range(NOW_MS - 5, NOW_MS + 245, 5):
        found = set(rows_of(table(tmp_path, narrowing=Narrowing(not_before_ms=timestamp))))
        assert {row for row in seen if row.timestamp >= timestamp} <= found
        read += len(found)
    assert read < 0.65 * len(seen) * 50  # half of it is asked for


@pytest.mark.parametrize("cleanly", [True, False])
def test_every_end_of_a_log_with_transactions(tmp_path: Path, cleanly: bool) -> None:
    """Snapshots and indexes stand right behind and right before each kind of batch once."""
    for length in range(1, 25):
        maker = LogMaker(tmp_path / str(length))
        for number in range(length):
            if number % 3 == 2:
                maker.marker(7 + number // 3 % 2, commit=number % 4 == 1)
            else:
                maker.data([NOW_MS] * 2, producer_id=7 + number % 2, transactional=True, value_bytes=90)
        maker.stop(cleanly=cleanly)
        found = records(maker.data_dir, isolationLevel="read_committed")
        assert found == maker.visible(committed=True), length


@pytest.fixture
def maker(tmp_path: Path) -> LogMaker:
    """Twelve segments or so, a second between records."""
    made = LogMaker(tmp_path / "data")
    for number in range(60):
        made.data([NOW_MS + 1000 * (made.end + n) for n in range(3)], value_bytes=40 + number)
    return made


def test_segments_that_are_too_old_are_not_opened(maker: LogMaker) -> None:
    maker.stop()
    parsed = SegmentOptions.parse({"path": str(maker.data_dir)})
    whole = [each.path for task in plan_tasks(parsed, Narrowing()) for each in task]
    assert whole == [str(path) for path in segment_paths(maker.directory)]
    late = Narrowing(not_before_ms=NOW_MS + 1000 * 150)
    read = [each for task in plan_tasks(parsed, late) for each in task]
    assert 0 < len(read) < len(whole) / 2 and read[0].start_offset > 130
    by_offset = [each for task in plan_tasks(parsed, Narrowing(low=100, high=110)) for each in task]
    assert len(by_offset) <= 2
    assert sum(each.bytes_count for each in by_offset) < 1500
    assert plan_tasks(parsed, Narrowing(keeps=[lambda tp: tp.partition == 3])) == []


def test_large_segments_are_cut_where_batches_begin(maker: LogMaker, tmp_path: Path) -> None:
    from tidelog.client.metadata import TopicPartition
    from tidelog.spark.ranges import OffsetRange
    from tidelog.spark.segments.layout import PartitionDirectory
    from tidelog.spark.segments.plan import stretches_of
    from tidelog.spark.segments.stored import StoredLog

    big = LogMaker(tmp_path / "big", config=LogConfig(index_interval_bytes=400))
    for _ in range(300):
        big.data([NOW_MS] * 4, value_bytes=50)
    big.stop()
    tp = TopicPartition("orders", 0)
    log = StoredLog(PartitionDirectory(tp, str(big.directory)))
    parts = stretches_of(log, OffsetRange(tp, 5, big.end - 3))
    tasks = cut_and_packed(parts, 20_000)
    flat = [each for task in tasks for each in task]
    assert len(tasks) >= 4 and max(each.bytes_count for each in flat) < 22_000
    assert flat[0].start_offset == 5 and flat[-1].end_offset == big.end - 3
    for one, next_one in pairwise(flat):
        assert one.end_offset == next_one.start_offset and one.end_position == next_one.position
    wanted = pieces.Wanted(("offset",))
    read = [
        offset
        for each in flat
        for piece in pieces.read_stretch(each, wanted)
        for offset in piece.records.column("offset").to_pylist()  # type: ignore[union-attr]
    ]
    assert read == list(range(5, big.end - 3))
    log.close()


def test_pieces_smaller_than_a_batch(maker: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    maker.stop()
    monkeypatch.setattr(pieces, "PIECE_BYTES", 100)
    assert records(maker.data_dir) == maker.visible()


def test_only_a_count(maker: LogMaker) -> None:
    maker.marker(7, commit=True)
    maker.stop()
    parsed = SegmentOptions.parse({"path": str(maker.data_dir), "startingOffsets": '{"orders": {"0": 4}}'})
    found = [
        piece
        for task in plan_tasks(parsed, Narrowing())
        for stretch in task
        for piece in pieces.read_stretch(stretch, pieces.Wanted(()))
    ]
    assert sum(piece.rows for piece in found) == len(maker.visible()) - 4


# ---- what is there, and what is asked for


def test_no_checkpoint_is_refused_unless_all_counts(maker: LogMaker, tmp_path: Path) -> None:
    """The backup of one partition: nothing says what is committed."""
    maker.stop()
    backup = tmp_path / "backup" / "orders-0"
    shutil.copytree(maker.directory, backup)
    with pytest.raises(SegmentsError, match="highWatermark to none"):
        records(backup)
    assert records(backup, highWatermark="none") == maker.visible()
    assert (
        records(tmp_path / "backup", highWatermark="none", isolationLevel="read_committed") == maker.visible()
    )


def test_a_partition_without_a_checkpointed_watermark_has_nothing_committed(
    maker: LogMaker, caplog: pytest.LogCaptureFixture
) -> None:
    maker.stop()
    young = LogMaker(maker.data_dir, "young")
    young.data()
    young.log.close()
    assert records(maker.data_dir, subscribe="young") == []
    assert "no high watermark of young-0" in caplog.text


def test_files_that_end_before_the_high_watermark(maker: LogMaker) -> None:
    water = maker.end
    maker.stop()
    last = segment_paths(maker.directory)[-1]
    os.truncate(last, last.stat().st_size - 10)
    with pytest.raises(SegmentsError, match=f"committed up to offset {water}"):
        records(maker.data_dir)
    assert records(maker.data_dir, failOnDataLoss="false") == maker.visible()[:-3]
    assert records(maker.data_dir, highWatermark="none") == maker.visible()[:-3]


def test_offsets_that_are_gone(maker: LogMaker) -> None:
    maker.stop(log_start=20)
    with pytest.raises(DataLossError, match="0 to 20"):
        records(maker.data_dir, startingOffsets='{"orders": {"0": 0}}')
    with pytest.raises(DataLossError, match="500"):
        records(maker.data_dir, endingOffsets='{"orders": {"0": 500}}')
    assert records(maker.data_dir, startingOffsets='{"orders": {"0": 0}}', failOnDataLoss="false") == (
        maker.visible(start=20)
    )
    assert records(maker.data_dir) == maker.visible(start=20)
    assert [
        row.offset
        for row in records(
            maker.data_dir, startingOffsets='{"orders": {"0": 25}}', endingOffsets='{"orders": {"0": 31}}'
        )
    ] == list(range(25, 31))


def test_which_partitions(maker: LogMaker, tmp_path: Path) -> None:
    maker.stop()
    for topic, partition in (("orders", 1), ("bills", 0), ("__consumer_offsets", 3)):
        other = LogMaker(maker.data_dir, topic, partition)
        other.data([NOW_MS] * 2)
        other.stop()
    (maker.data_dir / "gone-0.0123456789abcdef0123456789abcdef-delete").mkdir()

    def count(**options: str) -> int:
        return len(records(maker.data_dir, **options))

    assert count() == 184
    assert count(subscribe="bills, orders") == 184
    assert count(subscribePattern="b.*") == 2
    assert count(assign='{"orders": [1]}') == 2
    assert count(subscribe="__consumer_offsets") == 2
    with pytest.raises(OptionError, match="nothing-here"):
        count(subscribe="nothing-here")
    with pytest.raises(OptionError, match="orders-7"):
        count(assign='{"orders": [0, 7]}')
    assert len(records([maker.directory, maker.data_dir / "bills-0"])) == 182
    copied = tmp_path / "copy"
    shutil.copytree(maker.data_dir, copied)
    with pytest.raises(SegmentsError, match="read twice"):
        records([maker.data_dir, copied])
    with pytest.raises(SegmentsError, match="no directory"):
        records(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SegmentsError, match="no partitions"):
        records(tmp_path / "empty")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/a", "paths": "/b"}, "both given"),
        ({"path": " , "}, "names no directory"),
        ({"path": "s3://bucket/x"}, "local directories"),
        ({"path": "/a", "kafka.bootstrap.servers": "x:1"}, "exclude each other"),
        ({"path": "/a", "highWatermark": "maybe"}, "checkpoint or none"),
        ({"path": "/a", "onDamage": "maybe"}, "fail or skip"),
        ({"path": "/a", "isolationLevel": "maybe"}, "read_committed"),
        ({"path": "/a", "includeControl": "true"}, "segmentColumns"),
        ({"path": "/a", "maxBytesPerPartition": "5"}, "from 65536 on"),
        ({"path": "/a", "hihgWatermark": "none"}, "hihgwatermark"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SegmentOptions.parse(options)


def test_paths_as_spark_hands_them_over() -> None:
    assert SegmentOptions.parse({"paths": '["/a", "file:///b"]'}).paths == ("/a", "/b")
    assert SegmentOptions.parse({"path": "/a,/b"}).paths == ("/a", "/b")


# ---- damage, and files that change


def test_damage_is_named_and_can_be_passed_over(maker: LogMaker) -> None:
    maker.stop()
    victim = segment_paths(maker.directory)[3]
    first = int(victim.stem)
    flipped(victim, 100)
    with pytest.raises(
        DamagedSegmentError,
        match=rf"{victim.name} is damaged at position 0 .*fails its CRC.*tidelog log verify",
    ):
        records(maker.data_dir)
    harms: list[Harm] = []
    found = rows_of(table(maker.data_dir, harms=harms))
    assert [(harm.position, harm.first_offset, harm.end_offset) for harm in harms] == [(0, first, first + 3)]
    assert found == [row for row in maker.visible() if not first <= row.offset < first + 3]


@pytest.mark.parametrize("position", [8, 16])  # of the length, of the magic byte
def test_a_broken_header_hides_only_its_batch(maker: LogMaker, position: int) -> None:
    maker.stop()
    victim = segment_paths(maker.directory)[2]
    first = int(victim.stem)
    flipped(victim, position)
    with pytest.raises(DamagedSegmentError, match=victim.name):
        records(maker.data_dir)
    harms: list[Harm] = []
    found = rows_of(table(maker.data_dir, harms=harms))
    assert found == [row for row in maker.visible() if not first <= row.offset < first + 3]
    assert [(harm.first_offset, harm.end_offset) for harm in harms] == [(first, first + 3)]


def test_a_cut_segment_in_the_middle(maker: LogMaker) -> None:
    maker.stop()
    victim, following = segment_paths(maker.directory)[4:6]
    os.truncate(victim, victim.stat().st_size - 7)
    with pytest.raises(DamagedSegmentError, match="no whole batch"):
        records(maker.data_dir)
    harms: list[Harm] = []
    found = rows_of(table(maker.data_dir, harms=harms))
    last = int(following.stem)
    assert found == [row for row in maker.visible() if not last - 3 <= row.offset < last]


def test_damage_among_aborted_batches_is_found(tmp_path: Path) -> None:
    """Batches are moved within the buffer when some are left out: the position named is that of the file."""
    maker = LogMaker(tmp_path)
    maker.data(producer_id=7, transactional=True)
    maker.data()
    position = maker.log.active.size
    maker.data()
    maker.marker(7, commit=False)
    maker.stop()
    flipped(segment_paths(maker.directory)[0], position + 70)
    with pytest.raises(DamagedSegmentError, match=rf"position {position} .*offsets 2 to 3"):
        records(tmp_path, isolationLevel="read_committed")


def test_a_lost_transaction_index_is_made_up_for(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path)
    for _ in range(8):
        maker.data([NOW_MS] * 4, producer_id=7, transactional=True)
        maker.data([NOW_MS] * 4)
        maker.marker(7, commit=False)
    maker.roll()
    maker.data()
    maker.stop()
    indexes = sorted(maker.directory.glob("*.txnindex"))
    assert len(indexes) > 3
    expected = maker.visible(committed=True)
    assert len(expected) == 33
    assert records(tmp_path, isolationLevel="read_committed") == expected
    first = indexes[0].read_bytes()
    indexes[0].write_bytes(first[:-3])
    assert records(tmp_path, isolationLevel="read_committed") == expected
    indexes[1].unlink()
    assert not indexes[-1].stat().st_size  # as a broker of ours makes them, where Kafka's makes none
    assert records(tmp_path, isolationLevel="read_committed") == expected


def test_a_segment_that_retention_took_meanwhile(maker: LogMaker) -> None:
    maker.stop()
    tasks = plan_tasks(SegmentOptions.parse({"path": str(maker.data_dir)}), Narrowing())
    stretch = tasks[0][0]
    wanted = pieces.Wanted(("offset",))
    whole = [piece.rows for piece in pieces.read_stretch(stretch, wanted)]
    path = Path(stretch.path)
    deleted = path.with_name(path.name + files.DELETED)
    path.rename(deleted)
    assert [piece.rows for piece in pieces.read_stretch(stretch, wanted)] == whole  # it is still there
    path.write_bytes(b"compacted")
    assert [piece.rows for piece in pieces.read_stretch(stretch, wanted)] == whole
    deleted.unlink()
    with pytest.raises(SegmentsError, match="run the query again"):
        list(pieces.read_stretch(stretch, wanted))


def test_files_that_vanish_while_a_query_is_planned(maker: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelog.spark.segments import stored

    maker.stop()
    real, calls = stored.list_segments, 0

    def listing(directory: str) -> object:
        nonlocal calls
        calls += 1
        found = real(directory)
        if calls == 1:
            segment_paths(maker.directory)[0].unlink()
        return found

    monkeypatch.setattr(stored, "list_segments", listing)
    first = int(segment_paths(maker.directory)[1].stem)
    assert records(maker.data_dir) == maker.visible(start=first)
    assert calls == 2


def test_a_swap_that_is_going_on_is_waited_for(maker: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelog.spark.segments import layout

    maker.stop()
    first = segment_paths(maker.directory)[0]
    swap = first.with_name(first.name + files.SWAP)
    first.rename(swap)
    monkeypatch.setattr(layout, "SWAP_SECONDS_MAX", 0.1)
    with pytest.raises(SegmentsError, match=r"\.swap"):
        records(maker.data_dir)
    swap.rename(first)
    assert records(maker.data_dir) == maker.visible()


def test_a_live_log_grows_while_it_is_read(maker: LogMaker) -> None:
    """Bytes behind the high watermark, whole or not, are nobody's business."""
    water = maker.end
    maker.log.close()
    maker._checkpoint(files.HIGH_WATERMARK_CHECKPOINT, water)
    expected = maker.visible()
    with segment_paths(maker.directory)[-1].open("ab") as file:
        file.write(b"half a batch, on its way to the disk")
    for level in ("read_uncommitted", "read_committed"):
        assert records(maker.data_dir, isolationLevel=level) == expected
    assert records(maker.data_dir, highWatermark="none") == expected


def test_indexes_that_kafka_allocated_ahead(maker: LogMaker) -> None:
    """Zeroes follow the last entry of the active segment's indexes; they are neither entries nor ours to cut."""
    maker.stop()
    last = segment_paths(maker.directory)[-1]
    sizes = {}
    for suffix in (".index", ".timeindex"):
        path = last.with_suffix(suffix)
        with path.open("ab") as file:
            file.write(bytes(12 * 8 * 50))
        sizes[path] = path.stat().st_size
    for level in ("read_uncommitted", "read_committed"):
        assert records(maker.data_dir, isolationLevel=level) == maker.visible()
    assert records(maker.data_dir, startingTimestamp=str(NOW_MS + 175_000))[0].offset == 175
    assert {path: path.stat().st_size for path in sizes} == sizes


def test_reading_ahead_is_bounded_and_ends_with_its_reader() -> None:
    made: list[int] = []
    closed: list[bool] = []

    def source():  # type: ignore[no-untyped-def]
        try:
            for number in range(1000):
                made.append(number)
                yield number
        finally:
            closed.append(True)

    reading = ahead(source(), 2)
    assert [next(reading) for _ in range(3)] == [0, 1, 2]
    reading.close()
    assert closed == [True] and len(made) < 10

    def failing():  # type: ignore[no-untyped-def]
        yield 1
        raise SegmentsError("no more")

    with pytest.raises(SegmentsError, match="no more"):
        list(ahead(failing()))
