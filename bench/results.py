"""What was measured: metrics, samples per peer and round, medians, spreads and ratios. Pure; prints nothing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import NamedTuple


class Metric(NamedTuple):
    """Something measured, its unit, and whether more of it is better."""

    name: str
    unit: str
    more_is_better: bool


class Ratio(NamedTuple):
    """A peer beside the baseline: ratio of medians, and the extremes of the rounds' own ratios."""

    median: float
    low: float
    high: float


@dataclass
class Results:
    """Samples of every metric for every peer, in rounds."""

    baseline: str
    samples: dict[Metric, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, metric: Metric, peer: str, value: float) -> None:
        self.samples.setdefault(metric, {}).setdefault(peer, []).append(value)

    def median(self, metric: Metric, peer: str) -> float | None:
        values = self.samples.get(metric, {}).get(peer)
        return statistics.median(values) if values else None

    def spread(self, metric: Metric, peer: str) -> tuple[float, float] | None:
        values = self.samples.get(metric, {}).get(peer)
        return (min(values), max(values)) if values else None

    def ratio(self, metric: Metric, peer: str) -> Ratio | None:
        own = self.samples.get(metric, {}).get(peer, [])
        other = self.samples.get(metric, {}).get(self.baseline, [])
        if not own or not other or min(other) <= 0:
            return None
        # Samples of one round were taken one after the other, so noise of the machine is common to both.
        rounds = [a / b for a, b in zip(own, other, strict=False)]
        return Ratio(statistics.median(own) / statistics.median(other), min(rounds), max(rounds))

    def as_json(self, peers: list[str]) -> dict[str, object]:
        return {
            f"{metric.name} [{metric.unit}]": {
                peer: {
                    "samples": self.samples[metric][peer],
                    "median": self.median(metric, peer),
                    "ratio": ratio._asdict() if (ratio := self.ratio(metric, peer)) else None,
                }
                for peer in peers
                if peer in self.samples[metric]
            }
            for metric in self.samples
        }
