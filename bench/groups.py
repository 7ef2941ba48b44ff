"""Groups beside Apache Kafka: how long a rebalance takes, what idle members cost, how fast offsets are committed.

    python -m bench.groups
    python -m bench.groups --scenarios rebalance-consumer,commits --rounds 3

All brokers run at once and are asked in turn, as in `bench.run`; whoever is not asked is paused. Each has
`group.initial.rebalance.delay.ms=0`, so that no group waits for members on purpose, and stock settings otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import selectors
import signal
import socket
import statistics
import struct
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from rich.console import Console
from rich.table import Table

from bench import report
from bench.children import CONTEXT, Child, ChildFailedError, new_event, run
from bench.latency import percentiles
from bench.load import LoadError
from bench.results import Metric, Results
from bench.run import KAFKA_SETTINGS, machine, rotated, usable_peers
from bench.scale_load import produce_to_each
from bench.targets import Target, at_most
from bench.topics import QUICK_DELETION, topic_of
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode, error_name
from tidelog.wire.headers import RequestHeader, decode_response, encode_request
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.sync_group import SyncGroupRequest
from tools.peers.kafka import KafkaPeer
from tools.peers.maven import KAFKA_VERSION
from tools.peers.process import Peer
from tools.peers.raw import RawConnection, build_batch
from tools.peers.tidelog import TidelogPeer

KAFKA, REPLICATED, FSYNC = "kafka", "tidelog-replicated", "tidelog-fsync"
AT_ONCE = {"group.initial.rebalance.delay.ms": "0"}
PEERS: dict[str, Callable[[], Peer]] = {
    KAFKA: lambda: KafkaPeer(overrides=KAFKA_SETTINGS | AT_ONCE),
    REPLICATED: lambda: TidelogPeer(durability="replicated", settings=QUICK_DELETION | AT_ONCE),
    FSYNC: lambda: TidelogPeer(durability="fsync", settings=QUICK_DELETION | AT_ONCE),
}
SETTLE_SECONDS = 0.3

# ---- members of a rebalance: librdkafka, several consumers in each process

CONSUMERS, PARTITIONS, PROCESSES = 50, 200, 5
REBALANCE_SECONDS_MAX = 90.0
POLL_SECONDS = 0.1
CLASSIC, CONSUMER = "cooperative-sticky", "KIP-848"
HEARTBEAT_SECONDS = {CLASSIC: 3.0, CONSUMER: 5.0}
"""librdkafka's default for its classic members, the brokers' default for the others."""
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


def rebalance(protocol: str) -> Callable[[Peer, Results], None]:
    """All but one join at once; when they have settled, the last joins. Each time until everything is owned and read."""

    def measure(peer: Peer, results: Results) -> None:
        with (
            topic_of(peer, "rebalance", partitions=PARTITIONS) as topic,
            RawConnection(peer.bootstrap) as raw,
        ):
            batch = build_batch([b"read me"], timestamp_ms=int(time.time() * 1000))
            produce_to_each(raw, topic, range(PARTITIONS), batch)
            began_cpu = peer.cpu_seconds()
            first, last = _rebalance(peer, topic, protocol)
            cpu = peer.cpu_seconds() - began_cpu
        results.add(rebalance_metric(AT_ONCE_TEXT, protocol), peer.name, first)
        results.add(rebalance_metric(ONE_MORE_TEXT, protocol), peer.name, last)
        results.add(Metric(f"broker CPU of both, {protocol}", "s", False), peer.name, cpu)

    return measure


def _rebalance(peer: Peer, topic: str, protocol: str) -> tuple[float, float]:
    said = CONTEXT.Queue()
    stop, go, last_go = new_event(), new_event(), new_event()
    shares = [list(range(CONSUMERS - 1))[start::PROCESSES] for start in range(PROCESSES)] + [[CONSUMERS - 1]]
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
            go=last_go if number == PROCESSES else go,
            stop=stop,
            said=said,
        )
        for number, (numbers, event) in enumerate(zip(shares, ready, strict=True))
    ]
    try:
        for event in ready:
            if not event.wait(REBALANCE_SECONDS_MAX):
                raise LoadError("the consumers did not get ready")
        ownership = Ownership(said)
        go.set()
        first = ownership.await_balance(CONSUMERS - 1) - ownership.last_subscribed_ns
        last_go.set()
        last = ownership.await_balance(CONSUMERS) - ownership.last_subscribed_ns
        stop.set()
        for client in clients:
            client.result(REBALANCE_SECONDS_MAX)
    finally:
        stop.set()
        for client in clients:
            client.end()
    return first / 1e9, last / 1e9


# ---- idle members: an asyncio client of a few lines, a connection for each member

IDLE_MEMBERS, IDLE_GROUPS = 1000, 20
IDLE_SECONDS = 20.0
IDLE_SETTLE_BEATS = 3
"""Intervals without a rebalance before a client counts its members as idle."""
SYNC_VERSION, JOIN_VERSION, BEAT_VERSION = 3, 5, 3


class Asker:
    """One connection; one question at a time."""

    def __init__(self, bootstrap: str) -> None:
        self._host, _, port = bootstrap.rpartition(":")
        self._port = int(port)

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        self._writer.write(encode_request(RequestHeader(int(key), version, 1, "idle"), request))
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return decode_response(int(key), version, await self._reader.readexactly(size))[1]

    def close(self) -> None:
        self._writer.close()


class IdleMember:
    """Joins, does what it is told, and then sends heartbeats."""

    def __init__(self, bootstrap: str, group: str, topic: str, number: int) -> None:
        self._asker = Asker(bootstrap)
        self._group, self._topic, self._number = group, topic, number
        self.id = ""
        self.beats = 0
        self.last_change = time.monotonic()

    async def live(self, protocol: str) -> None:
        interval = HEARTBEAT_SECONDS[protocol]
        await self._asker.connect()
        await asyncio.sleep(interval * self._number / IDLE_MEMBERS)  # not all at the same moment
        await (self._classic(interval) if protocol == CLASSIC else self._consumer(interval))

    async def _classic(self, interval: float) -> None:
        while True:
            generation = await self._join()
            sync = SyncGroupRequest(group_id=self._group, generation_id=generation, member_id=self.id)
            answer = await self._asker.ask(ApiKey.SYNC_GROUP, SYNC_VERSION, sync)
            self.last_change = time.monotonic()
            beat = HeartbeatRequest(group_id=self._group, generation_id=generation, member_id=self.id)
            while not answer.error_code:
                await asyncio.sleep(interval)
                answer = await self._asker.ask(ApiKey.HEARTBEAT, BEAT_VERSION, beat)
                self.beats += 1
            _accept(answer.error_code, ErrorCode.REBALANCE_IN_PROGRESS)

    async def _join(self) -> int:
        while True:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=45_000,
                rebalance_timeout_ms=60_000,
                member_id=self.id,
                protocol_type="bench",
                protocols=[JoinGroupRequestProtocol(name="idle", metadata=b"")],
            )
            answer = await self._asker.ask(ApiKey.JOIN_GROUP, JOIN_VERSION, request)
            self.id = answer.member_id
            if not answer.error_code:
                generation: int = answer.generation_id
                return generation
            _accept(answer.error_code, ErrorCode.MEMBER_ID_REQUIRED)

    async def _consumer(self, interval: float) -> None:
        epoch, owned = 0, None
        self.id = f"{self._group}-{self._number:04}"
        while True:
            request = ConsumerGroupHeartbeatRequest(
                group_id=self._group, member_id=self.id, member_epoch=epoch
            )
            if epoch == 0:
                request.rebalance_timeout_ms = 60_000
                request.subscribed_topic_names = [self._topic]
            request.topic_partitions = [] if epoch == 0 else owned
            answer = await self._asker.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
            _accept(answer.error_code, ErrorCode.NONE)
            self.beats += 1
            owned = None
            if answer.member_epoch != epoch or answer.assignment is not None:
                epoch, self.last_change = answer.member_epoch, time.monotonic()
            if answer.assignment is not None:
                owned = answer.assignment.topic_partitions
                continue  # it has taken and let go what it was told to, and says so at once
            await asyncio.sleep(interval)

    async def leave(self, protocol: str, asker: Asker) -> None:
        """Through a connection that nothing else is under way on; later measurements would pay for members that just fall silent."""
        if protocol == CLASSIC:
            farewell = LeaveGroupRequest(group_id=self._group, member_id=self.id)
            await asker.ask(ApiKey.LEAVE_GROUP, 0, farewell)
        else:
            last = ConsumerGroupHeartbeatRequest(group_id=self._group, member_id=self.id, member_epoch=-1)
            await asker.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, last)


def _accept(code: int, *accepted: ErrorCode) -> None:
    if code not in accepted:
        raise LoadError(f"a member was answered {error_name(code)}")


def idle_members(bootstrap: str, topic: str, protocol: str, *, idle: Event, stop: Event) -> int:
    """A thousand members: says when they have come to rest, and returns how many heartbeats were answered since."""
    return asyncio.run(_idle_members(bootstrap, topic, protocol, idle, stop))


async def _idle_members(bootstrap: str, topic: str, protocol: str, idle: Event, stop: Event) -> int:
    found = [
        IdleMember(bootstrap, f"{topic}-{number % IDLE_GROUPS}", topic, number)
        for number in range(IDLE_MEMBERS)
    ]
    tasks = [asyncio.create_task(member.live(protocol)) for member in found]
    quiet_seconds = IDLE_SETTLE_BEATS * HEARTBEAT_SECONDS[protocol]
    counted = 0
    while not stop.is_set():
        await asyncio.sleep(0.1)
        for task in tasks:
            if task.done():
                task.result()
        last_change = max(member.last_change for member in found)
        if not idle.is_set() and time.monotonic() - last_change > quiet_seconds:
            counted = sum(member.beats for member in found)
            idle.set()
    beats = sum(member.beats for member in found) - counted
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    asker = Asker(bootstrap)
    await asker.connect()
    for member in found:
        await member.leave(protocol, asker)
    asker.close()
    return beats


def idle_metric(protocol: str) -> Metric:
    return Metric(f"broker CPU, {IDLE_MEMBERS:,} idle members, {protocol}", "% of a core", False)


def idle_cost(protocol: str) -> Callable[[Peer, Results], None]:
    def measure(peer: Peer, results: Results) -> None:
        idle, stop = new_event(), new_event()
        with (
            topic_of(peer, "idle", partitions=PARTITIONS) as topic,
            Child(idle_members, peer.bootstrap, topic, protocol, idle=idle, stop=stop) as client,
        ):
            deadline = time.monotonic() + REBALANCE_SECONDS_MAX
            while not idle.wait(0.5):
                if not client.is_running or time.monotonic() > deadline:
                    stop.set()
                    client.result(10)
                    raise LoadError("the members did not come to rest")
            cpu, began = peer.cpu_seconds(), time.monotonic()
            time.sleep(IDLE_SECONDS)
            busy = (peer.cpu_seconds() - cpu) / (time.monotonic() - began)
            stop.set()
            beats = client.result(30)
        expected = IDLE_MEMBERS * IDLE_SECONDS / HEARTBEAT_SECONDS[protocol]
        if beats < 0.8 * expected:
            raise LoadError(f"{beats} heartbeats were answered instead of {expected:.0f}")
        results.add(idle_metric(protocol), peer.name, 100 * busy)

    return measure


# ---- commits: ready-made requests over bare sockets

COMMIT_PARTITIONS = 4
COMMIT_SECONDS = 5.0
COMMITTERS = 10
"""Connections that each wait for an answer before the next commit, when it is to be as many as possible."""
STEADY_PER_SECOND, STEADY_CONNECTIONS, STEADY_SECONDS, STEADY_SKIP_SECONDS = 500, 50, 10.0, 2.0
COMMIT_VERSION = 7


def commit_frame(group: str, topic: str, offset: int) -> bytes:
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
                    for number in range(COMMIT_PARTITIONS)
                ],
            )
        ],
    )
    return encode_request(RequestHeader(int(ApiKey.OFFSET_COMMIT), COMMIT_VERSION, offset, "bench"), request)


class Committer:
    """One connection of one group; its answers come in the order of its commits."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._group, self._topic = group, topic
        self._offset = 0
        self._received = bytearray()
        self.due: deque[int] = deque()
        """When each commit that is not yet answered should have gone."""

    def send(self, due_ns: int) -> None:
        self._offset += 1
        self.due.append(due_ns)
        self.socket.sendall(commit_frame(self._group, self._topic, self._offset))

    def receive(self) -> Iterator[int]:
        """What is there: for each answer when its commit was due."""
        more = self.socket.recv(1 << 16)
        if not more:
            raise ConnectionError("the broker closed the connection")
        self._received += more
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                return
            answer = decode_response(
                int(ApiKey.OFFSET_COMMIT), COMMIT_VERSION, bytes(self._received[4 : 4 + size])
            )[1]
            del self._received[: 4 + size]
            for topic in answer.topics:
                for partition in topic.partitions:
                    _accept(partition.error_code, ErrorCode.NONE)
            yield self.due.popleft()


@contextmanager
def committers(
    bootstrap: str, topic: str, count: int
) -> Iterator[tuple[list[Committer], selectors.BaseSelector]]:
    selector = selectors.DefaultSelector()
    made = [Committer(bootstrap, f"{topic}-{number}", topic) for number in range(count)]
    for committer in made:
        selector.register(committer.socket, selectors.EVENT_READ, committer)
    try:
        yield made, selector
    finally:
        selector.close()
        for committer in made:
            committer.socket.close()


def commits_per_second(bootstrap: str, topic: str, *, seconds: float) -> float:
    with committers(bootstrap, topic, COMMITTERS) as (made, selector):
        done = 0
        began = time.monotonic()
        for committer in made:
            committer.send(0)
        while time.monotonic() - began < seconds:
            for key, _ in selector.select(1.0):
                for _due in key.data.receive():
                    done += 1
                    key.data.send(0)
        return done / (time.monotonic() - began)


def steady_commits(bootstrap: str, topic: str, *, seconds: float, skip_seconds: float) -> array[int]:
    """Nanoseconds from when each commit was due until it was answered. Whoever stalls pays for every commit that had to wait."""
    found: array[int] = array("q")
    step = 1_000_000_000 // STEADY_PER_SECOND
    total = round((seconds + skip_seconds) * STEADY_PER_SECOND)
    with committers(bootstrap, topic, STEADY_CONNECTIONS) as (made, selector):
        first = time.monotonic_ns() + 10 * step
        sent = 0
        while len(found) < total:
            now = time.monotonic_ns()
            while sent < total and first + sent * step <= now:
                made[sent % STEADY_CONNECTIONS].send(first + sent * step)
                sent += 1
            wait = (first + sent * step - time.monotonic_ns()) / 1e9 if sent < total else 1.0
            for key, _ in selector.select(max(0.0, wait)):
                for due in key.data.receive():
                    found.append(time.monotonic_ns() - due)
            if now - first > (seconds + skip_seconds + REBALANCE_SECONDS_MAX) * 1e9:
                raise LoadError(f"{len(found)} of {total} commits were answered")
    return found[round(skip_seconds * STEADY_PER_SECOND) :]


COMMITS = Metric(f"commits of {COMMIT_PARTITIONS} offsets, {COMMITTERS} groups at once", "/s", True)
COMMIT_CPU = Metric(f"broker CPU at {STEADY_PER_SECOND} commits/s", "% of a core", False)


def commit_metric(name: str) -> Metric:
    return Metric(f"commit {name} at {STEADY_PER_SECOND}/s", "ms", False)


def commits(peer: Peer, results: Results, *, seconds: float = COMMIT_SECONDS) -> None:
    with topic_of(peer, "commits", partitions=COMMIT_PARTITIONS) as topic:
        results.add(COMMITS, peer.name, run(commits_per_second, peer.bootstrap, topic, seconds=seconds))
    with topic_of(peer, "commits-steady", partitions=COMMIT_PARTITIONS) as topic:
        cpu, began = peer.cpu_seconds(), time.monotonic()
        taken = run(
            steady_commits,
            peer.bootstrap,
            topic,
            seconds=min(STEADY_SECONDS, 2 * seconds),
            skip_seconds=STEADY_SKIP_SECONDS,
        )
        busy = (peer.cpu_seconds() - cpu) / (time.monotonic() - began)
    for name, value in zip(("p50", "p99", "p99.9"), percentiles(taken), strict=True):
        results.add(commit_metric(name), peer.name, value)
    results.add(COMMIT_CPU, peer.name, 100 * busy)


# ---- the run


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
        for what in (AT_ONCE_TEXT, ONE_MORE_TEXT):
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


def await_coordinator(peer: Peer) -> None:
    """The first question makes the topic that groups are kept in; the last of its partitions serves a moment later."""

    async def ask() -> None:
        asker = Asker(peer.bootstrap)
        await asker.connect()
        deadline = time.monotonic() + REBALANCE_SECONDS_MAX
        while time.monotonic() < deadline:
            found = await asker.ask(
                ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=["bench"])
            )
            if not found.coordinators[0].error_code:
                names = [f"nobody-{number}" for number in range(500)]
                told = await asker.ask(ApiKey.DELETE_GROUPS, 1, DeleteGroupsRequest(groups_names=names))
                if {each.error_code for each in told.results} == {ErrorCode.GROUP_ID_NOT_FOUND}:
                    asker.close()
                    return
            await asyncio.sleep(0.1)
        raise LoadError(f"{peer.name} coordinates no groups after {REBALANCE_SECONDS_MAX:.0f} s")

    asyncio.run(ask())


def settings_line() -> str:
    classic = ", ".join(f"{name}={value}" for name, value in PROTOCOL_SETTINGS[CLASSIC].items())
    return (
        f"librdkafka {confluent_kafka.libversion()[0]}; {CONSUMERS} consumers in {PROCESSES + 1} processes, {PARTITIONS} partitions; "
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
