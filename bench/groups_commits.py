"""How fast offsets are committed: ready-made requests over bare sockets, as many as possible, and at a steady rate."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from bench.children import run
from bench.groups_wire import REBALANCE_SECONDS_MAX, accept
from bench.latency import percentiles
from bench.load import LoadError
from bench.results import Metric, Results
from bench.topics import topic_of
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.headers import RequestHeader, decode_response, encode_request
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tools.peers.process import Peer

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
                    accept(partition.error_code, ErrorCode.NONE)
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
