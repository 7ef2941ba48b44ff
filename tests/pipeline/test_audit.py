"""What an audit finds in files that were harmed on purpose, without Spark: each segment looked at, batches checked in order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.spark.segments_world import NOW_MS, LogMaker, flipped, segment_paths
from tidelog.pipeline.audit_checks import (
    FINDINGS_MAX,
    BatchRow,
    Expected,
    Finding,
    Side,
    check_partition,
    common_range,
)
from tidelog.pipeline.audit_report import page
from tidelog.pipeline.audit_scan import expectation, key_of
from tidelog.pipeline.audit_tables import TABLES, Results, as_tables, write_tables
from tidelog.pipeline.jobs.audit import Options
from tidelog.pipeline.options import OptionsError, read_options
from tidelog.records.batch import iter_headers, patched_prefix, read_header
from tidelog.spark.segments.facts import ReplicaFacts, replicas_in
from tidelog.spark.segments.inspection import inspect_segment
from tidelog.storage import checkpoints, files


def findings_in(data_dir: Path) -> list[tuple[str, str, int | None, int | None]]:
    """(kind, severity, first offset, end offset) of everything that is found in a directory."""
    found: list[Finding] = []
    for facts in replicas_in([str(data_dir)], lambda topic: True):
        rows, harmed = [], []
        for segment in facts.segments:
            seen = inspect_segment(
                segment.stretch, base_offset=segment.base_offset, end_offset=segment.end_offset
            )
            rows += [BatchRow(*(row[name] for name in BatchRow._fields)) for row in seen.batches.to_pylist()]
            harmed += [(harm.first_offset, harm.end_offset) for harm in seen.harms]
            found += [
                Finding(
                    "damage",
                    "error",
                    *key_of(facts),
                    h.path,
                    h.position,
                    h.first_offset,
                    h.end_offset,
                    h.problem,
                )
                for h in seen.harms
            ]
            found += [
                Finding("indexes", "error", *key_of(facts), p.path, p.position, p.offset, None, p.problem)
                for p in seen.index_problems
            ]
        found += check_partition(expectation(facts, harmed), rows)
    return [(each.kind, each.severity, each.first_offset, each.end_offset) for each in found]


@pytest.fixture
def maker(tmp_path: Path) -> LogMaker:
    """Several segments of two idempotent producers, one of them in transactions, under three leaders."""
    made = LogMaker(tmp_path)
    for number in range(40):
        made.epoch = number // 15
        made.data([NOW_MS + number] * 3, producer_id=7, transactional=True)
        if number % 5 == 4:
            made.marker(7, commit=number % 2 == 0)
        made.data([NOW_MS + number] * 2, producer_id=9)
    return made


def test_sound_files_have_no_findings(maker: LogMaker) -> None:
    maker.stop()
    assert findings_in(maker.data_dir) == []


def test_batches_are_told_as_their_headers_say(maker: LogMaker) -> None:
    maker.stop()
    (facts,) = replicas_in([str(maker.data_dir)], lambda topic: True)
    assert facts.log_end_offset == maker.end == facts.high_watermark
    for segment in facts.segments:
        seen = inspect_segment(
            segment.stretch, base_offset=segment.base_offset, end_offset=segment.end_offset
        )
        expected = list(iter_headers(Path(segment.stretch.path).read_bytes()))
        assert [
            tuple(
                row[name]
                for name in (
                    "position",
                    "size",
                    "base_offset",
                    "last_offset",
                    "records",
                    "leader_epoch",
                    "crc",
                    "base_sequence",
                    "producer_id",
                )
            )
            for row in seen.batches.to_pylist()
        ] == [
            (
                at,
                h.size,
                h.base_offset,
                h.last_offset,
                h.record_count,
                h.partition_leader_epoch,
                h.crc,
                h.base_sequence,
                h.producer_id,
            )
            for at, h in expected
        ]


def test_a_flipped_byte(maker: LogMaker) -> None:
    maker.stop()
    victim = segment_paths(maker.directory)[1]
    header = read_header(victim.read_bytes())
    flipped(victim, 90)
    assert findings_in(maker.data_dir) == [("damage", "error", header.base_offset, header.next_offset)]


def test_a_file_that_was_cut(maker: LogMaker) -> None:
    maker.stop()
    victim, following = segment_paths(maker.directory)[1:3]
    *_, (at, last) = iter_headers(victim.read_bytes())
    os.truncate(victim, at + 30)
    found = findings_in(maker.data_dir)
    assert ("damage", "error", last.base_offset, int(following.stem)) in found
    assert all(kind in ("damage", "indexes") for kind, *_ in found)


def test_a_file_that_was_cut_between_batches_is_a_hole(maker: LogMaker) -> None:
    """Nothing is damaged, and something is missing."""
    maker.stop()
    victim, following = segment_paths(maker.directory)[1:3]
    *_, (at, last) = iter_headers(victim.read_bytes())
    os.truncate(victim, at)
    found = [each for each in findings_in(maker.data_dir) if each[0] != "indexes"]
    assert found == [("gaps", "error", last.base_offset, int(following.stem))]


def test_a_segment_that_is_missing(maker: LogMaker) -> None:
    maker.stop()
    victim, following = segment_paths(maker.directory)[3:5]
    victim.unlink()
    assert findings_in(maker.data_dir) == [("gaps", "error", int(victim.stem), int(following.stem))]


def test_the_same_hole_where_the_log_was_compacted(maker: LogMaker) -> None:
    maker.stop()
    victim, following = segment_paths(maker.directory)[3:5]
    victim.unlink()
    path = maker.data_dir / files.CLEANER_OFFSET_CHECKPOINT
    path.write_bytes(checkpoints.encode_offsets({("orders", 0): int(following.stem)}))
    assert findings_in(maker.data_dir) == [("gaps", "note", int(victim.stem), int(following.stem))]


def test_a_lost_end(maker: LogMaker) -> None:
    maker.stop()
    *_, (at, last) = iter_headers(segment_paths(maker.directory)[-1].read_bytes())
    os.truncate(segment_paths(maker.directory)[-1], at)
    found = [each for each in findings_in(maker.data_dir) if each[0] != "indexes"]
    assert found == [("gaps", "error", last.base_offset, last.next_offset)]


def test_a_batch_that_was_stored_twice(tmp_path: Path) -> None:
    """As a broker without idempotence would: the same bytes again, at new offsets."""
    maker = LogMaker(tmp_path)
    for _ in range(4):
        maker.data([NOW_MS] * 3, producer_id=7)
    maker.stop()
    path = segment_paths(maker.directory)[-1]
    content = path.read_bytes()
    second = [content[at : at + header.size] for at, header in iter_headers(content)][1]
    end = maker.end
    path.write_bytes(content + patched_prefix(end, read_header(second).batch_length, 0) + second[16:])
    assert findings_in(tmp_path) == [("duplicates", "error", end, end + 3)]
    # The very same batch, offsets and all.
    path.write_bytes(content + second)
    assert ("duplicates", "error", 3, 6) in findings_in(tmp_path)


def test_epochs_that_fall_and_epochs_that_nobody_knows(maker: LogMaker) -> None:
    maker.stop()
    victim = segment_paths(maker.directory)[-1]
    content = bytearray(victim.read_bytes())
    batches = list(iter_headers(bytes(content)))
    at, header = batches[1]
    content[at : at + 16] = patched_prefix(header.base_offset, header.batch_length, 0)
    victim.write_bytes(content)
    found = findings_in(maker.data_dir)
    assert (
        found == [("epochs", "error", header.base_offset, header.next_offset)] * 2
    )  # it falls, and the checkpoint says otherwise


def test_indexes_that_lie(maker: LogMaker) -> None:
    maker.stop()
    first = segment_paths(maker.directory)[1]
    flipped(first.with_suffix(".index"), 7)
    flipped(first.with_suffix(".timeindex"), 6)
    kinds = [kind for kind, *_ in findings_in(maker.data_dir)]
    assert kinds and set(kinds) == {"indexes"}


# ---- the rules themselves


def rows(*batches: tuple[int, int, int], producer_id: int = 5, epoch: int = 0) -> list[BatchRow]:
    """(base offset, count, base sequence)."""
    return [
        BatchRow("s", number, base, base + count - 1, count, 0, producer_id, epoch, sequence, base, False)
        for number, (base, count, sequence) in enumerate(batches)
    ]


def told(expected: Expected, batches: list[BatchRow]) -> list[tuple[str, str, int | None]]:
    return [(each.kind, each.severity, each.first_offset) for each in check_partition(expected, batches)]


EXPECTED = Expected(replica="r", topic="t", partition=0, log_start_offset=0)


def test_sequences_wrap_and_begin_anew() -> None:
    last = (1 << 31) - 1
    assert told(EXPECTED, rows((0, 2, last - 1), (2, 3, 0), (5, 1, 3))) == []
    assert told(EXPECTED, rows((0, 3, 0), (3, 3, 3), (6, 3, 3))) == [("duplicates", "error", 6)]
    assert told(EXPECTED, rows((0, 3, 10), (3, 3, 13), (6, 5, 11))) == [("duplicates", "error", 6)]
    assert told(EXPECTED, rows((0, 3, 10), (3, 3, 13), (6, 5, 0), (11, 1, 5))) == []
    assert told(EXPECTED, rows((0, 3, 0), (3, 3, 7))) == [("gaps", "error", 3)]
    assert told(EXPECTED, rows((0, 3, 0)) + rows((3, 3, 0), epoch=1)) == []


def test_retention_is_no_hole() -> None:
    expected = Expected(replica="r", topic="t", partition=0, log_start_offset=40)
    assert told(expected, rows((38, 4, 0), (42, 1, 4))) == []
    assert told(expected, rows((45, 4, 0))) == [("gaps", "error", 40)]


def test_findings_are_bounded() -> None:
    broken = [row for number in range(FINDINGS_MAX + 50) for row in rows((number * 10, 1, -1))]
    found = check_partition(EXPECTED, broken)
    assert len(found) == FINDINGS_MAX + 1
    assert "49 more" in found[-1].what


def test_what_replicas_have_in_common() -> None:
    assert common_range(Side("a", 5, 100, None), Side("b", 0, 80, None)) == (5, 80)
    assert common_range(Side("a", 5, 100, 60), Side("b", 0, 50, None)) == (60, 60)


# ---- results


def test_options() -> None:
    options = read_options(Options, {"paths": ["/a", "/b"], "topics": "orders"})
    assert options.takes("orders") and not options.takes("bills")
    assert read_options(Options, {"paths": "/a"}).takes("bills")
    assert not read_options(Options, {"paths": "/a"}).takes("__consumer_offsets")
    for table, key in (
        ({"paths": []}, "paths"),
        ({"paths": "/a", "topics": "a", "pattern": "b"}, "topics"),
        ({"paths": "/a", "pattern": "("}, "pattern"),
        ({"paths": "/a", "hot_keys": 0}, "hot_keys"),
    ):
        with pytest.raises(OptionsError) as error:
            read_options(Options, table)
        assert [problem.key for problem in error.value.problems] == [key]


def test_paths_count_from_the_specification() -> None:
    from tidelog.pipeline.values import with_paths

    options = with_paths(Options(paths=("data", "/b"), output="out"), "/spec")
    assert (options.paths, options.output) == (("/spec/data", "/b"), "/spec/out")


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_tables_and_page(tmp_path: Path, kind: str) -> None:
    finding = Finding("gaps", "error", "/r", "t", 0, "/r/t-0/0.log", 7, 3, 9, "a hole | with a bar")
    partition = {
        "replica": "/r", "topic": "t", "partition": 0, "segments": 1, "batches": 1, "records": 10, "bytes": 2048,
        "log_start_offset": 0, "high_watermark": None, "log_end_offset": 10, "first_ms": NOW_MS, "last_ms": None,
        "share": 1.0, "times_average": 1.0,
    }  # fmt: skip
    results = Results(("/r",), [finding], [partition], [], [])
    for _ in range(2):  # written anew
        write_tables(results, str(tmp_path), kind)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(TABLES)
    if kind == "delta":
        from deltalake import DeltaTable

        gaps = DeltaTable(str(tmp_path / "gaps")).to_pyarrow_table()
    else:
        import pyarrow.parquet as parquet

        gaps = parquet.read_table(tmp_path / "gaps")
    assert gaps.to_pylist() == as_tables(results)["gaps"].to_pylist()
    text = "\n".join(page(results, {}))
    assert "1 findings" in text and "a hole \\| with a bar" in text and "| t-0 | 3–8 |" in text
    assert "Nothing is wrong" in "\n".join(page(Results(("/r",), [], [partition], [], []), {}))


def test_facts_say_what_is_not_known(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path)
    maker.data()
    maker.log.close()
    (facts,) = replicas_in([str(tmp_path)], lambda topic: True)
    assert isinstance(facts, ReplicaFacts)
    assert facts.high_watermark is None and facts.committed_end == 1 and facts.epochs is None
