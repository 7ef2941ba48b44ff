"""What a query's filters say about partitions, offsets and times, so that a batch asks brokers for that much and no more.

A filter counts as done by the source only if every record that it would drop is left out for certain: comparisons of topic, partition and offset. Times
are not in order in a log (producers set them), so a lower bound on them only moves the start to the first record that is as late; Spark looks at each record again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from tidelog.client.metadata import TopicPartition
from tidelog.spark.ranges import OffsetRange

_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestamptype"})
_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: lambda mine, given: bool(mine == given),
    EqualNullSafe: lambda mine, given: bool(mine == given),
    GreaterThan: lambda mine, given: bool(mine > given),
    GreaterThanOrEqual: lambda mine, given: bool(mine >= given),
    LessThan: lambda mine, given: bool(mine < given),
    LessThanOrEqual: lambda mine, given: bool(mine <= given),
    In: lambda mine, given: mine in given,
    StringStartsWith: lambda mine, given: bool(mine.startswith(given)),
    StringEndsWith: lambda mine, given: bool(mine.endswith(given)),
    StringContains: lambda mine, given: given in mine,
}
_MS_MIN: Final = -(1 << 53)


@dataclass(slots=True)
class Narrowing:
    """What is left of a batch after the filters that were taken."""

    low: int = 0
    high: int | None = None
    """Offsets [low, high)."""
    not_before_ms: int | None = None
    keeps: list[Callable[[TopicPartition], bool]] = field(default_factory=list)

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Returns those that Spark must look at itself."""
        return [each for each in filters if not self._take(each)]

    def _take(self, given: Filter) -> bool:
        column = _column(given)
        if isinstance(given, IsNotNull):
            return column in _NEVER_NULL
        if column in ("topic", "partition"):
            return self._take_place(given, column)
        if column == "offset":
            return self._take_offset(given)
        if column == "timestamp":
            self._take_time(given)
        return False

    def _take_place(self, given: Filter, column: str) -> bool:
        inner, is_negated = (given.child, True) if isinstance(given, Not) else (given, False)
        compare = _COMPARISONS.get(type(inner))
        value = getattr(inner, "value", None)
        if compare is None or value is None or (isinstance(inner, In) and None in value):
            return False
        number = 0 if column == "topic" else 1
        self.keeps.append(lambda tp: compare(tp[number], value) is not is_negated)
        return True

    def _take_offset(self, given: Filter) -> bool:
        value = getattr(given, "value", None)
        if isinstance(given, In):
            numbers = sorted(each for each in given.value if each is not None)
            if not numbers:
                return False
            self._between(numbers[0], numbers[-1] + 1)
            return len(numbers) == len(given.value) and numbers[-1] - numbers[0] + 1 == len(set(numbers))
        if not isinstance(value, int):
            return False
        match given:
            case EqualTo() | EqualNullSafe():
                self._between(value, value + 1)
            case GreaterThan():
                self._between(value + 1, None)
            case GreaterThanOrEqual():
                self._between(value, None)
            case LessThan():
                self._between(None, value)
            case LessThanOrEqual():
                self._between(None, value + 1)
            case _:
                return False
        return True

    def _between(self, low: int | None, high: int | None) -> None:
        if low is not None:
            self.low = max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)

    def _take_time(self, given: Filter) -> None:
        if isinstance(given, In):
            values = [each for each in given.value if isinstance(each, datetime)]
            earliest = min(values, default=None) if len(values) == len(given.value) else None
        elif isinstance(given, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)):
            earliest = given.value if isinstance(given.value, datetime) else None
        else:
            return
        if earliest is not None and earliest.tzinfo is not None:
            ms = (earliest - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
            self.not_before_ms = max(ms, self.not_before_ms if self.not_before_ms is not None else _MS_MIN)

    # -- applied ----------------------------------------------------------------------------------------------------

    def narrowed(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The ranges that may hold records for the query. Times are looked up elsewhere (`not_before_ms`)."""
        found = []
        for each in ranges:
            if not all(keeps(each.tp) for keeps in self.keeps):
                continue
            end = each.end if self.high is None else min(each.end, self.high)
            start = max(each.start, self.low)
            if start < end:
                found.append(OffsetRange(each.tp, start, end))
        return found

    @staticmethod
    def from_time(ranges: Iterable[OffsetRange], firsts: Mapping[TopicPartition, int]) -> list[OffsetRange]:
        """Without what lies before the first record that is late enough; -1: there is none, and nothing to read."""
        found = []
        for each in ranges:
            first = firsts[each.tp]
            if 0 <= first < each.end:
                found.append(OffsetRange(each.tp, max(each.start, first), each.end))
        return found


def _column(given: Filter) -> str:
    inner = given.child if isinstance(given, Not) else given
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0].lower() if len(path) == 1 else ""
