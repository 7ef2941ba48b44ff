"""What one round does to one running broker. Each scenario makes its topic, measures, and takes the topic away again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench import load
from bench.results import Metric, Results
from tools.peers.process import Peer

GB = 1e9
MB = 1e6
IDLE_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything; `quick` makes do with less."""

    rounds: int
    produce_bytes: dict[int, int]
    request_seconds: float
    codecs: tuple[str, ...]
    partitions: tuple[int, ...]


FULL = Plan(
    rounds=5,
    produce_bytes={100: 100_000_000, 1024: 400_000_000, 10240: 800_000_000},
    request_seconds=2.0,
    codecs=("none",),
    partitions=(1,),
)
QUICK = Plan(
    rounds=2,
    produce_bytes={100: 40_000_000, 1024: 150_000_000, 10240: 300_000_000},
    request_seconds=1.0,
    codecs=("none",),
    partitions=(1,),
)
DEPTHS = (1, 5, 50)

Scenario = Callable[[Peer, Results], None]


def size_name(record_bytes: int) -> str:
    return f"{record_bytes} B" if record_bytes < 1024 else f"{record_bytes // 1024} KiB"


def topic_name(prefix: str) -> str:
    return f"bench-{prefix}-{time.time_ns()}"


def throughput(record_bytes: int, total_bytes: int, *, codec: str, partitions: int) -> Scenario:
    """Produce, consume with librdkafka, and fetch without looking, the same records."""
    records = total_bytes // record_bytes // load.CALL_RECORDS * load.CALL_RECORDS
    volume = records * record_bytes
    what = size_name(record_bytes)
    if codec != "none":
        what += f" {codec}"
    if partitions != 1:
        what += f" {partitions} partitions"

    def run(peer: Peer, results: Results) -> None:
        topic = topic_name(f"{record_bytes}")
        load.create_topic(peer.bootstrap, topic, partitions=partitions)
        try:
            cpu = peer.cpu_seconds()
            seconds = load.produce(
                peer.bootstrap,
                topic,
                record_bytes=record_bytes,
                records=records,
                codec=codec,
                partitions=partitions,
            )
            results.add(Metric(f"produce {what}", "MB/s", True), peer.name, volume / MB / seconds)
            results.add(
                Metric(f"broker CPU per GB produced, {what}", "s", False),
                peer.name,
                (peer.cpu_seconds() - cpu) / (volume / GB),
            )
            cpu = peer.cpu_seconds()
            seconds = load.consume(peer.bootstrap, topic, records=records, partitions=partitions)
            results.add(Metric(f"consume {what}", "MB/s", True), peer.name, volume / MB / seconds)
            results.add(
                Metric(f"broker CPU per GB consumed, {what}", "s", False),
                peer.name,
                (peer.cpu_seconds() - cpu) / (volume / GB),
            )
            if partitions == 1:
                seconds, fetched = load.fetch_and_discard(peer.bootstrap, topic, end=records)
                results.add(Metric(f"raw fetch {what}", "MB/s", True), peer.name, fetched / MB / seconds)
        finally:
            load.delete_topic(peer.bootstrap, topic)
            os.sync()  # one peer's dirty pages must not be written back in the other's time

    return run


def requests(depth: int, seconds: float) -> Scenario:
    def run(peer: Peer, results: Results) -> None:
        topic = topic_name(f"depth{depth}")
        load.create_topic(peer.bootstrap, topic)
        try:
            per_second = load.one_record_requests(peer.bootstrap, topic, depth=depth, seconds=seconds)
            metric = Metric(f"one-record requests at depth {depth}", "/s", True)
            results.add(metric, peer.name, per_second)
        finally:
            load.delete_topic(peer.bootstrap, topic)

    return run


def rss_under_load(peer: Peer, results: Results) -> None:
    """After the round's load: what the process then holds."""
    results.add(Metric("RSS under load", "MB", False), peer.name, peer.rss_bytes() / MB)


def scenarios(plan: Plan) -> list[Scenario]:
    chosen = [
        throughput(record_bytes, total, codec=codec, partitions=partitions)
        for partitions in plan.partitions
        for codec in plan.codecs
        for record_bytes, total in plan.produce_bytes.items()
    ]
    return [*chosen, *(requests(depth, plan.request_seconds) for depth in DEPTHS), rss_under_load]


def warm_up(peer: Peer) -> None:
    """Let a JIT compile and caches fill before anything counts."""
    unused = Results(baseline="")
    for record_bytes in (100, 1024, 10240):
        throughput(record_bytes, 20_000_000, codec="none", partitions=1)(peer, unused)
    requests(5, 1.0)(peer, unused)


def start_and_idle(peer: Peer, results: Results) -> None:
    """A fresh broker on an empty directory: seconds until it serves, and what it then occupies."""
    try:
        peer.start()
        time.sleep(IDLE_SECONDS)
        results.add(Metric("start-up, empty directory", "s", False), peer.name, peer.startup_seconds)
        results.add(Metric("RSS idle", "MB", False), peer.name, peer.rss_bytes() / MB)
    finally:
        peer.stop()
