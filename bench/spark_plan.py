"""What `bench.spark` measures, with which settings, and what is aimed at. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PARTITIONS: Final = 4
STREAM_ROWS: Final = {100: 1_000_000, 1024: 200_000}
"""Of a micro-batch in a stream at its steady pace: ten of them either way, so that most of them count."""
STREAM_SKIPPED: Final = 2
"""Micro-batches at the beginning that do not count."""
COUNTS: Final = {100: 10_000_000, 1024: 2_000_000}
CODECS: Final = ("none", "lz4")
CODECS_OF: Final = {
    "noop": CODECS,
    "sum": ("none",),
    "stream": ("none",),
    "tiny": ("none",),
    "sink": ("none",),
}
"""What a codec costs is seen where nothing else is done with the rows; the rest is measured without."""
KINDS: Final = tuple(CODECS_OF)

OURS, SEGMENTS, JVM, TUNED, PARQUET, PRUNED, READY = (
    "tidelog",
    "segments",
    "JVM",
    "JVM tuned",
    "parquet",
    "tidelog, value only",
    "ready-made Arrow",
)
TUNED_READ: Final = {"kafka.max.poll.records": "100000", "kafka.max.partition.fetch.bytes": "8388608"}
TUNED_WRITE: Final = {"kafka.batch.size": "262144", "kafka.linger.ms": "20"}
VARIANTS: Final = {
    "noop": (OURS, SEGMENTS, JVM, TUNED, PARQUET),
    "sum": (OURS, PRUNED, SEGMENTS, JVM, TUNED, PARQUET),
    "stream": (OURS, JVM, TUNED, READY),
    "tiny": (OURS, JVM),
    "sink": (OURS, JVM, TUNED),
}


@dataclass(frozen=True, slots=True)
class Aim:
    kinds: tuple[str, ...]
    variant: str
    beside: str
    ratio: float
    sizes: tuple[int, ...] = (100, 1024)

    @property
    def less_is_better(self) -> bool:
        return "tiny" in self.kinds

    def is_met(self, ratio: float) -> bool:
        return ratio <= self.ratio if self.less_is_better else ratio >= self.ratio

    def __str__(self) -> str:
        return f"{'≤' if self.less_is_better else '≥'} {self.ratio:g}×"


AIMS: Final = (
    Aim(("noop", "sum"), OURS, JVM, 2.5, (100,)),
    Aim(("noop", "sum"), OURS, JVM, 1.7, (1024,)),
    Aim(("noop", "sum"), OURS, TUNED, 1.5, (100,)),
    Aim(("noop", "sum"), OURS, TUNED, 1.2, (1024,)),
    Aim(("noop", "sum"), SEGMENTS, TUNED, 1.6),
    Aim(("stream",), OURS, JVM, 2.0),
    Aim(("stream",), OURS, TUNED, 1.2),
    Aim(("tiny",), OURS, JVM, 1.0),
    Aim(("sink",), OURS, JVM, 1.2),
    Aim(("sink",), OURS, TUNED, 0.9),
)


def aim_for(kind: str, size: int, variant: str, beside: str) -> Aim | None:
    return next(
        (
            aim
            for aim in AIMS
            if kind in aim.kinds and size in aim.sizes and (aim.variant, aim.beside) == (variant, beside)
        ),
        None,
    )
