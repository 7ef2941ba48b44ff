"""`python -m bench.cluster_profile`: where the processor time of a leader and of a follower goes while they replicate.

One partition with three replicas, so that roles are apart: one broker leads, two follow. Both roles are sampled with Linux `perf` under the loads of `bench.cluster`,
and the samples sorted as in `bench.profile`.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench import latency, memory_at_hand
from bench.cluster_loads import CELLS, GB, Cell, produce
from bench.cluster_peers import BROKERS, CLUSTERS, MeasuredCluster
from bench.plan import PER_SECOND, STEADY_RECORD_BYTES
from bench.profile import KINDS, sampled, shares
from tools.peers.leaders import partitions_of

STEADY_SECONDS = 8.0


class Profiled(NamedTuple):
    load: str
    role: str
    cpu: float
    """Seconds per GB that was produced."""
    samples: Path


def measure(cluster: MeasuredCluster, folder: Path, loads: list[Cell | None]) -> Iterator[Profiled]:
    for number, cell in enumerate(loads):
        name = cell.label if cell is not None else "5,000 records/s of 1 KiB"
        volume = (
            cell.records * cell.record_bytes
            if cell is not None
            else int(PER_SECOND * STEADY_RECORD_BYTES * (STEADY_SECONDS + 1))
        )
        with cluster.topic("profile", partitions=1) as topic:
            leader = partitions_of(cluster.nodes[0].bootstrap, topic)[0].leader
            roles = {"leader": leader, "follower": (leader + 1) % BROKERS}
            paths = {role: folder / f"{number}-{role}.perf" for role in roles}
            with memory_at_hand.at_hand(BROKERS * volume if cell is not None else 0):
                before = {role: cluster.nodes[node].cpu_seconds() for role, node in roles.items()}
                with contextlib.ExitStack() as sampling:
                    for role, node in roles.items():
                        sampling.enter_context(sampled(cluster.nodes[node].pid, paths[role]))
                    if cell is None:
                        latency.steady(cluster.bootstrap, topic, seconds=STEADY_SECONDS, skip_seconds=1.0)
                    else:
                        produce(cluster, topic, cell, partitions=1)
                spent = {
                    role: cluster.nodes[node].cpu_seconds() - before[role] for role, node in roles.items()
                }
        for role, path in paths.items():
            yield Profiled(name, role, spent[role] / (volume / GB), path)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.cluster_profile", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--durability", default="replicated", choices=("replicated", "fsync"))
    parser.add_argument("--loads", default="", help="only those whose label contains this")
    parser.add_argument("--functions", type=int, default=0, help="also name so many functions that took most")
    options = parser.parse_args()
    if shutil.which("perf") is None:
        sys.exit(
            "perf is not installed (Debian: linux-perf); bench.cluster_profile can do nothing without it"
        )
    console = Console(width=170, markup=False)
    table = Table(
        "load",
        "role",
        "CPU s/GB",
        title=f"durability={options.durability}: percent of a broker's processor time",
    )
    for kind in KINDS:
        table.add_column(kind, justify="right")
    loads: list[Cell | None] = [cell for cell in CELLS if options.loads in cell.label]
    if not options.loads or options.loads in "steady":
        loads.append(None)
    named = []
    cluster = CLUSTERS[f"tidelog-{options.durability}"]()
    try:
        cluster.start()
        with tempfile.TemporaryDirectory() as folder:
            for load, role, cpu, samples in measure(cluster, Path(folder), loads):
                kinds, functions = shares(samples)
                table.add_row(load, role, f"{cpu:.2f}", *(f"{kinds[kind]:.0f}" for kind in KINDS))
                named.append((f"{load}, {role}", functions[: options.functions]))
    finally:
        cluster.stop()
    console.print(table)
    for label, functions in named:
        for percent, function in functions:
            console.print(f"{label}: {percent:5.1f} % {function}")


if __name__ == "__main__":
    main()
