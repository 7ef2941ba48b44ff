"""Where the processor time of a read in Spark goes: the broker, the fetch, the CRC, the decoder, the pipe between Python and Java, and Java, for the source and for segments beside warm Parquet.

    python -m bench.spark_where                 # three rounds of 10 million records of 100 B and 2 million of 1 KiB, some minutes
    python -m bench.spark_where --quick         # a tenth of the rows

Spark is asked for whole reads, and the system says what Python and Java have spent. What the Python side does with bytes is measured once more without Spark, stage by stage, in one process; what is left of the
workers' time is the handing over. A source of ready-made Arrow batches (`spark_ready`) shows the same from the other side: it does nothing else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c
from rich.console import Console
from rich.table import Table

from bench.run import machine
from bench.spark import commit
from bench.spark_data import Data, make
from bench.spark_plan import COUNTS, PARTITIONS
from bench.spark_ready import COLUMNS, NAME
from bench.spark_session import SparkChild
from bench.topics import QUICK_DELETION
from tools.peers.process import Peer
from tools.peers.spark_jvm import SPARK_VERSION, connector_jars, spark_python
from tools.peers.tidelog import TidelogPeer

ROUNDS: Final = 3
WARM_UPS: Final = 2
SOURCE, SEGMENTS, READY, READY_UNUSED, PARQUET = (
    "source",
    "segments",
    "ready-made Arrow",
    "ready-made, rows unused",
    "Parquet",
)
BYTES_STAGES: Final = ("fetch or file", "CRC", "decode")
STAGES: Final = ("broker", *BYTES_STAGES, "handing over", "Java")


class Read(NamedTuple):
    """Of one read by Spark, in seconds."""

    wall: float
    python: float
    java: float
    broker: float


def whole(child: SparkChild, peer: Peer, variant: str, data: Data) -> Read:
    servers = {"kafka.bootstrap.servers": peer.bootstrap, "subscribe": data.topic}
    ready = {"rows": str(data.rows), "size": str(data.size), "tasks": str(PARTITIONS)}
    arguments: dict[str, dict[str, Any]] = {
        SOURCE: {"format": "tidelog", "options": servers},
        SEGMENTS: {"format": "tidelog", "options": {"path": str(data.segments), "subscribe": data.topic}},
        READY: {"format": NAME, "options": ready},
        READY_UNUSED: {"format": NAME, "options": ready, "action": "unused"},
        PARQUET: {"format": "parquet", "options": {}, "path": str(data.parquet)},
    }
    before = peer.cpu_seconds()
    answer = child.ask("read", **{"action": "noop", **arguments[variant]})
    spent = answer["programs"]
    java = sum(seconds for name, seconds in spent.items() if "java" in name)
    broker = peer.cpu_seconds() - before if variant == SOURCE else 0.0
    return Read(answer["seconds"], sum(spent.values()) - java, java, broker)


# -- the same bytes without Spark ---------------------------------------------------------------------------------------


def fetched(peer: Peer, data: Data) -> dict[str, float]:
    """Processor seconds of each stage of the source's reader. It fetches in a thread of its own, so that what this one does not spend is the fetch."""
    from tidelog.client.consumer.records import Chunk
    from tidelog.spark.client_options import client_options
    from tidelog.spark.columns import ColumnsOfTask
    from tidelog.spark.fetch import RangesFetch, TaskRange
    from tidelog.spark.warm import warm_client

    client = warm_client(peer.bootstrap, client_options({}, label="bench").settings)
    columns = ColumnsOfTask(COLUMNS)

    def build(chunk: Chunk, end_offset: int) -> None:
        for _ in columns.batches(chunk, end_offset, check_crcs=False):
            pass

    crc = decode = 0.0
    began, began_here = time.process_time(), time.thread_time()
    for partition in range(PARTITIONS):
        wanted = TaskRange(data.topic, partition, 0, data.rows // PARTITIONS)
        fetch = RangesFetch(
            client.cluster, client.settings, [wanted], fail_on_data_loss=True, patience_ms=60_000
        )
        while not fetch.is_over:
            for chunk, end_offset in client.run(fetch.next()):
                crc += _timed(crc32c, chunk.data)
                decode += _timed(build, chunk, end_offset)
    other_threads = time.process_time() - began - (time.thread_time() - began_here)
    here = time.thread_time() - began_here - crc - decode
    return dict(zip(BYTES_STAGES, (other_threads + here, crc, decode), strict=True))


def stored(data: Data) -> dict[str, float]:
    """Processor seconds of each stage of the reader of segments."""
    from tidelog.spark.filters import Narrowing
    from tidelog.spark.segments.options import SegmentOptions
    from tidelog.spark.segments.pieces import PIECE_BYTES, Wanted, read_stretch
    from tidelog.spark.segments.reader import plan_tasks
    from tidelog.spark.segments.rows import Rows, decoder_columns

    options = SegmentOptions.parse({"path": str(data.segments), "subscribe": data.topic})
    stretches = [each for task in plan_tasks(options, Narrowing()) for each in task]
    piece = bytearray(PIECE_BYTES)
    read = crc = 0.0
    for stretch in stretches:
        file = os.open(stretch.path, os.O_RDONLY)
        for position in range(stretch.position, stretch.end_position, PIECE_BYTES):
            view = memoryview(piece)[: min(PIECE_BYTES, stretch.end_position - position)]
            read += _timed(os.preadv, file, [view], position)
            crc += _timed(crc32c, view)
        os.close(file)
    rows, wanted, buffer = Rows(COLUMNS), Wanted(decoder_columns(COLUMNS)), bytearray()

    def all_of_it() -> None:
        for stretch in stretches:
            for found in read_stretch(stretch, wanted, buffer=buffer):
                rows.batch(stretch, found)

    return dict(zip(BYTES_STAGES, (read, crc, _timed(all_of_it) - read - crc), strict=True))


def _timed(work: Callable[..., Any], *arguments: Any) -> float:
    began = time.thread_time()
    work(*arguments)
    return time.thread_time() - began


# -- both side by side ---------------------------------------------------------------------------------------------------


def measure(peer: Peer, data: Data, rounds: int, console: Console) -> None:
    variants = (SOURCE, SEGMENTS, READY, READY_UNUSED, PARQUET)
    reads: dict[str, list[Read]] = {variant: [] for variant in variants}
    bytes_stages: dict[str, list[dict[str, float]]] = {SOURCE: [], SEGMENTS: []}
    with SparkChild() as child:
        for number in range(-WARM_UPS, rounds):
            for variant in variants:
                found = whole(child, peer, variant, data)
                if number >= 0:
                    reads[variant].append(found)
            console.print(f"{data.size} B: round {number + 1} of {rounds}", highlight=False)
    for number in range(-1, rounds):
        for variant, stages in ((SOURCE, fetched(peer, data)), (SEGMENTS, stored(data))):
            if number >= 0:
                bytes_stages[variant].append(stages)
    table = Table(
        title=f"{data.rows:,} × {data.size} B: processor nanoseconds per row, median of {rounds} rounds"
    )
    for name in ("", "rows/s", *STAGES, "sum"):
        table.add_column(name, justify="left" if not name else "right")
    for variant in variants:
        stages = where(reads[variant], bytes_stages.get(variant, []))
        cells = [f"{stages[name] / data.rows * 1e9:,.0f}" if name in stages else "" for name in STAGES]
        rate = data.rows / statistics.median(each.wall for each in reads[variant])
        table.add_row(variant, f"{rate:,.0f}", *cells, f"{sum(stages.values()) / data.rows * 1e9:,.0f}")
    console.print(table)


def where(reads: list[Read], bytes_stages: list[dict[str, float]]) -> dict[str, float]:
    """Seconds of each stage that there is, medians."""
    found = {}
    for name in BYTES_STAGES if bytes_stages else ():
        found[name] = statistics.median(each[name] for each in bytes_stages)
    python = statistics.median(each.python for each in reads)
    if broker := statistics.median(each.broker for each in reads):
        found["broker"] = broker
    return {**found, "handing over": python - sum(found.get(name, 0.0) for name in BYTES_STAGES)} | {
        "Java": statistics.median(each.java for each in reads)
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sizes", default="100,1024")
    parser.add_argument("--codec", default="none")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    console = Console(width=max(Console().width, 140), markup=False)
    spark_python(), connector_jars()  # before anything else is begun
    folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-spark-"))
    try:
        with TidelogPeer(durability="replicated", settings=QUICK_DELETION) as peer:
            counts = {
                (size, options.codec): COUNTS[size] // share for size in map(int, options.sizes.split(","))
            }
            for data in make(peer, folder, counts).values():
                measure(peer, data, options.rounds, console)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(f"commit {commit()}; {machine()}; Spark {SPARK_VERSION}, local[2]", highlight=False)


if __name__ == "__main__":
    main()
