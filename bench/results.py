"""What was measured: metrics, samples per peer and round, medians, spreads and ratios. Pure; prints nothing."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import NamedTuple


class Metric(NamedTuple):
    """Something measured, its unit, and whether more of it is better."""

    name: str
    unit: str
    more_is_better: bool


class Ratio(NamedTuple):
    """Two things side by side, round by round: the middle of the rounds' ratios, and their extremes."""

    median: float
    low: float
    high: float


@dataclass
class Results:
    """Samples of every metric for every peer, one per round; a round that failed has none."""

    baseline: str
    samples: dict[Metric, dict[str, list[float]]] = field(default_factory=dict)
    round_number: int | None = None
    """Counted from 0. When it is set, a sample is filed under it, and missing rounds before it stay missing."""

    def add(self, metric: Metric, peer: str, value: float) -> None:
        values = self.samples.setdefault(metric, {}).setdefault(peer, [])
        if self.round_number is not None:
            values.extend([math.nan] * (self.round_number - len(values)))
        values.append(value)

    def values(self, metric: Metric, peer: str) -> list[float]:
        return [value for value in self.samples.get(metric, {}).get(peer, []) if not math.isnan(value)]

    def median(self, metric: Metric, peer: str) -> float | None:
        values = self.values(metric, peer)
        return statistics.median(values) if values else None

    def spread(self, metric: Metric, peer: str) -> tuple[float, float] | None:
        values = self.values(metric, peer)
        return (min(values), max(values)) if values else None

    def round_ratios(
        self, metric: Metric, peer: str, other: str, *, other_metric: Metric | None = None
    ) -> list[float]:
        """One ratio per round in which both were measured.

        Samples of one round were taken one after the other, so what disturbed the machine then is common to both.
        """
        own = self.samples.get(metric, {}).get(peer, [])
        theirs = self.samples.get(other_metric or metric, {}).get(other, [])
        return [a / b for a, b in zip(own, theirs, strict=False) if b > 0 and not math.isnan(a)]

    def ratio(
        self, metric: Metric, peer: str, other: str | None = None, *, other_metric: Metric | None = None
    ) -> Ratio | None:
        rounds = self.round_ratios(metric, peer, other or self.baseline, other_metric=other_metric)
        return Ratio(statistics.median(rounds), min(rounds), max(rounds)) if rounds else None

    def as_json(self, peers: list[str]) -> dict[str, object]:
        return {
            f"{metric.name} [{metric.unit}]": {
                peer: {
                    "samples": [None if math.isnan(value) else value for value in self.samples[metric][peer]],
                    "median": self.median(metric, peer),
                    "ratio": ratio._asdict() if (ratio := self.ratio(metric, peer)) else None,
                }
                for peer in peers
                if peer in self.samples[metric]
            }
            for metric in self.samples
        }
