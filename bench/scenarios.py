"""What one round does to one running broker. Each scenario makes its topic, measures, and takes the topic away again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench import children, latency, load, machine, memory_at_hand, raw_load, readers
from bench.payload import CALL_RECORDS
from bench.plan import DEPTHS, MB, Cell, Plan
from bench.results import Metric, Results
from bench.topics import stored_records, topic_of
from tools.peers.process import Peer

GB = 1e9
IDLE_SECONDS = 1.5
REST_SECONDS = 1.2
"""Longer than the second between two rounds of a broker's housekeeping."""
REST_SHARE_MAX = 0.1
REST_SECONDS_MAX = 10.0
MACHINE = "machine"
"""The column of the machine's own limit, which no broker takes part in."""
WRITE_LIMIT = "socket into a file"
SYNC_LIMIT = "socket into a file, fdatasync"
READ_LIMIT = "file into a socket"


def limit_metric(kind: str, label: str) -> Metric:
    return Metric(f"{kind}, beside {label}", "MB/s", True)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Something measured on each peer in turn, chosen by its name."""

    name: str
    run: Callable[[Peer, Results], None]
    headline: Metric
    """What the progress line shows."""
    beside_kafka_fsync: bool = False
    """Whether it is worth the time that Kafka takes with a flush per batch."""
    limit: Callable[[Path, Results], None] | None = None
    """The same bytes without a broker."""


def throughput(cell: Cell) -> Scenario:
    """Produce, consume and fetch without looking, the same records; then produce them from ready-made requests."""

    def run(peer: Peer, results: Results) -> None:
        with topic_of(peer, cell.name, partitions=cell.partitions, large=True) as topic:
            _through_librdkafka(cell, peer, topic, results)
            if cell.codec == "none":  # the bytes of a codec are not the records' bytes
                _raw_fetch(cell, peer, topic, results)
            os.sync()
            _raw_produce(cell, peer, topic, results)

    return Scenario(
        cell.name,
        run,
        Metric(f"produce {cell.label}", "MB/s", True),
        beside_kafka_fsync=cell.is_plain,
        limit=_limit(cell) if cell.is_plain else None,
    )


def _through_librdkafka(cell: Cell, peer: Peer, topic: str, results: Results) -> None:
    records = cell.volume // cell.record_bytes // CALL_RECORDS * CALL_RECORDS
    volume = records * cell.record_bytes
    with memory_at_hand.at_hand(volume):
        cpu, client_cpu = peer.cpu_seconds(), children.cpu_seconds()
        seconds = children.run(
            load.produce,
            peer.bootstrap,
            topic,
            record_bytes=cell.record_bytes,
            records=records,
            codec=cell.codec,
            partitions=cell.partitions,
        )
    results.add(Metric(f"produce {cell.label}", "MB/s", True), peer.name, volume / MB / seconds)
    results.add(
        Metric(f"broker CPU per GB produced, {cell.label}", "s", False),
        peer.name,
        (peer.cpu_seconds() - cpu) / (volume / GB),
    )
    results.add(
        Metric(f"client CPU per GB produced, {cell.label}", "s", False),
        peer.name,
        (children.cpu_seconds() - client_cpu) / (volume / GB),
    )
    come_to_rest(peer)
    cpu, client_cpu = peer.cpu_seconds(), children.cpu_seconds()
    seconds = children.run(load.consume, peer.bootstrap, topic, records=records, partitions=cell.partitions)
    results.add(Metric(f"consume {cell.label}", "MB/s", True), peer.name, volume / MB / seconds)
    results.add(
        Metric(f"broker CPU per GB consumed, {cell.label}", "s", False),
        peer.name,
        (peer.cpu_seconds() - cpu) / (volume / GB),
    )
    results.add(
        Metric(f"client CPU per GB consumed, {cell.label}", "s", False),
        peer.name,
        (children.cpu_seconds() - client_cpu) / (volume / GB),
    )


def come_to_rest(peer: Peer) -> None:
    """What was produced is written back and synced now, not while somebody reads: a broker syncs a segment soon after it is full, and a gigabyte of
    that would count as the cost of consuming.
    """
    os.sync()
    until = time.perf_counter() + REST_SECONDS_MAX
    while time.perf_counter() < until:
        before = peer.cpu_seconds()
        time.sleep(REST_SECONDS)
        if peer.cpu_seconds() - before <= REST_SHARE_MAX * REST_SECONDS:
            return


def _raw_fetch(cell: Cell, peer: Peer, topic: str, results: Results) -> None:
    rate = children.run(
        raw_load.fetch_and_discard,
        peer.bootstrap,
        topic,
        partitions=cell.partitions,
        seconds=cell.raw_seconds,
    )
    results.add(Metric(f"raw fetch {cell.label}", "MB/s", True), peer.name, rate.megabytes_per_second)


def _raw_produce(cell: Cell, peer: Peer, topic: str, results: Results) -> None:
    stored_before = stored_records(peer.bootstrap, topic, cell.partitions)
    with memory_at_hand.at_hand(2 * cell.volume):
        rate = children.run(
            raw_load.produce_frames,
            peer.bootstrap,
            topic,
            record_bytes=cell.record_bytes,
            seconds=cell.raw_seconds,
            bytes_max=2 * cell.volume,
            codec=cell.codec,
            partitions=cell.partitions,
            stored_before=stored_before,
        )
    results.add(Metric(f"raw produce {cell.label}", "MB/s", True), peer.name, rate.megabytes_per_second)


def _limit(cell: Cell) -> Callable[[Path, Results], None]:
    """As many bytes without a broker."""

    def run(folder: Path, results: Results) -> None:
        path = folder / "machine-limit"
        for kind, sync in ((WRITE_LIMIT, False), (SYNC_LIMIT, True)):
            with memory_at_hand.at_hand(cell.volume):
                rate = machine.socket_into_file(path, cell.volume, sync=sync)
            results.add(limit_metric(kind, cell.label), MACHINE, rate.megabytes_per_second)
        with memory_at_hand.at_hand(cell.volume):
            rate = machine.file_into_socket(path, cell.volume)
        results.add(limit_metric(READ_LIMIT, cell.label), MACHINE, rate.megabytes_per_second)

    return run


def requests(depth: int, seconds: float) -> Scenario:
    metric = Metric(f"one-record requests at depth {depth}", "/s", True)

    def run(peer: Peer, results: Results) -> None:
        with topic_of(peer, f"depth{depth}") as topic:
            per_second = children.run(
                raw_load.one_record_requests, peer.bootstrap, topic, depth=depth, seconds=seconds
            )
            results.add(metric, peer.name, per_second)

    return Scenario(f"requests-{depth}", run, metric)


def steady_latency(plan: Plan) -> Scenario:
    """End to end with librdkafka's default linger.ms=5, which gathers some 25 records into a request."""

    def run(peer: Peer, results: Results) -> None:
        with topic_of(peer, "latency") as topic:
            cpu, began = peer.cpu_seconds(), time.monotonic()
            found = latency.steady(
                peer.bootstrap, topic, seconds=plan.steady_seconds, skip_seconds=plan.steady_skip_seconds
            )
            busy = (peer.cpu_seconds() - cpu) / (time.monotonic() - began)
        add_percentiles(results, peer, "", found)
        results.add(Metric("broker CPU at 5,000 records/s", "% of a core", False), peer.name, 100 * busy)

    return Scenario("latency", run, latency_metric("p99"), beside_kafka_fsync=True)


def steady_latency_at_once(plan: Plan) -> Scenario:
    """The same with linger.ms=0: a request per record or two, so that the broker's own cost shows."""

    def run(peer: Peer, results: Results) -> None:
        with topic_of(peer, "latency") as topic:
            found = latency.steady(
                peer.bootstrap,
                topic,
                seconds=plan.steady_seconds / 2,
                skip_seconds=plan.steady_skip_seconds,
                linger_ms=0,
            )
        add_percentiles(results, peer, ", linger.ms=0", found)

    return Scenario("latency-linger0", run, latency_metric("p99", ", linger.ms=0"))


def add_percentiles(results: Results, peer: Peer, suffix: str, found: latency.Percentiles) -> None:
    for name, value in zip(("p50", "p99", "p99.9"), found, strict=True):
        results.add(latency_metric(name, suffix), peer.name, value)


def latency_metric(name: str, suffix: str = "") -> Metric:
    return Metric(f"end to end {name} at 5,000 records/s{suffix}", "ms", False)


def five_readers(plan: Plan) -> Scenario:
    return Scenario("readers", lambda peer, results: readers.run(plan, peer, results), readers.PRODUCED)


def memory() -> Scenario:
    """After a round's load: the most that the process held during it. Must come last."""
    metric = Metric("RSS under load, peak", "MB", False)

    def run(peer: Peer, results: Results) -> None:
        results.add(metric, peer.name, peer.rss_peak_bytes() / MB)

    return Scenario("memory", run, metric)


def scenarios(plan: Plan) -> list[Scenario]:
    """Everything that `--scenarios` can choose from, in the order it is run in."""
    return [
        *(throughput(cell) for cell in plan.cells),
        *(requests(depth, plan.request_seconds) for depth in DEPTHS),
        steady_latency(plan),
        steady_latency_at_once(plan),
        five_readers(plan),
        memory(),
    ]


def warm_up(peer: Peer, plan: Plan) -> None:
    """Let a JIT compile and caches fill before anything counts."""
    unused = Results(baseline="")
    began = time.monotonic()
    small = [replace(cell, volume=min(cell.volume, 40 * MB), raw_seconds=0.5) for cell in plan.cells[:4]]
    while time.monotonic() - began < plan.warm_up_seconds:
        for cell in small:
            throughput(cell).run(peer, unused)
        requests(5, 0.5).run(peer, unused)
    steady_latency(replace(plan, steady_seconds=1.0, steady_skip_seconds=1.0)).run(peer, unused)


def start_and_idle(peer: Peer, results: Results) -> None:
    """A fresh broker on an empty directory: seconds until it serves, and what it then occupies."""
    try:
        peer.start()
        time.sleep(IDLE_SECONDS)
        results.add(Metric("start-up, empty directory", "s", False), peer.name, peer.startup_seconds)
        results.add(Metric("RSS idle", "MB", False), peer.name, peer.rss_bytes() / MB)
    finally:
        peer.stop()
