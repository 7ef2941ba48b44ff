"""Microseconds of broker CPU per request, from a frame in memory to its answer in memory: no socket, a real log on real files.

    python -m bench.micro_broker [--rounds 7]

One Produce request carries one batch of one record; a Fetch reads one such batch. CPU time of the loop's thread, best round.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from tidelog.broker.connection import Connection
from tidelog.broker.node import Broker
from tidelog.broker.pending import Pending
from tidelog.config.resolve import BrokerConfig
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.storage.disk import FileRange
from tidelog.wire.api import ApiKey
from tidelog.wire.headers import RequestHeader, encode_request
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

REPEATS = 4000
TOPIC = "bench"


class NoSocket:
    """Where a connection would be: takes the answer that was waited for."""

    closed = False
    client_software = None
    is_waiting = False

    def answer_ready(self) -> None:
        pass


def best(operation: Callable[[], object], rounds: int, repeats: int = REPEATS) -> float:
    """Microseconds of this thread's CPU per call, best round."""
    found = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(repeats):
            operation()
        found = min(found, time.thread_time() - began)
    return found / repeats * 1e6


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


async def run(root: str, rounds: int) -> dict[str, float]:
    broker = Broker(
        BrokerConfig.load(
            {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": root, "durability": "replicated"}
        )
    )
    await broker.start()
    try:
        await broker.topics.create(TOPIC, 1, {}, exist_ok=False)
        return measure(broker, rounds)
    finally:
        await broker.stop(clean=False)


def measure(broker: Broker, rounds: int) -> dict[str, float]:
    partition = broker.partitions.leader_of(TOPIC, 0)
    connection = cast(Connection, NoSocket())
    handle = broker.dispatcher.handle
    now_ms = int(time.time() * 1000)
    batch = build_batch([Record(0, now_ms, None, b"x" * 100)])
    results: dict[str, float] = {}

    def answered(frame: memoryview) -> Sequence[Any]:
        answer = handle(connection, frame)
        assert answer is not None and not isinstance(answer, Pending)
        return answer

    for version in (7, 10, 13):
        frame = produce_frame(version, partition.topic_id, batch)
        results[f"produce request v{version}, one record"] = best(lambda f=frame: answered(f), rounds)  # type: ignore[misc]
    for version in (11, 17):
        results[f"fetch request v{version}, one new batch"] = tail_fetch(
            broker, version, answered, batch, now_ms, rounds
        )
    results["partition.append"] = best(
        lambda: partition.append(batch, now_ms=now_ms, produce_version=10), rounds
    )
    return results


def tail_fetch(
    broker: Broker,
    version: int,
    answered: Callable[[memoryview], Sequence[Any]],
    batch: bytes,
    now_ms: int,
    rounds: int,
) -> float:
    """A reader that keeps up: each fetch finds the one batch that came since the last. Only the fetch is timed."""
    partition = broker.partitions.leader_of(TOPIC, 0)
    found = float("inf")
    for _ in range(rounds):
        spent = 0.0
        for _ in range(REPEATS // 4):
            partition.log.positions.remember(
                partition.log.log_end_offset, partition.log.active, partition.log.active.size
            )
            frame = fetch_frame(version, partition.topic_id, partition.log.log_end_offset)
            partition.append(batch, now_ms=now_ms, produce_version=10)
            began = time.thread_time()
            parts = answered(frame)
            spent += time.thread_time() - began
            for part in parts:
                if isinstance(part, FileRange):
                    part.release()
        found = min(found, spent)
    return found / (REPEATS // 4) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    root = tempfile.mkdtemp(prefix="tidelog-bench-")
    try:
        for name, microseconds in asyncio.run(run(root, options.rounds)).items():
            print(f"{name:<48}{microseconds:8.2f} µs")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
