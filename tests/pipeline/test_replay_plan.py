"""The pure parts of *replay*: what a range becomes, in which steps it is copied, what is refused and why."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.metadata import TopicPartition
from tidelog.client.offsets import FoundOffset
from tidelog.pipeline.jobs.replay import Options
from tidelog.pipeline.options import OptionsError, read_options
from tidelog.pipeline.replay_plan import (
    ReplayError,
    load_plan,
    new_plan,
    offsets_of,
    save_plan,
    time_ms,
)
from tidelog.pipeline.replay_source import check_there, check_time, clamped, settled
from tidelog.pipeline.replay_targets import lines
from tidelog.spark.loss import LogView
from tidelog.spark.ranges import OffsetRange

A, B = TopicPartition("a", 0), TopicPartition("a", 1)
VIEW = LogView(earliest={A: 0, B: 10}, latest={A: 100, B: 50})


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=4),
    st.integers(1, 30),
    st.integers(0, 50),
)
def test_steps_copy_every_offset_once_and_in_order(
    sizes: list[tuple[int, int]], per_step: int, done: int
) -> None:
    ranges = tuple(
        OffsetRange(TopicPartition("t", n), start, start + size) for n, (start, size) in enumerate(sizes)
    )
    plan = new_plan({}, ranges, {}, per_step)
    copied: dict[TopicPartition, list[int]] = {each.tp: [] for each in ranges}
    left_after = []
    for number in range(plan.steps):
        if number == done:
            left_after = list(plan.left())
        step = plan.step(number)
        assert sum(each.size for each in step) <= per_step + len(ranges)
        for each in step:
            copied[each.tp] += range(each.start, each.end)
        plan = plan.after_step(records=1)
    assert plan.is_done and plan.left() == ()
    assert copied == {each.tp: list(range(each.start, each.end)) for each in ranges}
    if done < plan.steps:
        first = new_plan({}, ranges, {}, per_step).step(done)
        assert {each.tp: each.start for each in first}.items() <= {
            each.tp: each.start for each in left_after
        }.items()


def test_a_plan_is_kept_and_belongs_to_its_options(tmp_path: Path) -> None:
    asked = {"topics": ["t"], "to_topic": "u", "file": None}
    plan = new_plan(asked, (OffsetRange(A, 3, 9),), {"a": "id", "other": "x"}, 2)
    assert plan.topic_ids == {"a": "id"}
    assert load_plan(str(tmp_path), asked) is None
    save_plan(str(tmp_path), plan.after_step(records=7, file_bytes=5))
    kept = load_plan(str(tmp_path), asked)
    assert kept is not None and (kept.id, kept.done, kept.records, kept.file_bytes) == (plan.id, 1, 7, 5)
    assert kept.ranges == plan.ranges
    with pytest.raises(ReplayError, match=r"other options \(to_topic\)"):
        load_plan(str(tmp_path), {**asked, "to_topic": "v"})


def test_ranges_by_offset_and_time() -> None:
    assert settled(VIEW, {}) == (OffsetRange(A, 0, 100), OffsetRange(B, 10, 50))
    assert settled(VIEW, {}, from_offsets={B: 20}, to_offsets={B: 30}) == (OffsetRange(B, 20, 30),)
    times = {
        5: {A: FoundOffset(7, 5, 0), B: FoundOffset(-1, -1, -1)},
        9: {A: FoundOffset(-1, -1, -1), B: FoundOffset(-1, -1, -1)},
    }
    assert settled(VIEW, times, from_time_ms=5, to_time_ms=9) == (
        OffsetRange(A, 7, 100),
        OffsetRange(B, 50, 50),
    )
    with pytest.raises(ReplayError, match="behind the end"):
        settled(VIEW, {}, from_offsets={A: 9}, to_offsets={A: 3})
    with pytest.raises(ReplayError, match="no partition a-7"):
        settled(VIEW, {}, from_offsets={TopicPartition("a", 7): 0})
    with pytest.raises(ReplayError, match="no topic z; there are a"):
        settled(VIEW, {}, topics=["a", "z"])


def test_what_is_gone_is_refused_with_the_reason() -> None:
    with pytest.raises(ReplayError, match="offsets 3 to 10 are gone, by retention"):
        check_there([OffsetRange(B, 3, 20)], VIEW)
    with pytest.raises(ReplayError, match="has offsets 0 to 100, and 0 to 101 are asked for"):
        check_there([OffsetRange(A, 0, 101)], VIEW)
    with pytest.raises(ReplayError, match="a-9 does not exist any more"):
        check_there([OffsetRange(TopicPartition("a", 9), 0, 1)], VIEW)
    check_there([OffsetRange(A, 0, 100), OffsetRange(B, 10, 50)], VIEW)
    assert clamped([OffsetRange(B, 3, 99), OffsetRange(B, 60, 70)], VIEW) == (
        OffsetRange(B, 10, 50),
        OffsetRange(B, 50, 50),
    )
    with pytest.raises(ReplayError, match="may be gone"):
        check_time([OffsetRange(B, 10, 50)], VIEW, {B: 1_000}, 500)
    check_time([OffsetRange(B, 10, 50)], VIEW, {B: 1_000}, 1_000)
    check_time([OffsetRange(A, 0, 50)], VIEW, {A: 1_000}, 500)


def test_times_and_offsets_as_text() -> None:
    assert time_ms("1700000000000") == 1_700_000_000_000
    assert (
        time_ms("2023-11-14T22:13:20Z")
        == time_ms("2023-11-14T23:13:20+01:00")
        == time_ms("2023-11-14 22:13:20")
        == 1_700_000_000_000
    )
    with pytest.raises(ValueError, match="2026-03-01"):
        time_ms("yesterday")
    assert offsets_of('{"a": {"0": 3}}') == {A: 3}
    for wrong in ('{"a": {"0": -2}}', "x", '{"a": 3}'):
        with pytest.raises(ValueError):
            offsets_of(wrong)


def test_lines_lose_nothing() -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    moment = datetime.datetime.fromtimestamp(1_700_000_000.123, datetime.UTC)
    table = pa.table(
        {
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([b"\xff\0", "ü".encode()], pa.binary()),
            "topic": ["t", "t"],
            "partition": [0, 0],
            "offset": [1, 2],
            "timestamp": pa.array([moment] * 2, pa.timestamp("us", "UTC")),
            "headers": pa.array([[{"key": "h", "value": b"1"}], None], pa.list_(header)),
        }
    )
    first, second = (json.loads(line) for line in lines(table))
    assert first == {
        "topic": "t", "partition": 0, "offset": 1, "timestamp": 1_700_000_000_123, "key": "k",
        "value_base64": "/wA=", "headers": [{"name": "h", "value": "1"}],
    }  # fmt: skip
    assert second["key"] is None and second["value"] == "ü" and second["headers"] == []


GOOD = {"topics": ["t"], "to_topic": "u"}


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        ({"topics": []}, "topics", "what to replay"),
        ({"file": "/x"}, "", "not by to_topic and file"),
        ({"to_topic": None}, "", "not by none"),
        ({"from_offsets": "{}", "from_time": "1"}, "from_time", "give one of them"),
        ({"to_offsets": "x"}, "to_offsets", "no JSON"),
        ({"to_offsets": '{"x": {"0": 1}}'}, "to_offsets", "not among the topics"),
        ({"from_time": "soon"}, "from_time", "must be a time"),
        ({"to_topic": "t"}, "to_topic", "there twice"),
        ({"topics": ["t", "v"], "partitions": "keep"}, "partitions", "by-key"),
        ({"offsets_per_step": 0}, "offsets_per_step", "at least 1"),
    ],
)
def test_options_that_cannot_work(change: dict[str, Any], key: str, says: str) -> None:
    table = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(OptionsError) as told:
        read_options(Options, table)
    assert any(problem.key == key and says in problem.why for problem in told.value.problems), told.value
