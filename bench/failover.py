"""`python -m bench.failover`: how long a cluster has no writable leader when a node is killed, stopped in order or paused, beside Apache Kafka.

Three nodes of each peer, each broker and controller; six partitions of three copies, min.insync.replicas 2; a writer for each (`failover_watch`). In every try one node that leads
something goes, every second time the one that is the active controller, too; then it comes back, is in sync again and leads again what it led. Each try is written down when it is over
(`--results`), so that a run may be taken in parts; tries of another commit are not mixed in.

A paused node (`--kind SIGSTOP`) keeps its connections, and a client that waits for its answers learns nothing of its successor before it gives up, five seconds here (`failover_watch.WRITER`). So what the
cluster does for others is measured beside it: when the leaders are named by another node, and how long a client that begins then takes to write to them.

`--saturate MINUTES`: nobody is killed. All brokers get as much as they take, on all processors, and every fencing, election and change of an ISR that nobody asked for is counted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console
from rich.table import Table

from bench.failover_saturate import saturate
from bench.failover_tries import KILL, KINDS, PAUSE, STOP, Spread, TriesFile, Try, missed, rows
from bench.failover_watch import Watch, Writers
from tools.peers.kafka_cluster import KafkaCluster
from tools.peers.node_cluster import NodeCluster
from tools.peers.process import PeerUnavailableError
from tools.peers.tidelog_cluster import TidelogCluster

PARTITIONS = 6
TOPIC = "failover"
SAFE = {"min.insync.replicas": "2"}
OUR_TIMES = {
    "broker.heartbeat.interval.ms": "250",
    "broker.session.timeout.ms": "2000",
    "controller.quorum.fetch.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.election.backoff.max.ms": "250",
    "controller.quorum.request.timeout.ms": "1000",
}
"""Tidelog's own defaults, given to a Kafka."""
PEERS = ("tidelog", "tidelog-replicated", "kafka", "kafka-tuned")
QUIET_S = 0.3
RECOVERY_S = 60.0


def cluster_of(peer: str) -> NodeCluster:
    match peer:
        case "tidelog":
            return TidelogCluster(settings=SAFE)
        case "tidelog-replicated":
            return TidelogCluster(durability="replicated", settings=SAFE)
        case "kafka":
            return KafkaCluster(overrides=SAFE, stock=True)
        case "kafka-tuned":
            return KafkaCluster(overrides=OUR_TIMES | SAFE, stock=True)
    raise ValueError(peer)


class Failover:
    """Tries on one running cluster."""

    def __init__(
        self, peer: str, commit: str, cluster: NodeCluster, writers: Writers, admin: AdminClient
    ) -> None:
        self._peer = peer
        self._commit = commit
        self._cluster = cluster
        self._writers = writers
        self._admin = admin

    def run(self, kind: str, *, of_controller: bool) -> Try:
        cluster, writers = self._cluster, self._writers
        active = cluster.active_controller()
        led_by = {number: led.leader for number, led in cluster.partitions(TOPIC).items()}
        leaders = set(led_by.values())
        victim = active if of_controller else min(leaders - {active})
        led = {number: leader for number, leader in led_by.items() if leader == victim}
        if not led:
            raise RuntimeError(f"node {victim} leads nothing")
        left = [number for number in range(len(cluster.nodes)) if number != victim]
        with Watch() as watch:
            began = time.perf_counter()
            self._let_go(kind, victim)
            watch.for_leaders([cluster.nodes[number].bootstrap for number in left], TOPIC, led)
            if of_controller:
                watch.for_controller([f"127.0.0.1:{cluster.controller_ports[number]}" for number in left])
            if kind == PAUSE:
                watch.for_newcomer([cluster.nodes[number].bootstrap for number in left], TOPIC, list(led))
            writers.wait_until_steady(began + QUIET_S, seconds=RECOVERY_S)
        others = [number for number in led_by if number not in led]
        done = Try(
            self._peer,
            self._commit,
            kind,
            of_controller,
            _since(began, watch.when("controller")),
            _since(began, watch.when("detected")),
            writers.worst_gap(list(led), began),
            writers.worst_gap(others, began),
            _between(watch.when("detected"), watch.when("newcomer")),
        )
        self._bring_back(kind, victim)
        return done

    def _let_go(self, kind: str, victim: int) -> None:
        if kind == KILL:
            self._cluster.kill(victim)
        elif kind == STOP:
            self._cluster.nodes[victim].ask_to_stop()
        else:
            self._cluster.pause(victim)

    def _bring_back(self, kind: str, victim: int) -> None:
        cluster = self._cluster
        if kind == PAUSE:
            cluster.resume(victim)
        else:
            cluster.stop(victim)  # which may take longer than others take to go on without it
            cluster.start(victim)
        self.settle()

    def settle(self) -> None:
        """All replicas in sync, every partition led by its preferred replica, writers at work."""
        cluster = self._cluster
        cluster.wait_until_in_sync(TOPIC)
        places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        self._admin.elect_leaders(ElectionType.PREFERRED, places).result()
        cluster.wait_until(
            lambda: all(led.leader == led.replicas[0] for led in cluster.partitions(TOPIC).values()),
            "preferred replicas lead",
        )
        self._writers.wait_until_steady(time.perf_counter(), seconds=RECOVERY_S)


def _since(began: float, moment: float | None) -> float | None:
    return None if moment is None else moment - began


def _between(began: float | None, ended: float | None) -> float | None:
    return None if began is None else _since(began, ended)


def measure(
    peer: str, wanted: Iterator[tuple[str, bool]], commit: str, results: TriesFile, console: Console
) -> None:
    with cluster_of(peer) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        placed = [[(number + copy) % 3 for copy in range(3)] for number in range(PARTITIONS)]
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, replica_assignment=placed)])[TOPIC].result(60)
        cluster.wait_until_in_sync(TOPIC)
        with Writers(cluster.bootstrap, TOPIC, PARTITIONS) as writers:
            writers.wait_until_steady(time.perf_counter(), seconds=RECOVERY_S)
            failover = Failover(peer, commit, cluster, writers, admin)
            failover.settle()
            for kind, of_controller in wanted:
                done = failover.run(kind, of_controller=of_controller)
                results.add(done)
                console.print(_line(done))
            if writers.failures:
                raise RuntimeError(f"writes failed for good: {writers.failures[:3]}")


def _line(done: Try) -> str:
    def seconds(value: float | None) -> str:
        return "     –" if value is None else f"{value:6.3f}"

    node = "active controller" if done.was_controller else "another node"
    return (
        f"{done.peer:18} {done.kind:10} {node:17}  controller {seconds(done.controller)}  detected {seconds(done.detected)}"
        f"  first write {seconds(done.outage)}  others {seconds(done.others)}  newcomer {seconds(done.newcomer)}"
    )


def report(tries: Sequence[Try], console: Console) -> None:
    table = Table(title="seconds without a writable leader, p50 / max")
    for name in (
        "peer",
        "node goes by",
        "tries",
        "outage",
        "new controller",
        "detected",
        "then first write",
        "partitions it followed",
        "a new client writes after",
    ):
        table.add_column(name, justify="left" if name in ("peer", "node goes by") else "right")

    def cell(found: Spread | None) -> str:
        return "–" if found is None else f"{found.p50:.2f} / {found.most:.2f}"

    for row in rows(tries):
        which = {None: "", False: ", another node", True: ", active controller"}[row.was_controller]
        table.add_row(
            row.peer,
            row.kind + which,
            str(row.outage.tries),
            *(
                cell(each)
                for each in (row.outage, row.controller, row.detected, row.election, row.others, row.newcomer)
            ),
        )
    console.print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.failover", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", default="tidelog,kafka,kafka-tuned", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--tries", type=int, default=30, help="of each kind, of Tidelog")
    parser.add_argument(
        "--kafka-tries", type=int, default=6, help="of each kind, of Kafka, where one takes half a minute"
    )
    parser.add_argument("--kind", default=f"{KILL},{STOP}", help=f"of {', '.join(KINDS)}")
    parser.add_argument(
        "--results", type=Path, default=Path("build/failover.jsonl"), help="tries are added here"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing, print what the file says")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="begin no try after so long: go on with the next run"
    )
    parser.add_argument("--saturate", type=float, metavar="MINUTES")
    parser.add_argument(
        "--durability", default="fsync", choices=("fsync", "replicated"), help="for --saturate"
    )
    return parser.parse_args()


def _commit() -> str:
    def git(*command: str) -> str:
        return subprocess.run(["git", *command], capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", "src") else "")


def _until(deadline: float, wanted: Sequence[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
    for each in wanted:
        if time.monotonic() > deadline:
            return
        yield each


def main() -> int:
    options = arguments()
    console = Console(width=160)
    if options.saturate is not None:
        return saturate(options.saturate, options.durability, console)
    results, commit = TriesFile(options.results), _commit()
    deadline = time.monotonic() + options.seconds
    peers = options.peer.split(",")
    for peer in peers if not options.report else ():
        tries = options.tries if peer.startswith("tidelog") else options.kafka_tries
        state = commit if peer.startswith("tidelog") else "-"
        known = [each for each in results.read() if (each.peer, each.commit) == (peer, state)]
        wanted = [
            (kind, bool(number % 2))
            for number in range(tries)
            for kind in options.kind.split(",")
            if number >= sum(each.kind == kind for each in known)
        ]
        try:
            if wanted:
                measure(peer, _until(deadline, wanted), state, results, console)
        except PeerUnavailableError as error:
            console.print(f"{peer} cannot be had here: {error}")
    found = [each for each in results.read() if each.peer in peers and each.commit in (commit, "-")]
    report(found, console)
    problems = missed(found, "tidelog")
    for problem in problems:
        console.print(f"[red]missed[/red] {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
