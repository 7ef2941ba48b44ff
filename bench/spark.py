"""Spark's source and sink beside Spark's own Kafka connector, segments and warm Parquet: rows per second and processor time, in alternating rounds on one broker.

    python -m bench.spark                       # five rounds of everything, about two hours
    python -m bench.spark --quick               # a tenth of the rows, one round: to try it
    python -m bench.spark --kinds sink --sizes 1024 --codecs none

All on Spark 4.2.0, for which the connector exists, local[2], in a fresh Java for each kind of load; two rounds before the first are not counted. The broker is Tidelog in a process of its own with
durability=replicated. Processor time is that of the driver, its Java and its Python workers; the broker's stands beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from bench import memory_at_hand, spark_plan, spark_report
from bench.run import machine
from bench.spark_data import Data, delete_topic, make, make_topic
from bench.spark_plan import OURS, PARQUET, PRUNED, SEGMENTS, TUNED, TUNED_READ, TUNED_WRITE, VARIANTS
from bench.spark_report import Load, Sample
from bench.spark_session import SparkChild
from bench.topics import QUICK_DELETION
from tools.peers.process import Peer
from tools.peers.spark_jvm import SPARK_VERSION, connector_jars, connector_name, spark_python
from tools.peers.tidelog import TidelogPeer

TINY_SECONDS = 20.0
WARM_UPS = 2
"""Rounds that do not count: Java compiles what is used often while it runs."""


class Asked(NamedTuple):
    work: str
    arguments: dict[str, Any]


class Bench:
    def __init__(self, peer: Peer, console: Console, *, tiny_seconds: float, stream_rows: int) -> None:
        self._peer = peer
        self._console = console
        self._tiny_seconds = tiny_seconds
        self._stream_rows = stream_rows
        self.samples: dict[tuple[Load, str], list[Sample]] = defaultdict(list)

    def run(self, kind: str, data: Data, rounds: int) -> None:
        """A fresh Java; every variant twice for nothing, then `rounds` times, each time in another order."""
        variants = VARIANTS[kind]
        load = Load(kind, data.size, data.codec)
        with SparkChild() as child:
            for number in range(1 - WARM_UPS, rounds + 1):
                turn = number % len(variants)
                for variant in variants[turn:] + variants[:turn]:
                    sample = self._measure(child, kind, variant, data)
                    counted = f"round {number}" if number > 0 else "warm-up"
                    self._console.print(f"{counted:8} {load!s:22} {variant:20} {sample}", highlight=False)
                    if number > 0:
                        self.samples[load, variant].append(sample)

    def _measure(self, child: SparkChild, kind: str, variant: str, data: Data) -> Sample:
        if kind == "sink":
            return self._sink(child, variant, data)
        with self._topic() if kind == "tiny" else nullcontext("") as topic:
            asked = self._asked(kind, variant, data, topic)
            before = self._peer.cpu_seconds()
            answer = child.ask(asked.work, **asked.arguments)
            broker = self._peer.cpu_seconds() - before
        if kind == "tiny":
            return Sample(answer["p50"], 0.0, broker)
        if kind == "stream":
            _check(answer["rows"] == data.rows, f"{variant} read {answer['rows']} of {data.rows} rows")
            return Sample(answer["rate"], answer["cpu"], broker)
        whole = data.rows * data.size
        _check(answer["sum"] in (None, whole), f"{variant} found {answer['sum']} of {whole} bytes")
        return Sample(data.rows / answer["seconds"], answer["cpu"], broker)

    def _asked(self, kind: str, variant: str, data: Data, topic: str) -> Asked:
        servers = {"kafka.bootstrap.servers": self._peer.bootstrap, "subscribe": data.topic}
        format = "tidelog" if variant in (OURS, SEGMENTS, PRUNED) else "kafka"
        tuned = TUNED_READ if variant == TUNED else {}
        if kind == "tiny":
            options = {**servers, "subscribe": topic}
            where = {"servers": self._peer.bootstrap, "topic": topic, "seconds": self._tiny_seconds}
            return Asked("trickle", {"format": format, "options": options, **where})
        if kind == "stream":
            limits = {"maxOffsetsPerTrigger": str(self._stream_rows), "startingOffsets": "earliest"}
            arguments = {"format": format, "options": {**servers, **limits, **tuned}}
            return Asked("stream", {**arguments, "skipped": spark_plan.STREAM_SKIPPED})
        if variant == PARQUET:
            return Asked(
                "read", {"format": "parquet", "options": {}, "action": kind, "path": str(data.parquet)}
            )
        if variant == SEGMENTS:
            options = {"path": str(data.segments), "subscribe": data.topic}
            return Asked("read", {"format": format, "options": options, "action": kind})
        columns = {"columns": "value"} if variant == PRUNED else {}
        return Asked("read", {"format": format, "options": {**servers, **tuned, **columns}, "action": kind})

    def _sink(self, child: SparkChild, variant: str, data: Data) -> Sample:
        with self._topic() as topic, memory_at_hand.at_hand(data.rows * data.size):
            options = {
                "kafka.bootstrap.servers": self._peer.bootstrap,
                "topic": topic,
                "kafka.compression.type": data.codec,
                **(TUNED_WRITE if variant == TUNED else {}),
            }
            format = "tidelog" if variant == OURS else "kafka"
            before = self._peer.cpu_seconds()
            answer = child.ask("write", format=format, options=options, path=str(data.parquet))
            broker = self._peer.cpu_seconds() - before
        return Sample(data.rows / answer["seconds"], answer["cpu"], broker)

    def _topic(self) -> _Topic:
        return _Topic(self._peer.bootstrap)


class _Topic:
    """One that is there for a measurement."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._name = f"bench-{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> str:
        asyncio.run(make_topic(self._servers, self._name))
        return self._name

    def __exit__(self, *_exc: object) -> None:
        asyncio.run(delete_topic(self._servers, self._name))


def _check(is_true: bool, message: str) -> None:
    if not is_true:
        raise RuntimeError(message)


def loads(kinds: list[str], made: list[Data]) -> Iterator[tuple[str, Data]]:
    for data in made:
        for kind in kinds:
            if kind != "tiny":
                yield kind, data
    if "tiny" in kinds:
        yield "tiny", made[0]  # what the records are is of no importance


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--sizes", default="100,1024", help="bytes of a value, separated by commas")
    parser.add_argument("--codecs", default=",".join(spark_plan.CODECS))
    parser.add_argument("--kinds", default=",".join(spark_plan.KINDS))
    parser.add_argument("--json", type=Path, help="also write every sample here")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 5)
    share = 10 if options.quick else 1
    counts = {size: spark_plan.COUNTS[size] // share for size in map(int, options.sizes.split(","))}
    console = Console(width=max(Console().width, 150), markup=False)
    spark_python(), connector_jars()  # before anything else is begun
    folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-spark-"))
    try:
        with TidelogPeer(durability="replicated", settings=QUICK_DELETION) as peer:
            console.print("writing what is read", highlight=False)
            made = make(peer, folder, counts, options.codecs.split(","))
            bench = Bench(
                peer,
                console,
                tiny_seconds=TINY_SECONDS,
                stream_rows=spark_plan.STREAM_ROWS // share,
            )
            for kind, data in loads(options.kinds.split(","), made):
                bench.run(kind, data, rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    spark_report.show(bench.samples, console)
    counted = ", ".join(f"{count:,} × {size} B" for size, count in counts.items())
    console.print(
        f"{machine()}; {counted}; {rounds} rounds; Spark {SPARK_VERSION}, local[2]; {connector_name()}; tuned: {TUNED_READ}, {TUNED_WRITE}",
        highlight=False,
    )
    if options.json is not None:
        options.json.write_text(json.dumps(spark_report.as_json(bench.samples), indent=1))


if __name__ == "__main__":
    main()
