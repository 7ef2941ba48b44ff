"""How far a query is, from the progress that Spark reports after each of its batches. Pure: time comes as an argument."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidelog.spark.offsets import Offsets, OffsetsError

WINDOW_SECONDS: Final = 10.0
"""Rates are over the last so many seconds: over one batch they jump."""
_EVENTS_MAX: Final = 1000
_MARKS: Final = "#"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgress:
    name: str
    batch: int | None = None
    rows: int = 0
    """Read since the query was started."""
    rows_per_second: float = 0.0
    batch_ms: int | None = None
    """How long the last batch took."""
    lag: int | None = None
    """Records that were in the log when the last batch began and are not read yet. None: the source does not say."""
    watermark: str | None = None
    late_rows: int = 0
    """Rows that came after the watermark had passed them and were left out."""
    losses: int = 0
    """How often a partition was read on where records had gone before they were read (`fail_on_data_loss = false`)."""
    last_loss: str | None = None
    """What the last batch with losses went on without."""
    state_rows: int | None = None
    last_batch_at: str | None = None


class QueryTracker:
    """Adds up what batches report. Each is counted once, however often it is seen."""

    def __init__(self, name: str, rows_of: Callable[[int], int | None] = lambda batch: None) -> None:
        """`rows_of`: how many records a batch had, where somebody knows better than Spark."""
        self._rows_of = rows_of
        self.now = QueryProgress(name=name)
        self._last_seen = ""
        self._events: deque[tuple[float, int]] = deque(maxlen=_EVENTS_MAX)
        self._started: float | None = None

    @property
    def last_batch(self) -> int:
        return -1 if self.now.batch is None else self.now.batch

    def feed(self, reports: Iterable[Mapping[str, Any]], now: float) -> None:
        """Reports of Spark in their order, `now` in seconds of a clock that never goes back."""
        if self._started is None:
            self._started = now
        rows = self.now.rows
        late_rows = self.now.late_rows
        losses, last_loss = self.now.losses, self.now.last_loss
        last: Mapping[str, Any] | None = None
        for report in reports:
            if report["timestamp"] <= self._last_seen:
                continue
            self._last_seen = report["timestamp"]
            last = report
            told = self._rows_of(report.get("batchId", -1))
            count = int(report.get("numInputRows") or 0) if told is None else told
            rows += count
            late_rows += sum(
                int(each.get("numRowsDroppedByWatermark") or 0) for each in report.get("stateOperators") or ()
            )
            self._events.append((now, count))
            if lost := [each for source in report.get("sources") or () for each in passed_over(source)]:
                losses, last_loss = losses + len(lost), "; ".join(lost)
        while self._events and self._events[0][0] <= now - WINDOW_SECONDS:
            self._events.popleft()
        seconds = min(WINDOW_SECONDS, max(1.0, now - self._started))
        rate = sum(count for _, count in self._events) / seconds
        rest = _told(last) if last is not None else _kept(self.now)
        self.now = QueryProgress(
            name=self.now.name,
            rows=rows,
            late_rows=late_rows,
            losses=losses,
            last_loss=last_loss,
            rows_per_second=round(rate, 1),
            **rest,
        )


def _told(report: Mapping[str, Any]) -> dict[str, Any]:
    watermark = (report.get("eventTime") or {}).get("watermark")
    operators = report.get("stateOperators") or ()
    lags = [lag_of(source) for source in report.get("sources") or ()]
    known = [lag for lag in lags if lag is not None]
    return {
        "batch": report.get("batchId"),
        "batch_ms": (report.get("durationMs") or {}).get("triggerExecution"),
        "lag": sum(known) if known else None,
        "watermark": None if watermark is None or watermark.startswith("1970-01-01") else watermark,
        "state_rows": sum(int(each.get("numRowsTotal") or 0) for each in operators) if operators else None,
        "last_batch_at": report["timestamp"],
    }


def _kept(progress: QueryProgress) -> dict[str, Any]:
    names = ("batch", "batch_ms", "lag", "watermark", "state_rows", "last_batch_at")
    return {name: getattr(progress, name) for name in names}


def lag_of(source: Mapping[str, Any]) -> int | None:
    """Of one source of a report: how far its end is behind the log's, over all partitions. None where its offsets are no offsets of topics."""
    latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
    if latest is None or end is None:
        return None
    return sum(max(0, offset - end.get(place, 0)) for place, offset in latest.items())


def passed_over(source: Mapping[str, Any]) -> Iterator[str]:
    """Of one source of a report: where its batch did not begin at the end of the one before, because what was there is gone."""
    try:
        start, end = Offsets.from_json(source["startOffset"]), Offsets.from_json(source["endOffset"])
    except (
        KeyError,
        TypeError,
        ValueError,
        OffsetsError,
    ):  # a first batch, or offsets that are no offsets of topics
        return
    if start == end:
        return  # a batch without records, for the sake of the watermark: this was told of the one before
    for tp, offset in sorted(start.next.items()):
        if tp not in end:
            yield f"{tp} is not there any more, and was read up to offset {offset}"
            continue
        begin = end.begins.get(tp, offset)
        is_other = start.topic_ids.get(tp.topic, "") != end.topic_ids.get(tp.topic, "")
        if is_other and tp.topic in start.topic_ids:
            yield f"{tp} was deleted and made anew, and is read from offset {begin}; what it held behind offset {offset} is gone"
        elif begin > offset:
            yield f"{tp}: offsets {offset} to {begin} were gone before they were read"
        elif begin < offset:
            yield f"{tp}: the log was cut, and is read from offset {begin} though it was read up to {offset} before"


def _offsets(value: Any) -> dict[tuple[str, str], int] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    if not isinstance(value, Mapping):
        return None
    found: dict[tuple[str, str], int] = {}
    for topic, partitions in value.items():
        if topic == _MARKS:
            continue
        if not isinstance(partitions, Mapping):
            return None
        for number, offset in partitions.items():
            if not isinstance(offset, int):
                return None
            found[topic, number] = offset
    return found
