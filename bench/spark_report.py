"""What `bench.spark` measured, as a table: each variant, and ours beside the connector round by round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.spark_plan import CODECS, JVM, KINDS, OURS, PRUNED, SEGMENTS, TUNED, VARIANTS, aim_for


class Load(NamedTuple):
    kind: str
    size: int
    codec: str

    def __str__(self) -> str:
        if self.kind == "tiny":
            return "tiny micro-batch"
        return f"{self.kind} {self.size} B {self.codec}"


class Sample(NamedTuple):
    figure: float
    """Rows per second; of tiny micro-batches, their p50 in milliseconds."""
    cpu: float
    """Seconds of Spark, all of its processes."""
    broker_cpu: float

    def __str__(self) -> str:
        return f"{self.figure:14,.0f}   CPU {self.cpu:7.2f} s, broker {self.broker_cpu:6.2f} s"


Samples = Mapping[tuple[Load, str], list[Sample]]


def show(samples: Samples, console: Console) -> None:
    table = Table(
        "load", "by", "rows/s (p50 ms)", "CPU s", "broker CPU s", "beside JVM (rounds)", "beside JVM tuned (rounds)", "aims"
    )  # fmt: skip
    for load, variant in sorted(samples, key=_place):
        found = samples[load, variant]
        ratios, aims = [], []
        for beside in (JVM, TUNED):
            ratio, verdict = _beside(samples, load, variant, beside)
            ratios.append(ratio)
            aims += [verdict] if verdict else []
        table.add_row(
            str(load),
            variant,
            f"{_median(found, 0):,.0f}",
            f"{_median(found, 1):.1f}",
            f"{_median(found, 2):.1f}",
            *ratios,
            "; ".join(aims),
        )
    console.print(table)


def _place(measured: tuple[Load, str]) -> tuple[int, int, int, int]:
    load, variant = measured
    return load.size, CODECS.index(load.codec), KINDS.index(load.kind), VARIANTS[load.kind].index(variant)


def _median(samples: list[Sample], field: int) -> float:
    return statistics.median(sample[field] for sample in samples)


def _beside(samples: Samples, load: Load, variant: str, beside: str) -> tuple[str, str]:
    """The ratio of each round, not of medians: what disturbs a round disturbs both."""
    others = samples.get((load, beside))
    if not others or variant not in (OURS, SEGMENTS, PRUNED):
        return "", ""
    ratios = [
        mine.figure / theirs.figure for mine, theirs in zip(samples[load, variant], others, strict=True)
    ]
    middle = statistics.median(ratios)
    text = f"{middle:.2f}× ({min(ratios):.2f}–{max(ratios):.2f})"
    aim = aim_for(load.kind, load.size, variant, beside)
    if aim is None:
        return text, ""
    return text, f"{aim} {beside} {'met' if aim.is_met(middle) else 'missed'}"


def as_json(samples: Samples) -> list[dict[str, Any]]:
    return [
        {**load._asdict(), "by": variant, "samples": [sample._asdict() for sample in found]}
        for (load, variant), found in samples.items()
    ]
