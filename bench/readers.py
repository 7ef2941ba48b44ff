"""Five independent readers of one topic: four at its end, one far behind that reads what no cache holds any more.

First at a steady rate, to see what the reader far behind costs the others in latency; then as fast as the broker takes it.
The bench drops the segments' pages from the cache itself, and the broker's own count of bytes from disk shows that it worked.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench import children, latency, load, memory_at_hand, raw_load
from bench.children import Child, new_event
from bench.latency import Percentiles
from bench.plan import MB, Plan
from bench.results import Metric, Results
from bench.topics import stored_records, topic_of
from tools.peers.process import Peer

AT_THE_TAIL = 4
SKIP_SECONDS = 1.0
RECORD_BYTES = 1024
FULL_SPEED_SHARE = 0.4
"""Of the cold bytes, written at full speed while five read."""
COLD_SHARE_MIN = 0.8
"""Of what the cold reader got must have come from the disk, or it was not cold."""
PATIENCE_SECONDS = 120.0

PRODUCED = Metric("five readers: produce 1 KiB", "MB/s", True)
TAIL = Metric("five readers: the four at the end, together", "MB/s", True)
COLD = Metric("five readers: the cold one", "MB/s", True)
ALONE = "four readers at the end"
BESIDE_COLD = "four readers beside a cold one"


def run(plan: Plan, peer: Peer, results: Results) -> None:
    with topic_of(peer, "readers", large=True) as topic:
        children.run(
            raw_load.produce_frames,
            peer.bootstrap,
            topic,
            record_bytes=RECORD_BYTES,
            seconds=PATIENCE_SECONDS,
            bytes_max=plan.cold_bytes,
        )
        cold_end = stored_records(peer.bootstrap, topic)
        os.sync()  # only written pages can be dropped
        alone = _steady(plan, peer, topic)
        with _cold_reader(peer, topic, cold_end) as cold_rates:
            beside_cold = _steady(plan, peer, topic)
        _add_latency(results, peer, ALONE, alone)
        _add_latency(results, peer, BESIDE_COLD, beside_cold)
        results.add(COLD, peer.name, sum(cold_rates) / len(cold_rates))
        _full_speed(plan, peer, topic, cold_end, results)


def _steady(plan: Plan, peer: Peer, topic: str) -> Percentiles:
    return latency.steady(
        peer.bootstrap,
        topic,
        seconds=plan.readers_seconds,
        skip_seconds=SKIP_SECONDS,
        start=stored_records(peer.bootstrap, topic),
        readers=AT_THE_TAIL,
    )


def _add_latency(results: Results, peer: Peer, what: str, found: Percentiles) -> None:
    for name, value in zip(("p50", "p99", "p99.9"), found, strict=True):
        results.add(Metric(f"{what}, {name} at 5,000/s", "ms", False), peer.name, value)


@contextmanager
def _cold_reader(peer: Peer, topic: str, end: int) -> Iterator[list[float]]:
    """Reads the old records from the disk, drops them from the cache and begins again until the block ends."""
    rates: list[float] = []
    ending = threading.Event()

    def work() -> None:
        while not rates or not ending.is_set():
            rates.append(_read_cold(peer, topic, end))

    with ThreadPoolExecutor(1) as executor:
        reading = executor.submit(work)
        try:
            yield rates
        finally:
            ending.set()
        reading.result(PATIENCE_SECONDS)


def _read_cold(peer: Peer, topic: str, end: int) -> float:
    drop_from_cache(peer.log_dir / f"{topic}-0", end * RECORD_BYTES)
    before = peer.disk_read_bytes()
    rate = children.run(raw_load.read_to_end, peer.bootstrap, topic, start=0, end=end)
    from_disk = peer.disk_read_bytes() - before
    if from_disk < COLD_SHARE_MIN * rate.size:
        raise load.LoadError(
            f"only {from_disk} of {rate.size} bytes came from the disk: the reader was not cold"
        )
    return rate.megabytes_per_second


def drop_from_cache(folder: Path, size: int) -> None:
    """Forget the pages of the first `size` bytes of a partition; what is newer stays where the readers at the end find it."""
    for path in sorted(folder.glob("*.log")):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            dropped = min(size, os.fstat(descriptor).st_size)
            if dropped:
                os.posix_fadvise(descriptor, 0, dropped, os.POSIX_FADV_DONTNEED)
            size -= dropped
        finally:
            os.close(descriptor)


def _full_speed(plan: Plan, peer: Peer, topic: str, cold_end: int, results: Results) -> None:
    records = int(plan.cold_bytes * FULL_SPEED_SHARE / RECORD_BYTES) // 1000 * 1000
    start = stored_records(peer.bootstrap, topic)
    drop_from_cache(peer.log_dir / f"{topic}-0", cold_end * RECORD_BYTES)
    ready = [new_event() for _ in range(AT_THE_TAIL)]
    tail = [
        Child(raw_load.read_to_end, peer.bootstrap, topic, start=start, end=start + records, ready=event)
        for event in ready
    ]
    cold = Child(raw_load.read_to_end, peer.bootstrap, topic, start=0, end=cold_end)
    try:
        for event in ready:
            event.wait(PATIENCE_SECONDS)
        with memory_at_hand.at_hand((records + cold_end) * RECORD_BYTES):
            seconds = children.run(
                load.produce,
                peer.bootstrap,
                topic,
                record_bytes=RECORD_BYTES,
                records=records,
                stored_before=start,
            )
        results.add(PRODUCED, peer.name, records * RECORD_BYTES / MB / seconds)
        rates = [reader.result(PATIENCE_SECONDS) for reader in tail]
        results.add(TAIL, peer.name, sum(rate.megabytes_per_second for rate in rates))
        cold.result(PATIENCE_SECONDS)
    finally:
        for child in (*tail, cold):
            child.end()
