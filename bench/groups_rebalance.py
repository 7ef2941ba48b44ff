"""How long a rebalance takes: librdkafka consumers, several in each process, from the join of the last to every partition owned and read."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

import confluent_kafka

from bench.children import CONTEXT, Child, new_event
from bench.groups_wire import CLASSIC, CONSUMER, PARTITIONS, REBALANCE_SECONDS_MAX
from bench.load import LoadError
from bench.results import Metric, Results
from bench.scale_load import produce_to_each
from bench.topics import topic_of
from tools.peers.process import Peer
from tools.peers.raw import RawConnection, build_batch

CONSUMERS, PROCESSES = 50, 5
POLL_SECONDS = 0.1
COMMON_SETTINGS: dict[str, Any] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,  # so that whoever takes a partition over reads it from its beginning
    "log_level": 0,
}
PROTOCOL_SETTINGS: dict[str, dict[str, Any]] = {
    CLASSIC: {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 3000,
        "session.timeout.ms": 45_000,
    },
    CONSUMER: {"group.protocol": "consumer"},
}


class Said(NamedTuple):
    """What a member reports; nanoseconds of the clock that all processes of a machine share."""

    what: str
    """`subscribed`, `assigned`, `revoked` or `consumed`."""
    member: int
    partitions: tuple[int, ...]
    at: int


def members(
    bootstrap: str,
    topic: str,
    group: str,
    protocol: str,
    *,
    numbers: list[int],
    ready: Event,
    go: Event,
    stop: Event,
    said: Any,
) -> None:
    """Consumers of one process, a thread for each; all of them subscribe at `go`."""
    waiting = threading.Barrier(len(numbers) + 1)

    def consume(number: int) -> None:
        def tell(what: str) -> Callable[[Any, list[Any]], None]:
            return lambda _consumer, found: said.put(
                Said(what, number, tuple(each.partition for each in found), time.monotonic_ns())
            )

        settings = {"bootstrap.servers": bootstrap, "group.id": group} | COMMON_SETTINGS
        consumer: Any = confluent_kafka.Consumer(settings | PROTOCOL_SETTINGS[protocol])
        consumer.list_topics(topic, timeout=30)  # connected before the clock starts
        waiting.wait()
        go.wait()
        said.put(Said("subscribed", number, (), time.monotonic_ns()))
        consumer.subscribe(
            [topic], on_assign=tell("assigned"), on_revoke=tell("revoked"), on_lost=tell("revoked")
        )
        while not stop.is_set():
            found = [
                message for message in consumer.consume(100, timeout=POLL_SECONDS) if not message.error()
            ]
            if found:
                numbers_read = tuple({message.partition() for message in found})
                said.put(Said("consumed", number, numbers_read, time.monotonic_ns()))
        consumer.close()

    threads = [threading.Thread(target=consume, args=(number,), daemon=True) for number in numbers]
    for thread in threads:
        thread.start()
    waiting.wait()
    ready.set()
    for thread in threads:
        thread.join()


class Ownership:
    """Who owns and reads what, as far as the members have said."""

    def __init__(self, said: Any) -> None:
        self._said = said
        self._owners: dict[int, dict[int, int]] = {number: {} for number in range(PARTITIONS)}
        """Partition to its owners, and when each has read from it since it got it; 0: not yet."""
        self._joined = 0
        self.last_subscribed_ns = 0

    def await_balance(self, consumers: int) -> int:
        """Until every partition is read by its one owner and all have equal shares: when that was."""
        deadline = time.monotonic() + REBALANCE_SECONDS_MAX
        while True:
            try:
                self._take(self._said.get(timeout=max(0.01, deadline - time.monotonic())))
            except queue.Empty:
                raise LoadError(
                    f"not balanced after {REBALANCE_SECONDS_MAX:.0f} s: {self._state()}"
                ) from None
            if self._joined == consumers and self._is_balanced(consumers):
                return max(at for owners in self._owners.values() for at in owners.values())

    def _take(self, said: Said) -> None:
        if said.what == "subscribed":
            self._joined += 1
            self.last_subscribed_ns = max(self.last_subscribed_ns, said.at)
        for number in said.partitions:
            owners = self._owners[number]
            if said.what == "assigned":
                owners[said.member] = 0
            elif said.what == "revoked":
                owners.pop(said.member, None)
            elif owners.get(said.member) == 0:
                owners[said.member] = said.at

    def _is_balanced(self, consumers: int) -> bool:
        shares = dict.fromkeys(range(consumers), 0)
        for owners in self._owners.values():
            if len(owners) != 1:
                return False
            ((member, read_at),) = owners.items()
            if not read_at:
                return False
            shares[member] += 1
        return max(shares.values()) - min(shares.values()) <= 1

    def _state(self) -> str:
        counts = [len(owners) for owners in self._owners.values()]
        read = sum(any(owners.values()) for owners in self._owners.values())
        return f"{counts.count(0)} partitions without an owner, {sum(n > 1 for n in counts)} with two, {read} read"


def rebalance_metric(what: str, protocol: str) -> Metric:
    return Metric(f"{what}, {PARTITIONS} partitions, {protocol}", "s", False)


AT_ONCE_TEXT = f"{CONSUMERS - 1} members join at once"
ONE_MORE_TEXT = "one more joins them"
QUIET_TEXT = "another one, after some quiet seconds"
QUIET_SECONDS = (4.0, 7.0)
"""A moment of these, drawn anew each time: where in its members' heartbeats a rebalance falls decides how long it takes."""


def rebalance(protocol: str) -> Callable[[Peer, Results], None]:
    """All but one of fifty join at once; when they have settled, the last joins, and a while later one more. Each time until everything is owned and read."""

    def measure(peer: Peer, results: Results) -> None:
        with (
            topic_of(peer, "rebalance", partitions=PARTITIONS) as topic,
            RawConnection(peer.bootstrap) as raw,
        ):
            batch = build_batch([b"read me"], timestamp_ms=int(time.time() * 1000))
            produce_to_each(raw, topic, range(PARTITIONS), batch)
            began_cpu = peer.cpu_seconds()
            taken = _rebalance(peer, topic, protocol)
            cpu = peer.cpu_seconds() - began_cpu
        for what, seconds in zip((AT_ONCE_TEXT, ONE_MORE_TEXT, QUIET_TEXT), taken, strict=True):
            results.add(rebalance_metric(what, protocol), peer.name, seconds)
        results.add(Metric(f"broker CPU of all three, {protocol}", "s", False), peer.name, cpu)

    return measure


def _rebalance(peer: Peer, topic: str, protocol: str) -> list[float]:
    said = CONTEXT.Queue()
    stop, all_go, last_goes, late_goes = (new_event() for _ in range(4))
    shares = [
        *((list(range(CONSUMERS - 1))[start::PROCESSES], all_go) for start in range(PROCESSES)),
        ([CONSUMERS - 1], last_goes),
        ([CONSUMERS], late_goes),
    ]
    ready = [new_event() for _ in shares]
    clients = [
        Child(
            members,
            peer.bootstrap,
            topic,
            topic,  # the group's name, new each time
            protocol,
            numbers=numbers,
            ready=event,
            go=go,
            stop=stop,
            said=said,
        )
        for (numbers, go), event in zip(shares, ready, strict=True)
    ]
    taken: list[float] = []
    try:
        for event in ready:
            if not event.wait(REBALANCE_SECONDS_MAX):
                raise LoadError("the consumers did not get ready")
        ownership = Ownership(said)
        for consumers, go in ((CONSUMERS - 1, all_go), (CONSUMERS, last_goes), (CONSUMERS + 1, late_goes)):
            if go is late_goes:
                time.sleep(random.uniform(*QUIET_SECONDS))
            go.set()
            taken.append((ownership.await_balance(consumers) - ownership.last_subscribed_ns) / 1e9)
        stop.set()
        for client in clients:
            client.result(REBALANCE_SECONDS_MAX)
    finally:
        stop.set()
        for client in clients:
            client.end()
    return taken
