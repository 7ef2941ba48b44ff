"""`make bench`: Tidelog beside Apache Kafka, in alternating runs on this machine, as ratios.

All peers run at once, each on a data directory of its own, and are asked in turn: a scenario goes to every peer before the
next one begins, and the order of the peers rotates with the rounds. An idle broker costs next to nothing; a machine that is
busy with something else then disturbs all of them alike. Nothing is pinned to a core: broker and client share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

import confluent_kafka
from rich.console import Console

from bench import load, report
from bench.children import ChildFailedError
from bench.plan import FULL, QUICK, STEADY_RECORD_BYTES, Plan
from bench.results import Results
from bench.scenarios import MACHINE, Scenario, scenarios, start_and_idle, warm_up
from bench.targets import judge
from bench.topics import QUICK_DELETION
from tools.peers.kafka import KafkaPeer
from tools.peers.maven import KAFKA_VERSION, java, kafka_jars
from tools.peers.process import Peer, PeerUnavailableError
from tools.peers.tidelog import TidelogPeer

# A peer is paused while others are measured, which its controller must not take for its death.
KAFKA_SETTINGS = QUICK_DELETION | {"broker.session.timeout.ms": "3600000"}
PEERS: dict[str, Callable[[], Peer]] = {
    "kafka": lambda: KafkaPeer(overrides=KAFKA_SETTINGS),
    "tidelog-replicated": lambda: TidelogPeer(durability="replicated", settings=QUICK_DELETION),
    "tidelog-fsync": lambda: TidelogPeer(durability="fsync", settings=QUICK_DELETION),
    # The nearest thing that Kafka has to durability=fsync.
    "kafka-fsync": lambda: KafkaPeer(
        name="kafka-fsync", overrides=KAFKA_SETTINGS | {"log.flush.interval.messages": "1"}
    ),
    # Kafka beside itself: shows how far two equal peers differ on this machine.
    "kafka-again": lambda: KafkaPeer(name="kafka-again", overrides=KAFKA_SETTINGS),
}
QUICK_PEERS = ("kafka", "tidelog-replicated", "tidelog-fsync")
FULL_PEERS = (*QUICK_PEERS, "kafka-fsync")
START = "start"
FREE_BYTES_MIN = 8_000_000_000
SETTLE_SECONDS = 0.3
"""After a pause, for what was due meanwhile."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description="Tidelog beside Apache Kafka, as ratios.")
    parser.add_argument("--quick", action="store_true", help="about three minutes instead of about forty")
    parser.add_argument("--rounds", type=int, help="alternating rounds (5; 2 with --quick)")
    parser.add_argument("--peers", help=f"of {', '.join(PEERS)}; the first is the baseline")
    parser.add_argument("--scenarios", help="names or patterns, for example 'throughput-*,latency'")
    parser.add_argument("--list", action="store_true", help="say what scenarios there are, and end")
    parser.add_argument("--json", type=Path, help="write every sample to this file, after each round")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    return parser.parse_args()


def usable_peers(wanted: list[str], console: Console, offered: Collection[str] = PEERS) -> list[str]:
    """The peers that this machine can run; says plainly which it cannot, and why."""
    unknown = [name for name in wanted if name not in offered]
    if unknown:
        sys.exit(f"no peer is called {', '.join(unknown)}; there are {', '.join(offered)}")
    if any(name.startswith("kafka") for name in wanted):
        try:
            java()
            kafka_jars()
        except PeerUnavailableError as missing:
            console.print(f"Apache Kafka {KAFKA_VERSION} is left out: {missing}")
            wanted = [name for name in wanted if not name.startswith("kafka")]
    return wanted


@dataclass
class Bench:
    """One run: its peers, its plan, and what came out so far."""

    names: list[str]
    plan: Plan
    chosen: list[Scenario]
    with_start: bool
    console: Console
    after_round: Callable[[Results], None] = lambda _results: None
    results: Results = field(init=False)
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.results = Results(baseline=self.names[0])

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.perf_counter() - self.began), 60)
        self.console.print(f"{minutes:3}:{seconds:02} {text}", highlight=False)

    def measure(self) -> None:
        if self.with_start:
            self.measure_starts()
        peers = {name: PEERS[name]() for name in self.names}
        folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-"))
        try:
            for name, peer in peers.items():
                self.say(f"starting and warming up {name}")
                peer.start()
                warm_up(peer, self.plan)
                peer.pause()
            for number in range(self.plan.rounds):
                self.results.round_number = number
                self.measure_round(number, peers, folder)
                self.after_round(self.results)
        finally:
            for peer in peers.values():
                peer.stop()
            shutil.rmtree(folder)

    def measure_starts(self) -> None:
        for number in range(self.plan.rounds):
            self.results.round_number = number
            for name in rotated([name for name in self.names if name != "kafka-fsync"], number):
                start_and_idle(PEERS[name](), self.results)
        self.say(f"started each peer {self.plan.rounds} times")

    def measure_round(self, number: int, peers: dict[str, Peer], folder: Path) -> None:
        for peer in peers.values():
            with contextlib.suppress(PermissionError):  # then the peak is that of the whole run
                peer.forget_rss_peak()
        for scenario in self.chosen:
            if scenario.limit is not None:
                scenario.limit(folder, self.results)
            for name in rotated(self.names, number):
                if name != "kafka-fsync" or scenario.beside_kafka_fsync:
                    self.measure_one(scenario, peers[name])
            self.say(
                f"round {number + 1} of {self.plan.rounds}  {scenario.name:24} {self.headline(scenario)}"
            )

    def measure_one(self, scenario: Scenario, peer: Peer) -> None:
        peer.resume()
        time.sleep(SETTLE_SECONDS)
        try:
            scenario.run(peer, self.results)
        except (ChildFailedError, load.LoadError, confluent_kafka.KafkaException, OSError) as failure:
            if not peer.is_running:
                raise
            self.say(f"{scenario.name} failed on {peer.name}, its round stays empty: {failure}")
        finally:
            peer.pause()

    def headline(self, scenario: Scenario) -> str:
        metric = scenario.headline
        latest = {
            name: report.figure(values[-1])
            for name in self.names
            if (values := self.results.samples.get(metric, {}).get(name))
        }
        return f"{metric.unit}: " + ", ".join(f"{name} {value}" for name, value in latest.items())


def rotated(names: list[str], number: int) -> list[str]:
    start = number % len(names)
    return names[start:] + names[:start]


def machine() -> str:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{os.cpu_count()} cores, {memory_gb:.0f} GB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, data on {file_system(tempfile.gettempdir())}"
    )


def file_system(path: str) -> str:
    """The type of the file system that a path lies on. On tmpfs an fdatasync costs nothing, and shows nothing."""
    found = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if (path + "/").startswith(place.rstrip("/") + "/") and len(place) >= len(found[0]):
            found = (place, kind)
    return found[1]


def settings_line() -> str:
    said = ", ".join(f"{name}={value}" for name, value in load.PRODUCER_SETTINGS.items())
    return (
        f"librdkafka {confluent_kafka.libversion()[0]} without its Python binding; producer: {said}; consumer: "
        f"queued.min.messages={load.CONSUMER_SETTINGS['queued.min.messages']}; at a steady rate: through the binding, acks=all and "
        f"librdkafka's defaults, records of {STEADY_RECORD_BYTES} bytes. Apache Kafka {KAFKA_VERSION}, stock settings."
    )


def chosen_scenarios(patterns: str | None, plan: Plan) -> tuple[list[Scenario], bool]:
    """The scenarios that patterns name (None: all that the plan does not leave out), and whether start-up is among them."""
    offered = scenarios(plan)
    if patterns is None:
        return [scenario for scenario in offered if scenario.name not in plan.left_out], True
    wanted = patterns.split(",")
    names = [START, *(scenario.name for scenario in offered)]
    for pattern in wanted:
        if not any(fnmatch(name, pattern) for name in names):
            sys.exit(f"no scenario is called {pattern}; there are {', '.join(names)}")
    chosen = [scenario for scenario in offered if any(fnmatch(scenario.name, pattern) for pattern in wanted)]
    return chosen, any(fnmatch(START, pattern) for pattern in wanted)


def write_json(path: Path, results: Results, names: list[str]) -> None:
    content = {
        "machine": machine(),
        "settings": settings_line(),
        "metrics": results.as_json([*names, MACHINE]),
        "targets": [verdict.as_json() for verdict in judge(results)],
    }
    path.write_text(json.dumps(content, indent=2))


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that brokers and clients end with us
    console = Console(width=max(Console().width, 150), markup=False)
    plan = QUICK if options.quick else FULL
    plan = replace(plan, rounds=options.rounds or plan.rounds)
    if options.list:
        print("\n".join([START, *(scenario.name for scenario in scenarios(plan))]))
        return
    chosen, with_start = chosen_scenarios(options.scenarios, plan)
    wanted = options.peers.split(",") if options.peers else QUICK_PEERS if options.quick else FULL_PEERS
    names = usable_peers(list(wanted), console)
    if not names:
        sys.exit("no peer is left to measure")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < FREE_BYTES_MIN:
        sys.exit(
            f"{tempfile.gettempdir()} has {free / 1e9:.1f} GB free, a run needs {FREE_BYTES_MIN / 1e9:.0f}"
        )

    def save(results: Results) -> None:
        if options.json:
            write_json(options.json, results, names)

    bench = Bench(names, plan, chosen, with_start, console, after_round=save)
    bench.measure()
    if options.markdown:
        options.markdown.write_text(report.markdown(bench.results, names) + "\n")
    report.print_all(bench.results, names, console)
    console.print(
        f"{machine()}; {plan.rounds} rounds, {time.perf_counter() - bench.began:.0f} s", highlight=False
    )
    console.print(settings_line(), highlight=False)


if __name__ == "__main__":
    main()
