"""`python -m bench.compaction`: how fast a log is compacted, and what that costs those who write meanwhile.

Two measurements. The worker alone: a log of records of one size with 100,000 keys, cleaned in this process as the worker does it, files and
syncs included, without a throttle; MB/s are bytes of the log that was cleaned, which is read twice. And a broker under a steady load of
acks=all on one topic, with and without a compaction of another at the default throttle: the p99 of produce, several runs, as a ratio.

Needs 13 GB of disk: ten million records of 1 KiB, and what stays of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from array import array
from pathlib import Path
from typing import NamedTuple

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.children import Child
from bench.latency import percentiles
from tidelog.ports import SystemClock
from tidelog.records.batch import patched_prefix, read_header, write_crc
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.storage.cleaner import LogCleaner
from tidelog.storage.cleaner_job import Cleaned, Limits
from tidelog.storage.cleaner_plan import cleanable
from tidelog.storage.cleaner_swap import Cleaning
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.recovery import open_log
from tools.peers.tidelog import TidelogPeer

KEYS = 100_000
KEY_BYTES = 10
BATCH_BYTES = 64 << 10
PER_SECOND = 2000
WARM_SECONDS = 8.0  # the worker starts meanwhile
RUN_SECONDS = 10.0


class Speed(NamedTuple):
    record_bytes: int
    records: int
    megabytes: float
    seconds: float
    kept: int

    def __str__(self) -> str:
        return (
            f"{self.record_bytes} B x {self.records:,}: {self.megabytes:.0f} MB in {self.seconds:.1f} s,"
            f" {self.megabytes / self.seconds:.0f} MB/s, {self.kept:,} records stay"
        )


# ---- the worker alone


def fill(log: Log, records: int, record_bytes: int, seed: int = 7) -> None:
    """Batches of one shape whose keys are written into place: building ten million records one by one would take minutes."""
    per_batch = max(1, BATCH_BYTES // record_bytes)
    marker = b"KEY" + b"?" * (KEY_BYTES - 3)
    value = os.urandom(record_bytes - KEY_BYTES)
    template = bytearray(
        build_batch([Record(n, 1_700_000_000_000 + n, marker, value) for n in range(per_batch)])
    )
    places = []
    position = template.find(marker)
    while position >= 0:
        places.append(position)
        position = template.find(marker, position + 1)
    assert len(places) == per_batch
    header = read_header(template)
    view = np.frombuffer(template, np.uint8)
    at = np.array(places)[:, None] + np.arange(KEY_BYTES)
    rng = np.random.default_rng(seed)
    for base in range(0, records, per_batch):
        keys = rng.integers(0, KEYS, per_batch)
        digits = (keys[:, None] // 10 ** np.arange(KEY_BYTES - 1, -1, -1)) % 10 + ord("0")
        view[at] = digits.astype(np.uint8)
        write_crc(template)
        batch = patched_prefix(base, header.batch_length, 0) + bytes(template[16:])
        log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=1_700_000_000_000)
    log.roll(1_700_000_000_000)
    log.flush()
    log.set_high_watermark(log.log_end_offset)


def clean(log: Log, limits: Limits) -> Cleaned:
    clock = SystemClock()
    cleaning = Cleaning(log, cleanable(log, clock.wall_ms()), limits)
    cleaner = LogCleaner(PosixDisk(), cleaning.job, clock=clock, secret=os.urandom(16))
    for group in cleaner.groups():
        new = cleaning.open(group)
        cleaning.begin_swap(group, new, now_ms=clock.wall_ms()).run()
        for path in log.take_due_files(1 << 62):
            log.disk.remove(path)
    cleaning.finish(cleaner.result)
    return cleaner.result


def speed(records: int, record_bytes: int, home: Path) -> Speed:
    directory = home / f"speed-{record_bytes}" / "states-0"
    config = LogConfig(
        segment_bytes=256 << 20, compact_policy=True, delete_policy=False, segment_ms=1 << 50, retention_ms=-1
    )
    log = open_log(PosixDisk(), str(directory), "states", 0, config=config, now_ms=0)
    fill(log, records, record_bytes)
    size = log.size_bytes
    began = time.perf_counter()
    cleaned = clean(log, Limits())
    seconds = time.perf_counter() - began
    log.close()
    shutil.rmtree(directory.parent)
    return Speed(record_bytes, records, size / 1e6, seconds, cleaned.records_kept)


# ---- a broker under load


def produce_latencies(bootstrap: str, topic: str, seconds: float) -> array[int]:
    """Nanoseconds from when a record was due until it was acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
    producer.list_topics(topic, timeout=30)
    found: array[int] = array("q")
    began = time.perf_counter_ns()
    value = bytes(1024)
    for number in range(round(PER_SECOND * seconds)):
        due = began + number * 1_000_000_000 // PER_SECOND
        while (now := time.perf_counter_ns()) < due:
            producer.poll(min(0.001, (due - now) / 1e9))

        def acknowledged(error: object, _message: object, due: int = due) -> None:
            assert error is None, error
            found.append(time.perf_counter_ns() - due)

        producer.produce(topic, value, on_delivery=acknowledged)
    producer.flush(30)
    return found


def _create(bootstrap: str, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(30)


def write_states(bootstrap: str, topic: str, megabytes: float, seconds: float = 0.0) -> None:
    """Records of 1 KiB with keys in turn; evenly over so many seconds, or as fast as it goes."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0, "linger.ms": 20})
    value = os.urandom(1024)
    records = round(megabytes * 1000)
    began = time.perf_counter()
    for number in range(records):
        producer.produce(topic, value, b"%010d" % (number * 7919 % KEYS))
        if number % 100 == 0:
            producer.poll(max(0.0, began + seconds * number / records - time.perf_counter()))
        if number % 5000 == 0:
            producer.flush(60)
    producer.flush(60)


class Pair(NamedTuple):
    alone: float
    beside: float

    @property
    def ratio(self) -> float:
        return self.beside / self.alone


def pressure(runs: int, durability: str) -> list[Pair]:
    """p99 of produce in milliseconds. Both times another topic is written to all the while; one time it is compacted again and again, too."""
    pairs = []
    for _ in range(runs):
        found = [_p99(durability, compacting=compacting) for compacting in (False, True)]
        pairs.append(Pair(*found))
        print(
            f"  p99 alone {found[0]:.2f} ms, beside a compaction {found[1]:.2f} ms: {pairs[-1].ratio:.2f}",
            flush=True,
        )
    return pairs


def _p99(durability: str, *, compacting: bool) -> float:
    settings = {"log.cleaner.enable": str(compacting).lower(), "log.cleaner.backoff.ms": "50"}
    with TidelogPeer(durability=durability, settings=settings) as peer:
        _create(peer.bootstrap, "load")
        # The clean part, a hundred megabytes, is written anew whenever another four are sealed.
        policy = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "segment.bytes": str(4 << 20),
        }
        _create(peer.bootstrap, "states", **policy)
        write_states(peer.bootstrap, "states", KEYS / 1000)
        seconds = WARM_SECONDS + RUN_SECONDS
        with Child(write_states, peer.bootstrap, "states", 4 * seconds, seconds):
            produce_latencies(peer.bootstrap, "load", WARM_SECONDS)
            p99 = percentiles(produce_latencies(peer.bootstrap, "load", RUN_SECONDS)).p99
        lines = peer.output_path.read_text().count("compacted states-0")
        if compacting and lines < 2:
            raise RuntimeError(f"only {lines} compactions happened meanwhile")
    return p99


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compaction")
    parser.add_argument("--records", type=int, default=10_000_000, help="of 100 B, and as many of 1 KiB")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--durability", default="fsync")
    parser.add_argument("--only", choices=("speed", "pressure"))
    chosen = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="tidelog-bench-"))
    try:
        if chosen.only != "pressure":
            speed(100_000, 100, home)  # compiles, or loads what was compiled
            for _ in range(chosen.runs):
                for record_bytes in (100, 1024):
                    print(speed(chosen.records, record_bytes, home), flush=True)
        if chosen.only != "speed":
            pairs = pressure(chosen.runs, chosen.durability)
            print(
                f"produce p99 beside a compaction: {statistics.median(pair.ratio for pair in pairs):.2f} times that alone"
            )
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
