"""An anomaly, where it was found, and the report of all that were.

Owns the form of results. Each anomaly is one function in `anomalies_log`, `anomalies_order` or `anomalies_transactions`; its docstring says what it means and `promise` which
invariant it breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.evidence import Evidence
from tidelog.testing.history.operations import Value

FOUND_MAX: Final = 10_000
"""Of one kind; a broken log has as many as it has records."""
TOLD_MAX: Final = 8


class Found(NamedTuple):
    """One instance of an anomaly."""

    tp: TopicPartition
    offset: int
    value: Value | None
    text: str


@dataclass(frozen=True, slots=True)
class Anomaly:
    name: str
    promise: str
    """The invariant that it breaks."""
    find: Callable[[Evidence], Iterator[Found]]

    @property
    def meaning(self) -> str:
        return (self.find.__doc__ or "").strip()


def anomaly(name: str, promise: str) -> Callable[[Callable[[Evidence], Iterator[Found]]], Anomaly]:
    return lambda find: Anomaly(name, promise, find)


class AnomalyError(AssertionError):
    """A history has anomalies; the text is the report."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True, slots=True)
class Report:
    operations: int
    found: dict[Anomaly, list[Found]]
    """Only anomalies that were found."""

    @property
    def is_clean(self) -> bool:
        return not self.found

    @property
    def names(self) -> set[str]:
        return {anomaly.name for anomaly in self.found}

    def of(self, name: str) -> list[Found]:
        return next((found for anomaly, found in self.found.items() if anomaly.name == name), [])

    def raise_if_dirty(self) -> None:
        if self.found:
            raise AnomalyError(self)

    def __str__(self) -> str:
        if self.is_clean:
            return f"{self.operations} operations without an anomaly"
        lines = [f"{self.operations} operations with anomalies:"]
        for anomaly, found in self.found.items():
            count = f"at least {FOUND_MAX}" if len(found) == FOUND_MAX else str(len(found))
            lines.append(f"{anomaly.name} ({anomaly.promise}): {count}. {anomaly.meaning}")
            lines.extend(f"  {each.tp} offset {each.offset}: {each.text}" for each in found[:TOLD_MAX])
            if len(found) > TOLD_MAX:
                lines.append(f"  and {len(found) - TOLD_MAX} more")
        return "\n".join(lines)


def find_all(evidence: Evidence, anomalies: Iterable[Anomaly]) -> Report:
    found = {each: list(islice(each.find(evidence), FOUND_MAX)) for each in anomalies}
    return Report(len(evidence.history), {each: those for each, those in found.items() if those})
