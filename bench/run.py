"""`make bench`: Tidelog beside Apache Kafka, in alternating runs on this machine, as ratios.

All peers run at once, each on a data directory of its own, and are asked in turn: a scenario goes to every peer before the
next one begins, and the order of the peers rotates with the rounds. An idle broker costs next to nothing; a machine that is
busy with something else then disturbs all of them alike.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench import load, report
from bench.results import Results
from bench.scenarios import FULL, QUICK, Plan, scenarios, start_and_idle, warm_up
from tools.peers.kafka import KafkaPeer
from tools.peers.maven import KAFKA_VERSION, java, kafka_jars
from tools.peers.process import Peer, PeerUnavailableError
from tools.peers.tidelog import TidelogPeer

PEERS: dict[str, Callable[[], Peer]] = {
    "kafka": lambda: KafkaPeer(),
    "tidelog-replicated": lambda: TidelogPeer(durability="replicated"),
    "tidelog-fsync": lambda: TidelogPeer(durability="fsync"),
    # The nearest thing that Kafka has to durability=fsync.
    "kafka-fsync": lambda: KafkaPeer(name="kafka-fsync", overrides={"log.flush.interval.messages": "1"}),
    # Kafka beside itself: shows how far two equal peers differ on this machine.
    "kafka-again": lambda: KafkaPeer(name="kafka-again"),
}
DEFAULT_PEERS = ("kafka", "tidelog-replicated", "tidelog-fsync")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description="Tidelog beside Apache Kafka, as ratios.")
    parser.add_argument("--quick", action="store_true", help="about two minutes instead of about fifteen")
    parser.add_argument("--rounds", type=int, help="alternating rounds (5; 2 with --quick)")
    parser.add_argument(
        "--peers", default=",".join(DEFAULT_PEERS), help=f"of {', '.join(PEERS)}; first = baseline"
    )
    parser.add_argument("--sizes", default="100,1024,10240", help="record sizes in bytes")
    parser.add_argument("--codecs", default="none", help="of none,gzip,snappy,lz4,zstd")
    parser.add_argument("--partitions", default="1", help="partition counts, for example 1,6")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    return parser.parse_args()


def plan_of(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else FULL
    sizes = [int(size) for size in options.sizes.split(",")]
    return replace(
        plan,
        rounds=options.rounds or plan.rounds,
        produce_bytes={size: plan.produce_bytes.get(size, plan.produce_bytes[1024]) for size in sizes},
        codecs=tuple(options.codecs.split(",")),
        partitions=tuple(int(count) for count in options.partitions.split(",")),
    )


def usable_peers(wanted: list[str], console: Console) -> list[str]:
    """The peers that this machine can run; says plainly which it cannot, and why."""
    unknown = [name for name in wanted if name not in PEERS]
    if unknown:
        sys.exit(f"no peer is called {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if any(name.startswith("kafka") for name in wanted):
        try:
            java()
            kafka_jars()
        except PeerUnavailableError as missing:
            console.print(f"Apache Kafka {KAFKA_VERSION} is left out: {missing}")
            wanted = [name for name in wanted if not name.startswith("kafka")]
    return wanted


def measure(names: list[str], plan: Plan, console: Console) -> Results:
    results = Results(baseline=names[0])
    for number in range(plan.rounds):
        for name in rotated(names, number):
            start_and_idle(PEERS[name](), results)
    peers = {name: PEERS[name]() for name in names}
    try:
        for name, peer in peers.items():
            console.print(f"starting and warming up {name}", highlight=False)
            peer.start()
            warm_up(peer)
        for number in range(plan.rounds):
            began = time.perf_counter()
            for scenario in scenarios(plan):
                for name in rotated(names, number):
                    gc.collect()
                    scenario(peers[name], results)
            took = time.perf_counter() - began
            console.print(f"round {number + 1} of {plan.rounds}: {took:.0f} s", highlight=False)
    finally:
        for peer in peers.values():
            peer.stop()
    return results


def rotated(names: list[str], number: int) -> list[str]:
    start = number % len(names)
    return names[start:] + names[:start]


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def settings_line() -> str:
    said = ", ".join(f"{name}={value}" for name, value in load.PRODUCER_SETTINGS.items())
    return f"librdkafka producer: {said}; consumer: queued.min.messages={load.CONSUMER_SETTINGS['queued.min.messages']}"


def main() -> None:
    options = arguments()
    console = Console(width=max(Console().width, 120), markup=False)
    names = usable_peers(options.peers.split(","), console)
    if not names:
        sys.exit("no peer is left to measure")
    plan = plan_of(options)
    began = time.perf_counter()
    results = measure(names, plan, console)
    if options.json:
        options.json.write_text(
            json.dumps(
                {"machine": machine(), "settings": settings_line(), "rounds": plan.rounds}
                | {"metrics": results.as_json(names)},
                indent=2,
            )
        )
    if options.markdown:
        options.markdown.write_text(report.markdown(results, names) + "\n")
    report.print_table(results, names, console)
    console.print(f"{machine()}; {plan.rounds} rounds, {time.perf_counter() - began:.0f} s", highlight=False)
    console.print(settings_line(), highlight=False)


if __name__ == "__main__":
    main()
