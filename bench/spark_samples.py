"""What `bench.spark` measured, and the file that it is kept in: an hour of rounds may be taken in parts, a load at a time. Knows no table and no aim."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


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


class SamplesError(Exception):
    """Samples that do not belong together."""


@dataclass
class Measured:
    """Samples of one state of the code on one machine. `about` says which."""

    about: dict[str, Any]
    samples: defaultdict[tuple[Load, str], list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def has(self, load: Load) -> bool:
        return any(known == load for known, _ in self.samples)

    def add(self, others: Samples) -> None:
        for place, found in others.items():
            self.samples[place] += found

    def write(self, path: Path) -> None:
        samples = [
            {**load._asdict(), "by": variant, "samples": [sample._asdict() for sample in found]}
            for (load, variant), found in self.samples.items()
        ]
        path.write_text(json.dumps({"about": self.about, "samples": samples}, indent=1))

    @classmethod
    def read(cls, path: Path) -> Measured:
        stored = json.loads(path.read_text())
        found = cls(stored["about"])
        for each in stored["samples"]:
            load = Load(each["kind"], each["size"], each["codec"])
            found.samples[load, each["by"]] = [Sample(**sample) for sample in each["samples"]]
        return found


def merged(paths: Iterable[Path]) -> Measured:
    """The rounds of all files, one behind the other: a ratio is still one of a round. What was measured differently is not mixed."""
    whole: Measured | None = None
    for path in paths:
        part = Measured.read(path)
        if whole is None:
            whole = Measured(part.about)
        elif whole.about != part.about:
            raise SamplesError(f"{path} was measured with {part.about}, the others with {whole.about}")
        whole.add(part.samples)
    if whole is None:
        raise SamplesError("no file of samples")
    return whole
