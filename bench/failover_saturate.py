"""`bench.failover --saturate`: three brokers with more to do than there are processors, and nobody killed. Whoever is fenced or elected meanwhile was suspected falsely.

For each broker one client that sends full batches and one that sends requests of one record, to the partitions that it leads, each as fast as it is answered, and one that reads what is written. A
count of fencings comes from the nodes' own logs, one of elections from the leader epochs of all partitions and from the logs; ISR changes are told, too, but an ISR that shrinks under such load is not wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.synchronize import Event
from typing import Final, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console

from bench import payload
from bench.children import Child, new_event
from bench.raw_load import check_produced
from tools.peers.leaders import partitions_of
from tools.peers.node_cluster import NodeCluster
from tools.peers.raw import RawConnection, build_batch, produce_request, whole_batches
from tools.peers.tidelog_cluster import TidelogCluster

NODES: Final = 3
BULK, SMALL = "bulk", "small"
TOPICS: Final = (BULK, SMALL)
IN_FLIGHT: Final = 5
SMALL_DEPTH: Final = 50
RECORD_BYTES: Final = 1024
SETTINGS: Final = {
    "min.insync.replicas": "2",
    "log.segment.bytes": "67108864",
    "log.retention.bytes": "268435456",
    "log.retention.check.interval.ms": "2000",
    "log.segment.delete.delay.ms": "500",
}
"""What is written faster than it is read must not fill the disk."""
END_SECONDS_MAX: Final = 60.0


class Work(NamedTuple):
    size: int
    """Bytes of records."""
    answers: int
    longest_s: float
    """Between two answers."""


def send(bootstrap: str, topic: str, partition: int, stop: Event, *, records: int, in_flight: int) -> Work:
    batch = build_batch(payload.values(RECORD_BYTES, records), timestamp_ms=int(time.time() * 1000))
    request = produce_request(topic, batch, partition=partition)
    with RawConnection(bootstrap, timeout_seconds=END_SECONDS_MAX) as connection:
        connection.send(request)
        answer_size = 4 + len(connection.receive())
        connection.send(request * in_flight)
        answers, longest, last = 0, 0.0, time.perf_counter()
        while not stop.is_set():
            check_produced(connection.receive_exactly(answer_size), topic)
            now = time.perf_counter()
            answers, longest, last = answers + 1, max(longest, now - last), now
            connection.send(request)
        for _ in range(in_flight):
            check_produced(connection.receive_exactly(answer_size), topic)
    return Work(answers * records * RECORD_BYTES, answers, longest)


def read(bootstrap: str, topic: str, partition: int, stop: Event) -> Work:
    size = answers = 0
    with RawConnection(bootstrap, timeout_seconds=END_SECONDS_MAX) as connection:
        offset = connection.list_offset(topic, -1, partition=partition)
        while not stop.is_set():
            try:
                found = connection.fetch(topic, offset, partition=partition, max_wait_ms=500)
            except RuntimeError:  # retention has overtaken the reader
                offset = connection.list_offset(topic, -2, partition=partition)
                continue
            whole, following = whole_batches(found)
            size, answers, offset = size + whole, answers + 1, max(offset, following)
    return Work(size, answers, 0.0)


class Events(NamedTuple):
    """What the logs and the metadata say, since the beginning."""

    fencings: int
    controllers: int
    leader_epochs: int
    isr_changes: int


def events(cluster: NodeCluster) -> Events:
    text = "".join(node.output_path.read_text(errors="replace") for node in cluster.nodes)
    leaders = isr = 0
    for topic in TOPICS:
        for led in partitions_of(cluster.nodes[0].bootstrap, topic).values():
            leaders += led.leader_epoch
            isr += len(led.isr) < len(led.replicas)
    return Events(text.count("is fenced"), text.count("is the active controller"), leaders, isr)


def saturate(minutes: float, durability: str, console: Console) -> int:
    """The exit status: 0 when nobody was suspected."""
    with TidelogCluster(durability=durability, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        placed = [[(number + copy) % NODES for copy in range(NODES)] for number in range(NODES)]
        for created in admin.create_topics(
            [NewTopic(topic, NODES, replica_assignment=placed) for topic in TOPICS]
        ).values():
            created.result(60)
        for topic in TOPICS:
            cluster.wait_until_in_sync(topic)
        before, cpu_before = events(cluster), [node.cpu_seconds() for node in cluster.nodes]
        stop, began = new_event(), time.monotonic()
        with ExitStack() as stack:
            loads = [(name, stack.enter_context(load)) for name, load in _loads(cluster, stop)]
            while time.monotonic() - began < minutes * 60 and all(load.is_running for _, load in loads):
                time.sleep(1.0)
            seconds = time.monotonic() - began
            found = events(cluster)
            cpu = [node.cpu_seconds() - spent for node, spent in zip(cluster.nodes, cpu_before, strict=True)]
            stop.set()
            for name, load in loads:
                work = load.result(END_SECONDS_MAX)
                console.print(
                    f"{name:16} {work.size / 1e6 / seconds:7.1f} MB/s {work.answers / seconds:9.0f} answers/s"
                    f"   longest wait for one {work.longest_s * 1000:6.0f} ms"
                )
    fenced, controllers = found.fencings - before.fencings, found.controllers - before.controllers
    leaders = found.leader_epochs - before.leader_epochs
    console.print(
        f"{seconds / 60:.1f} minutes, {durability}, processor time of the brokers {sum(cpu) / seconds:.2f} cores: "
        f"{fenced} fencings, {leaders} elections of leaders, {controllers} of controllers; {found.isr_changes} partitions with a smaller ISR at the end"
    )
    return 1 if fenced or leaders or controllers or seconds < minutes * 60 else 0


def _loads(cluster: NodeCluster, stop: Event) -> Iterator[tuple[str, Child[Work]]]:
    for number, node in enumerate(cluster.nodes):
        address = node.bootstrap
        yield (
            f"bulk to {number}",
            Child(send, address, BULK, number, stop, records=900, in_flight=IN_FLIGHT),
        )
        yield (
            f"small to {number}",
            Child(send, address, SMALL, number, stop, records=1, in_flight=SMALL_DEPTH),
        )
        yield f"reader of {number}", Child(read, address, BULK, number, stop)
