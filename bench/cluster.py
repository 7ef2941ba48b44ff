"""`python -m bench.cluster`: three brokers of Tidelog beside three of Apache Kafka, in alternating rounds on this machine, as ratios.

    python -m bench.cluster                                  # five rounds of everything, half an hour
    python -m bench.cluster --scenarios 'throughput-*' --rounds 2
    python -m bench.cluster --json FILE                      # rounds are kept in FILE as they are measured; run it again to go on

Replication factor 3, min.insync.replicas 2, acks=all, six partitions with two leaders on each broker, one librdkafka producer. All clusters run at once and are paused
while another is asked; the order rotates with the rounds. Processor time is that of the three brokers together; nothing is pinned to a core: six processes and the
client share the machine, so whoever needs less of it is faster.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import confluent_kafka
from rich.console import Console

from bench import load, report
from bench.children import ChildFailedError
from bench.cluster_loads import ClusterLoad, broker_cpu, latency_metric, loads, produced, warm_up
from bench.cluster_peers import CLUSTERS, MeasuredCluster
from bench.results import Metric, Results
from bench.run import machine, rotated, settings_line, usable_peers
from bench.targets import Target, at_least, at_most, judge

ROUNDS = 5
WARM_UP_SECONDS = 60.0
"""Of load on a cluster of Java processes before anything counts; in the first half minute they are a quarter as fast. Others get each load once."""
TARGETS: tuple[Target, ...] = (
    at_least(produced("1 KiB").name, 1.5),
    at_least(produced("1 KiB lz4").name, 1.5),
    at_least(produced("100 B").name, 1.5),
    at_least(produced("1 KiB, batches of 16 KiB").name, 1.5),
    at_most(latency_metric("p99", "").name, 0.3),
    at_most(latency_metric("p99", ", linger.ms=0").name, 0.3),
    at_most(broker_cpu("1 KiB").name, 0.5),
    at_most(broker_cpu("1 KiB lz4").name, 0.5),
    at_most(broker_cpu("100 B").name, 0.5),
    at_most(broker_cpu("1 KiB, batches of 16 KiB").name, 0.5),
)


class MixedRunsError(Exception):
    """A file with rounds of another commit or machine."""


def about() -> dict[str, str]:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout
    return {"commit": commit.strip(), "machine": machine(), "settings": settings_line()}


def read(path: Path, results: Results, measured_with: dict[str, str]) -> None:
    """Take over the rounds of a file. MixedRunsError: they are not of this commit and machine."""
    content: dict[str, Any] = json.loads(path.read_text())
    if content["about"] != measured_with:
        raise MixedRunsError(f"{path} holds rounds of {content['about']}, this run is one of {measured_with}")
    for sample in content["samples"]:
        values = [math.nan if value is None else value for value in sample["values"]]
        metric = Metric(sample["name"], sample["unit"], sample["more_is_better"])
        results.samples.setdefault(metric, {})[sample["of"]] = values


def write(path: Path, results: Results, measured_with: dict[str, str]) -> None:
    samples = [
        {**metric._asdict(), "of": name, "values": [None if math.isnan(value) else value for value in values]}
        for metric, by_peer in results.samples.items()
        for name, values in by_peer.items()
    ]
    verdicts = [verdict.as_json() for verdict in judge(results, TARGETS)]
    content = {"about": measured_with, "samples": samples, "targets": verdicts}
    path.write_text(json.dumps(content, indent=1))


class Bench:
    """One run: its clusters, and what came out so far."""

    def __init__(
        self, names: list[str], chosen: Sequence[ClusterLoad], console: Console, results: Results
    ) -> None:
        self._names = names
        self._chosen = chosen
        self._console = console
        self._began = time.perf_counter()
        self.results = results

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.perf_counter() - self._began), 60)
        self._console.print(f"{minutes:3}:{seconds:02} {text}", highlight=False)

    def measure(self, rounds: int, warm_up_seconds: float, path: Path | None, known: dict[str, str]) -> None:
        clusters = {name: CLUSTERS[name]() for name in self._names}
        try:
            for name, cluster in clusters.items():
                self.say(f"starting and warming up {name}")
                cluster.start()
                warm_up(cluster, warm_up_seconds if name.startswith("kafka") else 0.0)
                cluster.pause()
            for number in range(rounds):
                self.results.round_number = number
                for scenario in self._chosen:
                    self._measure_round(scenario, number, clusters)
                    if path is not None:
                        write(path, self.results, known)
        finally:
            for cluster in clusters.values():
                cluster.stop()

    def _measure_round(
        self, scenario: ClusterLoad, number: int, clusters: dict[str, MeasuredCluster]
    ) -> None:
        missing = [name for name in rotated(self._names, number) if not self._has(scenario, name, number)]
        for name in missing:
            self._measure_one(scenario, clusters[name])
        if missing:
            latest = ", ".join(f"{name} {self._latest(scenario, name)}" for name in self._names)
            self.say(f"round {number + 1}  {scenario.name:26} {scenario.headline.unit}: {latest}")

    def _has(self, scenario: ClusterLoad, name: str, number: int) -> bool:
        return len(self.results.samples.get(scenario.headline, {}).get(name, [])) > number

    def _latest(self, scenario: ClusterLoad, name: str) -> str:
        values = self.results.samples.get(scenario.headline, {}).get(name)
        return report.figure(values[-1] if values else None)

    def _measure_one(self, scenario: ClusterLoad, cluster: MeasuredCluster) -> None:
        cluster.resume()
        try:
            scenario.run(cluster, self.results)
        except (ChildFailedError, load.LoadError, confluent_kafka.KafkaException, OSError) as failure:
            if not cluster.is_running:
                raise
            self.say(f"{scenario.name} failed on {cluster.name}, its round stays empty: {failure}")
        finally:
            cluster.pause()


def chosen_loads(patterns: str) -> list[ClusterLoad]:
    offered = loads()
    wanted = patterns.split(",")
    for pattern in wanted:
        if not any(fnmatch(each.name, pattern) for each in offered):
            sys.exit(f"no scenario is called {pattern}; there are {', '.join(each.name for each in offered)}")
    return [each for each in offered if any(fnmatch(each.name, pattern) for pattern in wanted)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.cluster", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--peers", default=",".join(CLUSTERS), help=f"of {', '.join(CLUSTERS)}; the first is the baseline"
    )
    parser.add_argument(
        "--scenarios", default="*", help="names or patterns, for example 'throughput-*,latency'"
    )
    parser.add_argument("--warm-up", type=float, default=WARM_UP_SECONDS, help="seconds of load for Java")
    parser.add_argument("--json", type=Path, help="keep every sample in this file, and go on where it ended")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    parser.add_argument("--report", action="store_true", help="measure nothing, show what the file holds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that brokers and clients end with us
    console = Console(width=max(Console().width, 170), markup=False)
    chosen = chosen_loads(options.scenarios)
    names = usable_peers(options.peers.split(","), console, CLUSTERS)
    results, known = Results(baseline=names[0]), about()
    if options.json is not None and options.json.exists():
        if options.report:
            known = json.loads(options.json.read_text())["about"]
        try:
            read(options.json, results, known)
        except MixedRunsError as error:
            sys.exit(str(error))
    if not options.report:
        Bench(names, chosen, console, results).measure(options.rounds, options.warm_up, options.json, known)
    if options.markdown:
        options.markdown.write_text(report.markdown(results, names, TARGETS) + "\n")
    report.print_all(results, names, console, TARGETS)
    for line in known.values():
        console.print(line, highlight=False)


if __name__ == "__main__":
    main()
