"""How much of everything one run measures: the full run for a statement, the quick one for a look."""

from __future__ import annotations

from dataclasses import dataclass

from bench.payload import size_name

MB = 1_000_000
PER_SECOND = 5000
STEADY_RECORD_BYTES = 1024
DEPTHS = (1, 5, 50)


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of records to produce and consume."""

    record_bytes: int
    volume: int
    raw_seconds: float
    codec: str = "none"
    partitions: int = 1

    @property
    def label(self) -> str:
        """As it stands in the table."""
        codec = "" if self.codec == "none" else f" {self.codec}"
        partitions = "" if self.partitions == 1 else f", {self.partitions} partitions"
        return size_name(self.record_bytes) + codec + partitions

    @property
    def name(self) -> str:
        """As it is chosen on the command line."""
        codec = "" if self.codec == "none" else f"-{self.codec}"
        partitions = "" if self.partitions == 1 else f"-{self.partitions}p"
        return "throughput-" + size_name(self.record_bytes).replace(" ", "") + codec + partitions

    @property
    def is_plain(self) -> bool:
        """One partition, no codec: what the machine's own limit and the fsync targets are compared with."""
        return self.codec == "none" and self.partitions == 1


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    cells: tuple[Cell, ...]
    request_seconds: float
    steady_seconds: float
    """Measured seconds at a steady rate."""
    steady_skip_seconds: float
    """Seconds before them that do not count."""
    cold_bytes: int
    """What lies on disk for the reader far behind."""
    readers_seconds: float
    """Measured seconds at a steady rate with four readers, once without and once with the cold one."""
    warm_up_seconds: float
    """Least load that each peer gets before anything counts."""
    left_out: tuple[str, ...] = ()
    """Scenarios that are run only when they are named."""


def _cells(sizes: dict[int, int], raw_seconds: float, *, codec: str, partitions: int) -> tuple[Cell, ...]:
    return tuple(
        Cell(record_bytes, volume, raw_seconds, codec, partitions) for record_bytes, volume in sizes.items()
    )


LARGE = {100: 400 * MB, 1024: 1200 * MB, 10240: 1500 * MB}
SMALL = {100: 150 * MB, 1024: 500 * MB, 10240: 600 * MB}

FULL = Plan(
    rounds=5,
    cells=(
        *_cells(LARGE, 1.2, codec="none", partitions=1),
        *_cells({1024: 1200 * MB}, 1.2, codec="lz4", partitions=1),
        *_cells({100: 150 * MB, 10240: 600 * MB}, 0.7, codec="lz4", partitions=1),
        *_cells(SMALL, 0.7, codec="none", partitions=6),
        *_cells(SMALL, 0.7, codec="lz4", partitions=6),
    ),
    request_seconds=2.0,
    steady_seconds=20.0,
    steady_skip_seconds=3.0,
    cold_bytes=1000 * MB,
    readers_seconds=6.0,
    warm_up_seconds=15.0,
)
QUICK = Plan(
    rounds=2,
    cells=(
        *_cells({100: 80 * MB, 1024: 300 * MB, 10240: 400 * MB}, 0.5, codec="none", partitions=1),
        *_cells({1024: 300 * MB}, 0.5, codec="lz4", partitions=1),
    ),
    request_seconds=1.0,
    steady_seconds=3.0,
    steady_skip_seconds=1.0,
    cold_bytes=200 * MB,
    readers_seconds=2.0,
    warm_up_seconds=4.0,
    left_out=("latency-linger0", "readers"),
)
