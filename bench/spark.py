"""Spark's source and sink beside Spark's own Kafka connector, segments and warm Parquet: rows per second and processor time, in alternating rounds on one broker.

    python -m bench.spark                       # five rounds of everything, about three quarters of an hour
    python -m bench.spark --quick               # a tenth of the rows, one round: to try it
    python -m bench.spark --kinds sink --sizes 1024
    python -m bench.spark --json FILE           # every load is kept in FILE once it is measured; run it again to go on where it was stopped

All on Spark 4.2.0, for which the connector exists, local[2], in a fresh Java for each kind of load; two rounds before the first are not counted. The broker is Tidelog in a process of its own with
durability=replicated. Processor time is that of the driver, its Java and its Python workers; the broker's stands beside it. Files of several runs make one table with `python -m bench.spark_report`.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from bench import memory_at_hand, spark_plan, spark_report
from bench.run import machine
from bench.spark_data import NO_DATA, Data, delete_topic, make, make_topic
from bench.spark_plan import (
    OURS,
    PARQUET,
    PARTITIONS,
    PRUNED,
    READY,
    SEGMENTS,
    TUNED,
    TUNED_READ,
    TUNED_WRITE,
    VARIANTS,
)
from bench.spark_ready import NAME
from bench.spark_samples import Load, Measured, Sample, Samples
from bench.spark_session import SparkChild
from bench.topics import QUICK_DELETION
from tools.peers.process import Peer
from tools.peers.spark_jvm import SPARK_VERSION, connector_jars, connector_name, spark_python
from tools.peers.tidelog import TidelogPeer

TINY_SECONDS = 20.0
WARM_UPS = 2
"""Rounds that do not count: Java compiles what is used often while it runs."""
ROUNDS = 5


class Asked(NamedTuple):
    work: str
    arguments: dict[str, Any]


class Bench:
    def __init__(self, peer: Peer, console: Console, *, share: int) -> None:
        self._peer = peer
        self._console = console
        self._share = share
        self._began = time.perf_counter()

    def run(self, load: Load, data: Data, rounds: int) -> Samples:
        """A fresh Java; every variant twice for nothing, then `rounds` times, each time in another order."""
        variants = VARIANTS[load.kind]
        found: dict[tuple[Load, str], list[Sample]] = {(load, variant): [] for variant in variants}
        with SparkChild() as child:
            for number in range(1 - WARM_UPS, rounds + 1):
                turn = number % len(variants)
                for variant in variants[turn:] + variants[:turn]:
                    sample = self._measure(child, load.kind, variant, data)
                    counted = f"round {number}" if number > 0 else "warm-up"
                    self.say(f"{counted:8} {load!s:22} {variant:20} {sample}")
                    if number > 0:
                        found[load, variant].append(sample)
        return found

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.perf_counter() - self._began), 60)
        self._console.print(f"{minutes:3}:{seconds:02} {text}", highlight=False)

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
            where = {"servers": self._peer.bootstrap, "topic": topic, "seconds": TINY_SECONDS}
            return Asked("trickle", {"format": format, "options": options, **where})
        if kind == "stream":
            rows = spark_plan.STREAM_ROWS[data.size] // self._share
            if variant == READY:
                ready = {"rows": data.rows, "size": data.size, "tasks": PARTITIONS, "batchRows": rows}
                options = {name: str(value) for name, value in ready.items()}
                return Asked(
                    "stream", {"format": NAME, "options": options, "skipped": spark_plan.STREAM_SKIPPED}
                )
            limits = {"maxOffsetsPerTrigger": str(rows), "startingOffsets": "earliest"}
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
        written = data.rows * data.size
        # As much again for what Java and Python hold on the way: they would take what the log is to have.
        with self._topic() as topic, memory_at_hand.at_hand(2 * written):
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


def loads(kinds: Sequence[str], sizes: Sequence[int], codecs: Sequence[str] | None) -> list[Load]:
    """In the order of the records that they read. The codecs are those of the plan, unless others are asked for."""
    wanted = [
        Load(kind, size, codec)
        for size in sizes
        for codec in codecs or spark_plan.CODECS
        for kind in kinds
        if kind != "tiny" and (codecs or codec in spark_plan.CODECS_OF[kind])
    ]
    return wanted + ([Load("tiny", 100, "none")] if "tiny" in kinds else [])


def commit() -> str:
    """What is measured, with a mark if files are not as they were committed."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--sizes", default="100,1024", help="bytes of a value, separated by commas")
    parser.add_argument(
        "--codecs", help="for all kinds; else `noop` with and without lz4, and the others without"
    )
    parser.add_argument("--kinds", default=",".join(spark_plan.KINDS))
    parser.add_argument(
        "--json",
        type=Path,
        help="keep every load here once it is measured, and leave out those that are here",
    )
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    share = 10 if options.quick else 1
    console = Console(width=max(Console().width, 150), markup=False)
    about = {
        "commit": commit(),
        "on": machine(),
        "rows": ", ".join(f"{count // share:,} × {size} B" for size, count in spark_plan.COUNTS.items()),
        "Spark": f"{SPARK_VERSION}, local[2]; {connector_name()}",
        "tuned": f"{TUNED_READ}, {TUNED_WRITE}",
    }
    measured = Measured(about)
    if options.json is not None and options.json.exists():
        measured = Measured.read(options.json)
        if measured.about != about:
            parser.error(f"{options.json} holds what was measured with {measured.about}; this is {about}")
    wanted = loads(
        options.kinds.split(","),
        [int(size) for size in options.sizes.split(",")],
        options.codecs.split(",") if options.codecs else None,
    )
    measure(
        [load for load in wanted if not measured.has(load)], measured, options.json, rounds, share, console
    )
    spark_report.show_all(measured, console)


def measure(
    wanted: list[Load], measured: Measured, kept: Path | None, rounds: int, share: int, console: Console
) -> None:
    if not wanted:
        return
    spark_python(), connector_jars()  # before anything else is begun
    folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-spark-"))
    try:
        with TidelogPeer(durability="replicated", settings=QUICK_DELETION) as peer:
            bench = Bench(peer, console, share=share)
            bench.say("writing what is read")
            kinds = dict.fromkeys((load.size, load.codec) for load in wanted if load.kind != "tiny")
            made = make(peer, folder, {kind: spark_plan.COUNTS[kind[0]] // share for kind in kinds})
            for load in wanted:
                data = made.get((load.size, load.codec), NO_DATA)
                measured.add(bench.run(load, data, rounds))
                if kept is not None:
                    measured.write(kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
