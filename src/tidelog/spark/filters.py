"""What a query's filters on topic, partition, offset and timestamp say about what need not be read.

They only ever narrow: Spark still applies every filter itself, so one that is not understood here costs nothing but reading. Spark hands filters over where `spark.sql.python.filterPushdown.enabled` is true, and refuses
any reader that would take them where it is not; `takes_filters` makes a reader that is right in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidelog.spark.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, Filter


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Rows outside of this are not asked for; None: no limit."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_end: int | None = None
    timestamp_min_ms: int | None = None

    def ranges(self, whole: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
        """The parts of ranges that may hold rows that are asked for."""
        for each in whole:
            if not self.may_hold(each.tp.topic, each.tp.partition):
                continue
            start = max(each.start, self.offset_min)
            end = each.end if self.offset_end is None else min(each.end, self.offset_end)
            if start < end:
                yield OffsetRange(each.tp, start, end)

    def may_hold(self, topic: str, partition: int) -> bool:
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def among(self, column: str, values: Iterable[Any]) -> Narrowing:
        """The column is one of these values."""
        known = [each for each in values if each is not None]
        match column:
            case "topic":
                chosen = frozenset(map(str, known))
                return replace(self, topics=chosen if self.topics is None else chosen & self.topics)
            case "partition":
                numbers = frozenset(map(int, known))
                return replace(
                    self, partitions=numbers if self.partitions is None else numbers & self.partitions
                )
            case "offset" | "timestamp" if known:
                return self.at_least(column, min(known)).at_most(column, max(known))
            case "offset":
                return replace(self, offset_end=0)
        return self

    def at_least(self, column: str, value: Any) -> Narrowing:
        if column == "offset":
            return replace(self, offset_min=max(self.offset_min, int(value)))
        if column == "timestamp" and isinstance(value, datetime):
            ms = _floor_ms(value)
            return replace(
                self, timestamp_min_ms=ms if self.timestamp_min_ms is None else max(ms, self.timestamp_min_ms)
            )
        return self

    def at_most(self, column: str, value: Any) -> Narrowing:
        """Of timestamps nothing follows: records need not be in the order of their times."""
        if column != "offset":
            return self
        end = int(value) + 1
        return replace(self, offset_end=end if self.offset_end is None else min(end, self.offset_end))


def _floor_ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (seconds.days * 86_400 + seconds.seconds) * 1000 + seconds.microseconds // 1000


def narrowing_of(filters: Iterable[Filter]) -> Narrowing:
    """What follows from all of these together."""
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )

    found = Narrowing()
    for each in filters:
        column = ".".join(getattr(each, "attribute", ())).lower()
        match each:
            case EqualTo(value=value) | EqualNullSafe(value=value):
                found = found.among(column, (value,))
            case In(value=values):
                found = found.among(column, values)
            case GreaterThan(value=value) if isinstance(value, int):
                found = found.at_least(column, value + 1)
            case GreaterThan(value=value) | GreaterThanOrEqual(value=value):
                found = found.at_least(column, value)
            case LessThan(value=value) if isinstance(value, int):
                found = found.at_most(column, value - 1)
            case LessThan(value=value) | LessThanOrEqual(value=value):
                found = found.at_most(column, value)
    return found


class _TakesFilters:
    """In the place of a reader's `pushFilters`. `__func__` is what Spark looks at to see whether a reader has one of its own."""

    def __init__(self, take: Callable[[Narrowing], None]) -> None:
        from pyspark.sql.datasource import DataSourceReader

        self._take = take
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._take(narrowing_of(filters))
        return filters


def takes_filters(reader: DataSourceReader, take: Callable[[Narrowing], None]) -> None:
    """`take` is told what need not be read, before `partitions` is asked for, where Spark pushes filters at all."""
    reader.pushFilters = _TakesFilters(take)  # type: ignore[method-assign]
