"""The pure parts of *aggregate*: which windows a moment is in, what is late, totals over restarts, options that cannot work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pipeline.context import Counters
from tidelog.pipeline.jobs.aggregate import Options
from tidelog.pipeline.options import OptionsError, read_options
from tidelog.pipeline.totals import Totals
from tidelog.pipeline.windows import BINS_MAX, Late, Windows, duration_ms, late


@given(
    st.integers(-(10**10), 10**10),
    st.integers(1, 50).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))),
)
def test_the_first_and_the_last_window_of_a_moment(moment_us: int, shape: tuple[int, int]) -> None:
    size, slide = shape
    near = moment_us // 1000 // slide * slide
    starts = [near + step * slide for step in range(-size // slide - 3, 3)]
    ends = [start + size for start in starts if start * 1000 <= moment_us < (start + size) * 1000]
    assert Windows(size, slide).ends_ms(moment_us) == (min(ends), max(ends))


def bins(*pairs: tuple[int, int]) -> str:
    return json.dumps([{"x": float(end), "y": float(count)} for end, count in pairs])


def test_late_is_what_no_window_takes_any_more() -> None:
    first, last = bins((10, 2), (20, 3), (30, 4)), bins((20, 2), (30, 3), (40, 4))
    assert late(20, first, last) == Late(rows=2, partly=3)
    assert late(19, first, last) == Late(rows=0, partly=2)
    assert late(100, None, None) == Late(0, 0)
    twice = bins((10, 1), (10, 2))  # a bin of each task
    assert late(10, twice, twice) == Late(3, 0)
    many = bins(*((end, 1) for end in range(BINS_MAX)))
    assert not late(5, many, many).is_exact


def test_durations() -> None:
    assert [duration_ms(text) for text in ("1 second", "90 seconds", "2 hours")] == [1000, 90_000, 7_200_000]
    for wrong in ("1s", "", "-1 second", "1 month", "1.5 seconds"):
        with pytest.raises(ValueError, match="duration"):
            duration_ms(wrong)


def test_totals_count_each_batch_once_over_repeats_and_restarts(tmp_path: Path) -> None:
    counters = Counters()
    totals = Totals(str(tmp_path), counters)
    totals.add("q", 0, {"late rows": 3})
    totals.add("q", 1, {"late rows": 2, "other": 1})
    totals.add("q", 1, {"late rows": 2, "other": 1})
    assert totals.now() == {"late rows": 5, "other": 1} == counters.now()
    again = Counters()
    totals = Totals(str(tmp_path), again)
    assert again.now() == {"late rows": 5, "other": 1}
    totals.add("q", 1, {"late rows": 2, "other": 1})
    totals.add("q", 2, {"late rows": 1})
    assert again.now() == {"late rows": 6, "other": 1}


GOOD = {
    "topics": "t",
    "schema": "at TIMESTAMP, ms BIGINT, shop STRUCT<id: STRING>, total DOUBLE",
    "event_time": "at",
    "window": "1 minute",
    "group_by": "shop.id",
    "aggregates": {"n": "count", "revenue": "sum(total)", "shops": "approx_distinct(shop.id)"},
    "table": "/x",
}


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        ({"table": None}, "", "where the results go"),
        ({"window": "1m"}, "window", "duration"),
        ({"window": "0 seconds"}, "window", "longer than nothing"),
        ({"slide": "2 minutes"}, "slide", "longer than the window"),
        ({"watermark": "soon"}, "watermark", "duration"),
        ({"event_time": "total"}, "event_time", "total is double"),
        ({"event_time": "when"}, "event_time", "no when; it has at"),
        ({"group_by": "shop.nr"}, "group_by", "no shop.nr"),
        ({"group_by": ["shop.id", "shop.id"]}, "aggregates", "column id already"),
        ({"aggregates": {"window_end": "count"}}, "aggregates", "window_end already"),
        ({"aggregates": {"n": "median(total)"}}, "aggregates.n", "must be count(column)"),
        ({"aggregates": {"n": "sum"}}, "aggregates.n", "needs a column"),
        ({"aggregates": {"n": "sum(shop.id)"}}, "aggregates.n", "shop.id is string"),
        ({"aggregates": {"n": "max(x)"}}, "aggregates.n", "no x"),
        ({"aggregates": {}}, "aggregates", "what to compute"),
        ({"schema": "x"}, "schema", "no type"),
        ({"schema": None}, "schema", "need one"),
        ({"format": "raw"}, "schema", "raw values have none"),
        ({"format": "avro"}, "schema", "no Avro schema"),
        ({"on_undecodable": "skip", "dead_letter_topic": "x"}, "dead_letter_topic", "nothing is sent there"),
    ],
)
def test_options_that_cannot_work(change: dict[str, Any], key: str, says: str) -> None:
    table = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(OptionsError) as told:
        read_options(Options, table)
    assert any(problem.key == key and says in problem.why for problem in told.value.problems), told.value


def test_options_that_can() -> None:
    options = read_options(Options, {**GOOD, "slide": "20 seconds", "event_time": "ms", "to_topic": "out"})
    assert options.windows == Windows(60_000, 20_000)
    assert list(options.topics_written()) == ["out"]
    sent = read_options(Options, {**GOOD, "dead_letter_topic": "bad"})
    assert list(sent.topics_written()) == ["bad"]
    raw = {"topics": "t", "format": "raw", "window": "1 minute", "group_by": "key", "table": "/x"}
    assert read_options(Options, raw).columns().names == ["key", "value"]
    assert list(options.places_written()) == ["/x"]
