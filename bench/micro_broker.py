"""Microseconds of broker CPU per request, from a frame in memory to its answer in memory: no socket, a real log on real files.

`python -m bench.micro broker`. One Produce request carries one batch of one record; a Fetch reads one such batch.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

from bench.timing import ROUNDS, Stopwatch, Timing, cost_seconds
from tidelog.broker.connection import Connection
from tidelog.broker.node import Broker
from tidelog.broker.pending import Pending
from tidelog.config.resolve import BrokerConfig
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.replication.partition import Partition
from tidelog.storage.disk import FileRange
from tidelog.wire.api import ApiKey
from tidelog.wire.headers import RequestHeader, encode_request
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

FETCHES = 100
TOPIC = "bench"


class NoSocket:
    """Where a connection would be: takes the answer that was waited for."""

    closed = False
    client_software = None
    is_waiting = False

    def answer_ready(self, *, at_once: bool = False) -> None:
        pass


def produce_frame(version: int, topic_id: bytes, batch: bytes) -> memoryview:
    partition = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        None, -1, 30_000, [TopicProduceData(name=TOPIC, topic_id=topic_id, partition_data=[partition])]
    )
    header = RequestHeader(ApiKey.PRODUCE, version, 7, "bench-producer")
    return memoryview(bytearray(encode_request(header, request)))[4:]


def fetch_frame(version: int, topic_id: bytes, offset: int) -> memoryview:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=[partition])],
    )
    return memoryview(
        bytearray(encode_request(RequestHeader(ApiKey.FETCH, version, 7, "bench-consumer"), request))
    )[4:]


def timings() -> Iterator[Timing]:
    root = tempfile.mkdtemp(prefix="tidelog-bench-")
    try:
        yield from asyncio.run(run(root))
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def run(root: str) -> list[Timing]:
    broker = Broker(
        BrokerConfig.load(
            {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": root, "durability": "replicated"}
        )
    )
    await broker.start()
    try:
        await broker.topics.create(TOPIC, 1, {}, exist_ok=False)
        return list(measure(broker))
    finally:
        await broker.stop(clean=False)


def measure(broker: Broker) -> Iterator[Timing]:
    partition = broker.partitions.leader_of(TOPIC, 0)
    connection = cast(Connection, NoSocket())
    handle = broker.dispatcher.handle
    now_ms = int(time.time() * 1000)
    batch = build_batch([Record(0, now_ms, None, b"x" * 100)])

    def answered(frame: memoryview) -> Sequence[Any]:
        answer = handle(connection, frame)
        assert answer is not None and not isinstance(answer, Pending)
        return answer

    for version in (7, 10, 13):
        frame = produce_frame(version, partition.topic_id, batch)
        yield Timing(f"produce request v{version}, one record", cost_seconds(partial(answered, frame)))
    for version in (11, 17):
        seconds = tail_fetch(partition, version, answered, batch, now_ms)
        yield Timing(f"fetch request v{version}, one new batch", seconds)
    append = partial(partition.append, batch, now_ms=now_ms, produce_version=10)
    yield Timing("partition.append", cost_seconds(append))


def tail_fetch(
    partition: Partition,
    version: int,
    answered: Callable[[memoryview], Sequence[Any]],
    batch: bytes,
    now_ms: int,
) -> float:
    """A reader that keeps up: each fetch finds the one batch that came since the last. Only the fetches are timed."""
    log = partition.log
    rounds = []
    for _ in range(ROUNDS):
        frames = []
        for _ in range(FETCHES):
            log.positions.remember(log.log_end_offset, log.active, log.active.size)
            frames.append(fetch_frame(version, partition.topic_id, log.log_end_offset))
            partition.append(batch, now_ms=now_ms, produce_version=10)
        watch = Stopwatch()
        watch.start()
        answers = [answered(frame) for frame in frames]
        rounds.append(watch.stop() / FETCHES)
        for part in itertools.chain.from_iterable(answers):
            if isinstance(part, FileRange):
                part.release()
    return statistics.median(rounds)
