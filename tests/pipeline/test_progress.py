"""Reports of Spark become numbers for people: rows counted once, rates over seconds, lag over partitions."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.pipeline.context import BATCHES_REMEMBERED, BatchRows
from tidelog.pipeline.progress import QueryTracker, lag_of, passed_over


def report(batch: int, rows: int, **more: Any) -> dict[str, Any]:
    return {
        "timestamp": f"2025-01-31T12:00:{batch:02}.000Z",
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 250},
        "stateOperators": [],
        "sources": [],
        **more,
    }


def test_each_batch_counts_once_and_rates_are_over_seconds() -> None:
    tracker = QueryTracker("orders")
    tracker.feed([], 100.0)
    assert (tracker.now.batch, tracker.now.rows, tracker.now.rows_per_second) == (None, 0, 0.0)
    tracker.feed([report(0, 100), report(1, 50)], 101.0)
    assert (tracker.now.batch, tracker.now.rows, tracker.now.rows_per_second) == (1, 150, 150.0)
    tracker.feed([report(0, 100), report(1, 50)], 105.0)
    assert (tracker.now.rows, tracker.now.rows_per_second) == (150, 30.0)
    tracker.feed([report(1, 50), report(2, 50)], 110.0)
    assert (tracker.now.rows, tracker.now.rows_per_second, tracker.now.batch_ms) == (200, 20.0, 250)
    tracker.feed([report(2, 50)], 130.0)
    assert (tracker.now.rows, tracker.now.rows_per_second, tracker.now.batch) == (200, 0.0, 2)


def test_a_batch_that_was_read_twice_counts_once_where_its_job_says_so() -> None:
    rows = BatchRows()
    tracker = QueryTracker("orders", rows.of)
    rows.note(1, 50)
    tracker.feed([report(0, 100), report(1, 100)], 101.0)
    assert tracker.now.rows == 150
    for batch in range(BATCHES_REMEMBERED + 2):
        rows.note(batch, batch)
    assert (rows.of(0), rows.of(1), rows.of(2), rows.of(BATCHES_REMEMBERED + 1)) == (
        None,
        None,
        2,
        BATCHES_REMEMBERED + 1,
    )


def test_watermark_state_and_late_rows() -> None:
    tracker = QueryTracker("windows")
    operators = [{"numRowsTotal": 7, "numRowsDroppedByWatermark": 2}, {"numRowsTotal": 1}]
    tracker.feed([report(0, 5, eventTime={"watermark": "1970-01-01T00:00:00.000Z"})], 1.0)
    assert (tracker.now.watermark, tracker.now.state_rows) == (None, None)
    marked = {"eventTime": {"watermark": "2025-01-31T11:00:00.000Z"}, "stateOperators": operators}
    tracker.feed([report(1, 5, **marked), report(2, 5, **marked)], 2.0)
    now = tracker.now
    assert (now.watermark, now.state_rows, now.late_rows) == ("2025-01-31T11:00:00.000Z", 8, 4)


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        ({"a": {"0": 5, "1": 7}}, {"a": {"0": 9, "1": 7}, "b": {"0": 3}}, 7),
        ('{"a":{"0":5},"#":{"ids":{"a":"x"}}}', '{"a":{"0":6},"#":{"ids":{"a":"x"}}}', 1),
        ({"a": {"0": 9}}, {"a": {"0": 5}}, 0),
        ({"a": {"0": 9}}, None, None),
        (3, 4, None),
        ("no json", "no json", None),
        ({"rowsPerSecond": 4}, {"rowsPerSecond": 4}, None),
    ],
)
def test_lag(end: Any, latest: Any, lag: int | None) -> None:
    assert lag_of({"endOffset": end, "latestOffset": latest}) == lag


def at(ids: str, begins: dict[str, int] | None = None, /, **offsets: int) -> dict[str, Any]:
    marks: dict[str, Any] = {"ids": {"a": ids}} if ids else {}
    if begins:
        marks["begins"] = {"a": begins}
    return {"a": {name.removeprefix("p"): offset for name, offset in offsets.items()}, "#": marks}


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (at("x", p0=5), at("x", p0=9), []),
        (at("x", p0=5), at("x", {"0": 5}, p0=9), []),  # a first batch says where it begins
        (at("x", p0=5), at("x", {"1": 3}, p0=9, p1=4), []),  # a new partition
        (at("", p0=5), at("x", p0=9), []),  # a checkpoint of another source
        (at("x", p0=5), at("x", {"0": 8}, p0=9), ["a-0: offsets 5 to 8 were gone before they were read"]),
        (at("x", p0=5), at("x", {"0": 3}, p0=9), ["a-0: the log was cut, and is read from offset 3"]),
        (
            at("x", p0=5),
            at("y", {"0": 0}, p0=2),
            ["a-0 was deleted and made anew, and is read from offset 0"],
        ),
        (at("x", p0=5, p1=6), at("x", p0=5), ["a-1 is not there any more, and was read up to offset 6"]),
        (at("x", {"0": 8}, p0=9), at("x", {"0": 8}, p0=9), []),  # told of the batch before
        (None, at("x", {"0": 3}, p0=9), []),
        (7, 8, []),
        ({"rowsPerSecond": 4}, {"rowsPerSecond": 5}, []),
    ],
)
def test_what_a_batch_goes_on_without_is_told(start: Any, end: Any, said: list[str]) -> None:
    found = list(passed_over({"startOffset": start, "endOffset": end}))
    assert len(found) == len(said) and all(map(str.startswith, found, said)), found
    tracker = QueryTracker("orders")
    tracker.feed([report(0, 1, sources=[{"startOffset": start, "endOffset": end}])], 1.0)
    tracker.feed([report(1, 1)], 2.0)
    assert (tracker.now.losses, tracker.now.last_loss) == (len(said), "; ".join(found) or None)
