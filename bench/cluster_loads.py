"""What one round of `bench.cluster` does to one cluster: produce with acks=all to three replicas, and a steady rate from end to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from bench import children, latency, load, memory_at_hand
from bench.cluster_peers import BROKERS, MeasuredCluster
from bench.payload import CALL_RECORDS, size_name
from bench.plan import MB
from bench.results import Metric, Results

GB = 1e9
PARTITIONS = 6
SMALL_BATCH_BYTES = 16_384
"""What Kafka's own producer gathers by default; librdkafka gathers a million bytes."""


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """Something measured on each cluster in turn, chosen by its name."""

    name: str
    run: Callable[[MeasuredCluster, Results], None]
    headline: Metric


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of records to produce."""

    record_bytes: int
    volume: int
    codec: str = "none"
    batch_bytes: int = 1_000_000

    @property
    def label(self) -> str:
        codec = "" if self.codec == "none" else f" {self.codec}"
        batches = ", batches of 16 KiB" if self.batch_bytes == SMALL_BATCH_BYTES else ""
        return size_name(self.record_bytes) + codec + batches

    @property
    def name(self) -> str:
        codec = "" if self.codec == "none" else f"-{self.codec}"
        batches = "-16KiB-batches" if self.batch_bytes == SMALL_BATCH_BYTES else ""
        return "throughput-" + size_name(self.record_bytes).replace(" ", "") + codec + batches

    @property
    def records(self) -> int:
        return self.volume // self.record_bytes // CALL_RECORDS * CALL_RECORDS


CELLS = (
    Cell(1024, 500 * MB),
    Cell(1024, 800 * MB, "lz4"),
    Cell(100, 150 * MB),
    Cell(100, 150 * MB, "lz4"),
    Cell(1024, 200 * MB, batch_bytes=SMALL_BATCH_BYTES),
)


def produced(label: str) -> Metric:
    return Metric(f"produce {label}", "MB/s", True)


def broker_cpu(label: str) -> Metric:
    return Metric(f"CPU of three brokers per GB, {label}", "s", False)


def client_cpu(label: str) -> Metric:
    return Metric(f"client CPU per GB, {label}", "s", False)


def produce(cluster: MeasuredCluster, topic: str, cell: Cell, *, partitions: int = PARTITIONS) -> float:
    """Seconds until every record is acknowledged by leader and followers."""
    return children.run(
        load.produce,
        cluster.bootstrap,
        topic,
        record_bytes=cell.record_bytes,
        records=cell.records,
        codec=cell.codec,
        partitions=partitions,
        batch_bytes=cell.batch_bytes,
    )


def throughput(cell: Cell) -> ClusterLoad:
    def run(cluster: MeasuredCluster, results: Results) -> None:
        volume = cell.records * cell.record_bytes
        with cluster.topic(cell.name, partitions=PARTITIONS) as topic:
            with memory_at_hand.at_hand(BROKERS * volume):
                brokers, client = cluster.cpu_seconds(), children.cpu_seconds()
                seconds = produce(cluster, topic, cell)
            brokers, client = cluster.cpu_seconds() - brokers, children.cpu_seconds() - client
        results.add(produced(cell.label), cluster.name, volume / MB / seconds)
        results.add(broker_cpu(cell.label), cluster.name, brokers / (volume / GB))
        results.add(client_cpu(cell.label), cluster.name, client / (volume / GB))

    return ClusterLoad(cell.name, run, produced(cell.label))


def latency_metric(name: str, suffix: str) -> Metric:
    return Metric(f"end to end {name} at 5,000 records/s{suffix}", "ms", False)


def steady(linger_ms: int, *, seconds: float, skip_seconds: float) -> ClusterLoad:
    suffix = "" if linger_ms == latency.LINGER_MS else f", linger.ms={linger_ms}"
    busy = Metric(f"CPU of three brokers at 5,000 records/s{suffix}", "% of a core", False)

    def run(cluster: MeasuredCluster, results: Results) -> None:
        with cluster.topic("latency", partitions=1) as topic:
            cpu, began = cluster.cpu_seconds(), time.monotonic()
            found = latency.steady(
                cluster.bootstrap, topic, seconds=seconds, skip_seconds=skip_seconds, linger_ms=linger_ms
            )
            share = (cluster.cpu_seconds() - cpu) / (time.monotonic() - began)
        for name, value in zip(("p50", "p99", "p99.9"), found, strict=True):
            results.add(latency_metric(name, suffix), cluster.name, value)
        results.add(busy, cluster.name, 100 * share)

    name = "latency" if linger_ms == latency.LINGER_MS else f"latency-linger{linger_ms}"
    return ClusterLoad(name, run, latency_metric("p99", suffix))


def loads() -> list[ClusterLoad]:
    """Everything that `--scenarios` can choose from, in the order it is run in."""
    return [
        *(throughput(cell) for cell in CELLS),
        steady(latency.LINGER_MS, seconds=10.0, skip_seconds=3.0),
        steady(0, seconds=10.0, skip_seconds=3.0),
    ]


def warm_up(cluster: MeasuredCluster, seconds: float) -> None:
    """Let a JIT compile and caches fill before anything counts: every kind of load, again and again, for so long."""
    unused = Results(baseline="")
    until = time.monotonic() + seconds
    while True:
        for cell in CELLS:
            throughput(replace(cell, volume=cell.volume // 8)).run(cluster, unused)
        for linger_ms in (latency.LINGER_MS, 0):
            steady(linger_ms, seconds=1.0, skip_seconds=1.0).run(cluster, unused)
        if time.monotonic() > until:
            break
