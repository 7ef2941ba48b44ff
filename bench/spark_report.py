"""What `bench.spark` measured, as tables: each variant, ours beside the connector round by round, and the aims.

python -m bench.spark_report FILE...        # of files that `bench.spark --json` has written, put together
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.spark_plan import (
    AIMS,
    CODECS,
    JVM,
    KINDS,
    OURS,
    PRUNED,
    READY,
    SEGMENTS,
    TUNED,
    VARIANTS,
    Aim,
    aim_for,
)
from bench.spark_samples import Load, Measured, Sample, Samples, merged


class Verdict(NamedTuple):
    load: Load
    aim: Aim
    ratios: list[float]

    @property
    def is_met(self) -> bool:
        return self.aim.is_met(statistics.median(self.ratios))

    @property
    def rounds_met(self) -> int:
        return sum(map(self.aim.is_met, self.ratios))


def show(samples: Samples, console: Console) -> None:
    table = Table(
        "load", "by", "rows/s (p50 ms)", "CPU s", "broker CPU s", "beside JVM (rounds)", "beside JVM tuned (rounds)"
    )  # fmt: skip
    for load, variant in sorted(samples, key=_place):
        found = samples[load, variant]
        table.add_row(
            str(load),
            variant,
            f"{_median(found, 0):,.0f}",
            f"{_median(found, 1):.1f}",
            f"{_median(found, 2):.1f}",
            *(_spread(ratios_of(samples, load, variant, beside)) for beside in (JVM, TUNED)),
        )
    console.print(table)
    aims = Table("load", "of", "beside", "aim", "measured (rounds)", "rounds", "verdict")
    for verdict in verdicts(samples):
        aims.add_row(
            str(verdict.load),
            verdict.aim.variant,
            verdict.aim.beside,
            str(verdict.aim),
            _spread(verdict.ratios),
            f"{verdict.rounds_met} of {len(verdict.ratios)}",
            "met" if verdict.is_met else "missed",
        )
    console.print(aims)
    if missing := [str(aim) for aim in unmeasured(samples)]:
        console.print(f"not measured: {len(missing)} of {len(AIMS)} aims", highlight=False)


def show_all(measured: Measured, console: Console) -> None:
    show(measured.samples, console)
    console.print("; ".join(f"{name} {said}" for name, said in measured.about.items()), highlight=False)


def verdicts(samples: Samples) -> Iterator[Verdict]:
    """Of every aim for every load that was measured, by the median of the rounds."""
    for load, variant in sorted(samples, key=_place):
        for beside in (JVM, TUNED):
            aim = aim_for(load.kind, load.size, variant, beside)
            ratios = ratios_of(samples, load, variant, beside)
            if aim is not None and ratios:
                yield Verdict(load, aim, ratios)


def unmeasured(samples: Samples) -> list[Aim]:
    judged = [verdict.aim for verdict in verdicts(samples)]
    return [aim for aim in AIMS if aim not in judged]


def ratios_of(samples: Samples, load: Load, variant: str, beside: str) -> list[float]:
    """The ratio of each round, not of medians: what disturbs a round disturbs both."""
    others = samples.get((load, beside))
    if not others or variant not in (OURS, SEGMENTS, PRUNED, READY):
        return []
    return [mine.figure / theirs.figure for mine, theirs in zip(samples[load, variant], others, strict=True)]


def _place(measured: tuple[Load, str]) -> tuple[int, int, int, int]:
    load, variant = measured
    return load.size, CODECS.index(load.codec), KINDS.index(load.kind), VARIANTS[load.kind].index(variant)


def _median(samples: list[Sample], field: int) -> float:
    return statistics.median(sample[field] for sample in samples)


def _spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    measured = merged(parser.parse_args().files)
    show_all(measured, Console(width=max(Console().width, 150), markup=False))


if __name__ == "__main__":
    main()
