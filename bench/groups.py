"""Groups beside Apache Kafka: how long a rebalance takes, what idle members cost, how fast offsets are committed.

    python -m bench.groups
    python -m bench.groups --scenarios rebalance-consumer,commits --rounds 3

All brokers run at once and are asked in turn, as in `bench.run`; whoever is not asked is paused. Each has
`group.initial.rebalance.delay.ms=0`, so that no group waits for members on purpose, and stock settings otherwise.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import confluent_kafka
from rich.console import Console
from rich.table import Table

from bench import report
from bench.children import ChildFailedError
from bench.groups_commits import commit_metric, commits
from bench.groups_idle import IDLE_GROUPS, IDLE_MEMBERS, idle_cost, idle_metric
from bench.groups_rebalance import (
    AT_ONCE_TEXT,
    CONSUMERS,
    ONE_MORE_TEXT,
    PROCESSES,
    PROTOCOL_SETTINGS,
    QUIET_TEXT,
    rebalance,
    rebalance_metric,
)
from bench.groups_wire import CLASSIC, CONSUMER, HEARTBEAT_SECONDS, PARTITIONS, await_coordinator
from bench.load import LoadError
from bench.results import Metric, Results
from bench.run import KAFKA_SETTINGS, machine, rotated, usable_peers
from bench.targets import Target, at_most
from bench.topics import QUICK_DELETION
from tools.peers.kafka import KafkaPeer
from tools.peers.maven import KAFKA_VERSION
from tools.peers.process import Peer
from tools.peers.tidelog import TidelogPeer

KAFKA, REPLICATED, FSYNC = "kafka", "tidelog-replicated", "tidelog-fsync"
AT_ONCE = {"group.initial.rebalance.delay.ms": "0"}
PEERS: dict[str, Callable[[], Peer]] = {
    KAFKA: lambda: KafkaPeer(overrides=KAFKA_SETTINGS | AT_ONCE),
    REPLICATED: lambda: TidelogPeer(durability="replicated", settings=QUICK_DELETION | AT_ONCE),
    FSYNC: lambda: TidelogPeer(durability="fsync", settings=QUICK_DELETION | AT_ONCE),
}
SETTLE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    run: Callable[[Peer, Results], None]
    headline: Metric


SCENARIOS = (
    Scenario("rebalance-classic", rebalance(CLASSIC), rebalance_metric(ONE_MORE_TEXT, CLASSIC)),
    Scenario("rebalance-consumer", rebalance(CONSUMER), rebalance_metric(ONE_MORE_TEXT, CONSUMER)),
    Scenario("idle-classic", idle_cost(CLASSIC), idle_metric(CLASSIC)),
    Scenario("idle-consumer", idle_cost(CONSUMER), idle_metric(CONSUMER)),
    Scenario("commits", commits, commit_metric("p99")),
)


def targets(peer: str) -> list[Target]:
    found: list[Target] = []
    for protocol in (CLASSIC, CONSUMER):
        for what in (AT_ONCE_TEXT, ONE_MORE_TEXT, QUIET_TEXT):
            name = rebalance_metric(what, protocol).name
            found.append(at_most(name, 2 * HEARTBEAT_SECONDS[protocol] + 1, peer, None))
            found.append(at_most(name, 1.0, peer))
        found.append(at_most(idle_metric(protocol).name, 10.0, peer, None))
    return found


def target_rows(results: Results, names: list[str]) -> Iterator[list[str]]:
    metrics = {metric.name: metric for metric in results.samples}
    for target in (target for name in names if name != KAFKA for target in targets(name)):
        metric = metrics.get(target.metric)
        if metric is None:
            continue
        if target.beside is None:
            values, unit = results.values(metric, target.peer), f" {metric.unit}"
        else:
            values, unit = results.round_ratios(metric, target.peer, target.beside), "×"
        if values:
            middle = statistics.median(values)
            yield [
                target.metric,
                target.peer,
                target.beside or "–",
                target.text,
                f"{report.figure(middle)}{unit} ({report.figure(min(values))}–{report.figure(max(values))})",
                f"{sum(map(target.is_met_by, values))} of {len(values)}",
                "met" if target.is_met_by(middle) else "missed",
            ]


@dataclass
class GroupBench:
    """One run: its peers, and what came out so far."""

    names: list[str]
    chosen: list[Scenario]
    rounds: int
    console: Console
    results: Results = field(init=False)
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.results = Results(baseline=self.names[0])

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.perf_counter() - self.began), 60)
        self.console.print(f"{minutes:3}:{seconds:02} {text}", highlight=False)

    def measure(self) -> None:
        peers = {name: PEERS[name]() for name in self.names}
        try:
            for peer in peers.values():
                self.say(f"starting and warming up {peer.name}")
                peer.start()
                await_coordinator(peer)
                commits(peer, Results(baseline=""), seconds=2.0)
                peer.pause()
            for number in range(self.rounds):
                self.results.round_number = number
                for scenario in self.chosen:
                    for name in rotated(self.names, number):
                        self.measure_one(scenario, peers[name])
                    self.say(
                        f"round {number + 1} of {self.rounds}  {scenario.name:20} {self.headline(scenario)}"
                    )
        finally:
            for peer in peers.values():
                peer.stop()

    def measure_one(self, scenario: Scenario, peer: Peer) -> None:
        peer.resume()
        time.sleep(SETTLE_SECONDS)
        try:
            scenario.run(peer, self.results)
        except (ChildFailedError, LoadError, confluent_kafka.KafkaException, OSError) as failure:
            if not peer.is_running:
                raise
            self.say(f"{scenario.name} failed on {peer.name}, its round stays empty: {failure}")
        finally:
            peer.pause()

    def headline(self, scenario: Scenario) -> str:
        latest = {name: self.results.values(scenario.headline, name)[-1:] for name in self.names}
        shown = ", ".join(f"{name} {report.figure(values[0])}" for name, values in latest.items() if values)
        return f"{scenario.headline.unit}: {shown}"


def settings_line() -> str:
    classic = ", ".join(f"{name}={value}" for name, value in PROTOCOL_SETTINGS[CLASSIC].items())
    return (
        f"librdkafka {confluent_kafka.libversion()[0]}; {CONSUMERS + 1} consumers in {PROCESSES + 2} processes, {PARTITIONS} partitions; "
        f"{CLASSIC}: {classic}; {CONSUMER}: heartbeats every {HEARTBEAT_SECONDS[CONSUMER]:g} s; idle members: {IDLE_MEMBERS} connections, "
        f"{IDLE_GROUPS} groups, heartbeats every {HEARTBEAT_SECONDS[CLASSIC]:g} and {HEARTBEAT_SECONDS[CONSUMER]:g} s. "
        f"Apache Kafka {KAFKA_VERSION}; group.initial.rebalance.delay.ms=0 for all, stock settings otherwise."
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.groups", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds")
    parser.add_argument(
        "--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}; the first is the baseline"
    )
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    parser.add_argument("--scenarios", default="*", help=f"names or patterns, of {names}")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that brokers and clients end with us
    console = Console(width=max(Console().width, 150), markup=False)
    patterns = options.scenarios.split(",")
    chosen = [each for each in SCENARIOS if any(fnmatch(each.name, pattern) for pattern in patterns)]
    names = [name for name in usable_peers(options.peers.split(","), console) if name in PEERS]
    if not chosen or not names:
        sys.exit("nothing is left to measure")
    bench = GroupBench(names, chosen, options.rounds, console)
    bench.measure()
    report.print_table(bench.results, names, console)
    judged = list(target_rows(bench.results, names))
    table = Table(title="targets, judged by the median of the rounds")
    for number, name in enumerate(report.TARGET_HEADER):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in judged:
        table.add_row(*row)
    console.print(table)
    if options.json:
        content = {"machine": machine(), "settings": settings_line(), "metrics": bench.results.as_json(names)}
        options.json.write_text(json.dumps(content | {"targets": judged}, indent=2))
    console.print(
        f"{machine()}; {options.rounds} rounds, {time.perf_counter() - bench.began:.0f} s", highlight=False
    )
    console.print(settings_line(), highlight=False)


if __name__ == "__main__":
    main()
