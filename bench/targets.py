"""What was set out to be reached, and whether it was. Judged by the median over the rounds; each round is counted, too.

`replicated` is compared with stock Kafka: both answer from the page cache. `fsync` is compared with our own `replicated`, and with
the Kafka that flushes every batch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.payload import size_name
from bench.results import Metric, Results

KAFKA, REPLICATED, FSYNC, KAFKA_FSYNC = "kafka", "tidelog-replicated", "tidelog-fsync", "kafka-fsync"
SIZES = tuple(size_name(size) for size in (100, 1024, 10240))


@dataclass(frozen=True, slots=True)
class Target:
    """`metric` of `peer`, as a ratio to the same of `beside` (None: as it is), at least or at most `bound`."""

    metric: str
    peer: str
    beside: str | None
    bound: float
    at_least: bool

    @property
    def text(self) -> str:
        sign = "≥" if self.at_least else "≤"
        unit = "×" if self.beside else ""
        return f"{sign} {self.bound:g}{unit}"

    def is_met_by(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


def at_least(metric: str, bound: float, peer: str = REPLICATED, beside: str = KAFKA) -> Target:
    return Target(metric, peer, beside, bound, at_least=True)


def at_most(metric: str, bound: float, peer: str = REPLICATED, beside: str | None = KAFKA) -> Target:
    return Target(metric, peer, beside, bound, at_least=False)


P99 = "end to end p99 at 5,000 records/s"
TARGETS = (
    at_least("produce 100 B", 1.3),
    at_least("produce 1 KiB", 1.6),
    at_least("produce 10 KiB", 1.8),
    at_least("produce 1 KiB lz4", 2.0),
    *(at_least(f"consume {size}", 1.0) for size in SIZES),
    *(at_least(f"raw fetch {size}", 1.0) for size in SIZES),
    *(at_most(f"broker CPU per GB produced, {size}", 0.4) for size in (*SIZES, "1 KiB lz4")),
    *(at_most(f"broker CPU per GB consumed, {size}", 0.9) for size in SIZES),
    at_least("one-record requests at depth 1", 1.0),
    at_least("one-record requests at depth 5", 1.5),
    at_least("one-record requests at depth 50", 3.0),
    at_most(P99, 0.3),
    at_most("RSS under load, peak", 0.12),
    *(at_least(f"produce {size}", 0.7, FSYNC, REPLICATED) for size in SIZES),
    *(at_least(f"produce {size}", 2.0, FSYNC, KAFKA_FSYNC) for size in SIZES),
    at_most(P99, 50.0, FSYNC, None),
)


class Verdict(NamedTuple):
    target: Target
    unit: str
    median: float
    low: float
    high: float
    rounds_met: int
    rounds: int

    @property
    def is_met(self) -> bool:
        return self.target.is_met_by(self.median)

    def as_json(self) -> dict[str, object]:
        return {
            "metric": self.target.metric,
            "peer": self.target.peer,
            "beside": self.target.beside,
            "aim": self.target.text,
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "rounds_met": self.rounds_met,
            "rounds": self.rounds,
            "met": self.is_met,
        }


def judge(results: Results, targets: Sequence[Target] = TARGETS) -> list[Verdict]:
    """A verdict for each target whose peers were measured."""
    metrics = {metric.name: metric for metric in results.samples}
    verdicts = []
    for target in targets:
        metric = metrics.get(target.metric)
        values = _measured(results, metric, target) if metric is not None else []
        if metric is not None and values:
            met = sum(target.is_met_by(value) for value in values)
            middle = statistics.median(values)
            unit = "×" if target.beside else f" {metric.unit}"
            verdicts.append(Verdict(target, unit, middle, min(values), max(values), met, len(values)))
    return verdicts


def _measured(results: Results, metric: Metric, target: Target) -> list[float]:
    if target.beside is None:
        return results.values(metric, target.peer)
    return results.round_ratios(metric, target.peer, target.beside)
