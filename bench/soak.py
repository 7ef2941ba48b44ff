"""`make soak`: a broker under full load with slow, rude and passing clients, its memory sampled every second.

Flat after the warm-up, or the exit status is 1. What a broker rightly remembers for a while (producers, deleted files, fetch
sessions) is given a minute or two instead of Kafka's default of a day or so, that the steady state is reached within the warm-up.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import soak_load
from bench.children import Child, new_event
from bench.soak_verdict import MB, Sample, Verdict, judge, minutes, plot
from bench.topics import create_topic
from tools.peers.process import Peer, PeerFailedError
from tools.peers.tidelog import TidelogPeer

SETTINGS = {
    "log.segment.bytes": "16777216",
    "log.retention.bytes": "536870912",
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "10000",
    "producer.id.expiration.ms": "60000",
}
WARM_UP_SHARE = 0.5
WARM_UP_SECONDS_MAX = 1500.0
"""Until every kind of thing has been made, expired and made again at the same time, and the allocator has seen the worst of it. Measured: memory still rises by
two to four megabytes after minute four, and is level from minute 22 to 26 on."""
END_SECONDS_MAX = 90.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make soak", description="A broker's memory under full load: flat or not."
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--durability", default="fsync", choices=("fsync", "replicated"))
    parser.add_argument(
        "--megabytes", type=float, default=50.0, help="bulk load per second; 0: as much as the broker takes"
    )
    parser.add_argument("--only", help="names of loads, separated by commas, to look for a leak")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    return parser.parse_args()


class Soak:
    """The loads and the samples of one run."""

    def __init__(self, peer: Peer, *, megabytes: float, only: list[str] | None = None) -> None:
        self._peer = peer
        self._stop = new_event()
        loads: dict[str, Callable[..., int]] = {
            load.__name__: load
            for load in (
                soak_load.produce_in_bulk,
                soak_load.produce_one_by_one,
                soak_load.read_at_the_end,
                soak_load.read_slowly,
                soak_load.never_read,
                soak_load.come_and_go,
                soak_load.consume_and_leave,
                soak_load.new_producers,
                soak_load.make_and_delete_topics,
                soak_load.open_fetch_sessions,
                soak_load.look_up_times,
            )
        }
        if unknown := set(only or ()) - set(loads):
            sys.exit(f"no load is called {', '.join(unknown)}; there are {', '.join(loads)}")
        extra: dict[str, dict[str, float]] = {
            "produce_in_bulk": {"megabytes_per_second": megabytes},
            "produce_one_by_one": {"depth": 20},
        }
        self._create_topics()
        self._children = {
            name: Child(load, peer.bootstrap, self._stop, **extra.get(name, {}))
            for name, load in loads.items()
            if only is None or name in only
        }
        self.samples: list[Sample] = []
        self.done: dict[str, int] = {}

    def _create_topics(self) -> None:
        create_topic(self._peer.bootstrap, soak_load.TOPIC, partitions=soak_load.PARTITIONS)
        create_topic(self._peer.bootstrap, soak_load.SMALL_TOPIC)

    def run(self, seconds: float, say: Callable[[Sample], None]) -> None:
        began = time.monotonic()
        try:
            while (elapsed := time.monotonic() - began) < seconds:
                if not self._peer.is_running:
                    raise PeerFailedError(f"the broker ended under load:\n{self._peer.output_tail()}")
                sample = Sample(elapsed, self._peer.rss_bytes(), self._peer.open_files())
                self.samples.append(sample)
                if len(self.samples) % 60 == 0:
                    say(sample)
                time.sleep(max(0.0, began + len(self.samples) - time.monotonic()))
            self._stop.set()
            self.done = {name: child.result(END_SECONDS_MAX) for name, child in self._children.items()}
        finally:
            for child in self._children.values():
                child.end()

    @property
    def idle_loads(self) -> list[str]:
        """Loads that did nothing: what they were to show has not been shown."""
        return [name for name, done in self.done.items() if done == 0]


def warm_up_seconds(seconds: float) -> float:
    return min(WARM_UP_SECONDS_MAX, WARM_UP_SHARE * seconds)


def soak(peer: Peer, *, seconds: float, megabytes: float, only: list[str] | None, console: Console) -> Soak:
    peer.start()
    soaked = Soak(peer, megabytes=megabytes, only=only)

    def say(sample: Sample) -> None:
        console.print(
            f"{sample.second / 60:5.1f} min  RSS {sample.rss_bytes / MB:6.1f} MB, {sample.open_files} open files",
            highlight=False,
        )

    soaked.run(seconds, say)
    return soaked


def report(soaked: Soak, verdict: Verdict, console: Console) -> None:
    table = Table(title="resident memory of the broker, minute by minute")
    for name in ("minute", "median MB", "peak MB", "open files"):
        table.add_column(name, justify="right")
    for minute in minutes(soaked.samples):
        table.add_row(
            str(minute.minute),
            f"{minute.median_bytes / MB:.1f}",
            f"{minute.peak_bytes / MB:.1f}",
            str(minute.open_files),
        )
    console.print(table)
    console.print(plot(soaked.samples), highlight=False)
    for name, done in soaked.done.items():
        console.print(f"  {name:24} {done:15,}", highlight=False)
    console.print(
        f"{'flat' if verdict.is_flat else 'NOT flat'}: {verdict.grown_bytes / MB:+.2f} MB over {verdict.judged_seconds / 60:.1f} "
        f"minutes by the line through the samples, {verdict.allowed_bytes / MB:.2f} allowed; median "
        f"{verdict.median_bytes / MB:.1f} MB, peak {verdict.peak_bytes / MB:.1f} MB",
        highlight=False,
    )


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that brokers and clients end with us
    console = Console(width=120, markup=False)
    peer = TidelogPeer(durability=options.durability, settings=SETTINGS)
    seconds = 60 * options.minutes
    try:
        only = options.only.split(",") if options.only else None
        soaked = soak(peer, seconds=seconds, megabytes=options.megabytes, only=only, console=console)
    finally:
        peer.stop()
    verdict = judge(soaked.samples, warm_up_seconds=warm_up_seconds(seconds))
    report(soaked, verdict, console)
    if options.json:
        content = {"samples": soaked.samples, "done": soaked.done, "verdict": verdict._asdict()}
        options.json.write_text(json.dumps(content | {"flat": verdict.is_flat}))
    if soaked.idle_loads:
        sys.exit(f"these loads did nothing: {', '.join(soaked.idle_loads)}")
    sys.exit(not verdict.is_flat)


if __name__ == "__main__":
    main()
