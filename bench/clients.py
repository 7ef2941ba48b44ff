"""Our client beside confluent-kafka, aiokafka and kafka-python: records per second and processor time per record, in alternating rounds on one broker.

    python -m bench.clients                    # three rounds, some ten minutes
    python -m bench.clients --rounds 5 --sizes 100

The broker is Tidelog in a process of its own with durability=replicated, or any Kafka with --bootstrap. Each measurement is a process of its own (`bench.clients_load`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench import memory_at_hand
from bench.clients_load import CEILING, CLIENTS
from bench.run import machine
from bench.topics import QUICK_DELETION, create_topic, delete_topic
from tools.peers.tidelog import TidelogPeer

COUNTS = {100: 500_000, 1024: 200_000}
OTHER_BYTES = 200 << 20
"""Of records of another size: the faster clients write ten times as much, from memory."""
FASTER = ("tidelog-arrow", "confluent-kafka")
"""These move ten times as many in the same time."""
BESIDE = {
    "tidelog": "aiokafka",
    "tidelog-blocking": "kafka-python",
    "tidelog-arrow": "confluent-kafka",
    CEILING: "confluent-kafka",
}
AIMS = {
    ("tidelog", "produce"): 1.5,
    ("tidelog", "consume"): 1.5,
    ("tidelog-arrow", "produce"): 3.0,
    ("tidelog-arrow", "consume"): 5.0,
}
TIMEOUT_SECONDS = 300


class Sample(NamedTuple):
    per_second: float
    cpu_us: float


def measure(client: str, direction: str, servers: str, topic: str, count: int, size: int) -> Sample:
    command = [
        sys.executable,
        "-m",
        "bench.clients_load",
        client,
        direction,
        servers,
        topic,
        str(count),
        str(size),
    ]
    os.sync()  # what the ones before have left to be written would slow down whoever is faster than the disk
    with memory_at_hand.at_hand(2 * count * size):  # for the page cache, and for whoever holds a whole table
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{client} {direction} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Sample(result["records"] / result["seconds"], result["cpu_seconds"] / result["records"] * 1e6)


@contextmanager
def a_topic(servers: str) -> Iterator[str]:
    """Gone afterwards: a few rounds would fill the disk."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    create_topic(servers, name)
    try:
        yield name
    finally:
        delete_topic(servers, name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="100,1024", help="bytes of a record, separated by commas")
    parser.add_argument("--clients", default=",".join([*CLIENTS, CEILING]))
    parser.add_argument("--bootstrap", help="a broker that runs already")
    options = parser.parse_args()
    console = Console(width=max(Console().width, 130), markup=False)
    clients = options.clients.split(",")
    samples: dict[tuple[int, str, str], list[Sample]] = defaultdict(list)
    peer_made = (
        nullcontext() if options.bootstrap else TidelogPeer(durability="replicated", settings=QUICK_DELETION)
    )
    with peer_made as peer:
        servers = options.bootstrap if peer is None else peer.bootstrap
        for number in range(options.rounds):
            for size in map(int, options.sizes.split(",")):
                count = COUNTS.get(size, OTHER_BYTES // size)
                turn = number % len(clients)
                with a_topic(servers) as ready:
                    # What is consumed comes from one and the same producer.
                    measure("tidelog-arrow", "produce", servers, ready, 10 * count, size)
                    for client in clients[turn:] + clients[:turn]:
                        some = 10 * count if client in FASTER else count
                        for direction in ("produce", "consume"):
                            if client == CEILING and direction == "produce":
                                continue
                            with a_topic(servers) if direction == "produce" else nullcontext(ready) as topic:
                                sample = measure(client, direction, servers, topic, some, size)
                            samples[size, direction, client].append(sample)
                            console.print(
                                f"round {number + 1}  {size:5} B  {direction}  {client:18} {sample.per_second:12,.0f}/s {sample.cpu_us:8.2f} µs",
                                highlight=False,
                            )
    show(samples, console)
    console.print(f"{machine()}; {options.rounds} rounds", highlight=False)


def show(samples: dict[tuple[int, str, str], list[Sample]], console: Console) -> None:
    table = Table("load", "client", "records/s", "CPU µs/record", "beside", "ratio (rounds)", "aim")
    for (size, direction, client), found in sorted(samples.items()):
        beside = BESIDE.get(client)
        ratio = aim = ""
        others = samples.get((size, direction, beside or ""))
        if beside is not None and others:
            ratios = [a.per_second / b.per_second for a, b in zip(found, others, strict=True)]
            ratio = f"{statistics.median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f})"
            wanted = AIMS.get((client, direction))
            if wanted is not None:
                aim = f"≥ {wanted:g}× {'met' if statistics.median(ratios) >= wanted else 'missed'}"
        table.add_row(
            f"{direction} {size} B",
            client,
            f"{statistics.median(s.per_second for s in found):,.0f}",
            f"{statistics.median(s.cpu_us for s in found):.2f}",
            beside or "",
            ratio,
            aim,
        )
    console.print(table)


if __name__ == "__main__":
    main()
