"""The load behind `tidelog bench`, and its figures. MB/s counts uncompressed values for produce, wire bytes for consume."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing
from typing import Any

from tidelog.cli.start_offsets import end_offsets, partitions_of, start_offsets
from tidelog.client.admin import Admin, NewTopic
from tidelog.client.cluster import ClusterClient, TopicMissingError
from tidelog.client.fetch import Fetcher
from tidelog.client.metadata import TopicInfo, TopicPartition
from tidelog.client.produce import produce_batch
from tidelog.records.batch import iter_headers
from tidelog.records.builder import BatchBuilder
from tidelog.records.compression import Codec

_RECORD_OVERHEAD = 12
_WORDS = [b"order", b"courier", b"restaurant", b"customer", b"created", b"picked-up", b"delivered"]


async def ensure_topic(cluster: ClusterClient, name: str, partitions: int) -> TopicInfo:
    try:
        return await cluster.topic(name)
    except TopicMissingError:
        await Admin(cluster).create_topics([NewTopic(name, partitions)])
        return await cluster.topic(name, expected=True)


async def measure_produce(
    cluster: ClusterClient,
    topic: TopicInfo,
    *,
    count: int,
    size: int,
    batch_bytes: int,
    in_flight: int,
    codec: Codec,
    acks: int,
) -> dict[str, Any]:
    per_batch = min(count, max(1, batch_bytes // (size + _RECORD_OVERHEAD)))
    batch = build_load_batch(per_batch, size, codec)
    tail = count % per_batch
    sizes = [per_batch] * (count // per_batch) + ([tail] if tail else [])
    last_batch = build_load_batch(tail, size, codec) if tail else batch
    targets = [TopicPartition(topic.name, partition) for partition in topic.partitions]
    latencies: list[float] = []
    numbers = iter(range(len(sizes)))

    async def worker() -> None:
        for number in numbers:
            payload = batch if sizes[number] == per_batch else last_batch
            tp = targets[number % len(targets)]
            started = time.perf_counter()
            await cluster.retrying(lambda: produce_batch(cluster, tp, payload, acks=acks))  # noqa: B023  awaited at once
            latencies.append(time.perf_counter() - started)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker())
    return figures(count, count * size, time.perf_counter() - started, latencies)


async def measure_consume(cluster: ClusterClient, topic: str, count: int | None) -> dict[str, Any]:
    partitions = await partitions_of(cluster, topic, None)
    ends = await end_offsets(cluster, partitions)
    positions = await start_offsets(cluster, partitions, from_beginning=True)
    records = size_bytes = 0
    latencies: list[float] = []
    started = time.perf_counter()
    async with aclosing(Fetcher(cluster, positions, end_offsets=ends).runs()) as runs:
        async for run in runs:
            records += sum(
                header.record_count for _, header in iter_headers(run.records) if not header.is_control
            )
            size_bytes += len(run.records)
            latencies.append(run.latency_seconds)
            if count is not None and records >= count:
                break
    return figures(records, size_bytes, time.perf_counter() - started, latencies)


def build_load_batch(record_count: int, size: int, codec: Codec) -> bytes:
    """Values that look like text and compress like it, the same in every run."""
    rng = random.Random(42)
    timestamp = time.time_ns() // 1_000_000
    builder = BatchBuilder(codec=codec)
    for _ in range(record_count):
        value = b" ".join(rng.choices(_WORDS, k=size // 5 + 1)) + rng.randbytes(4).hex().encode()
        builder.append(timestamp, None, value[-size:] if size else b"")
    return builder.build()


def figures(records: int, size_bytes: int, seconds: float, latencies: list[float]) -> dict[str, Any]:
    seconds = max(seconds, 1e-9)
    return {
        "records": records,
        "bytes": size_bytes,
        "seconds": round(seconds, 4),
        "records_per_second": round(records / seconds, 1),
        "mb_per_second": round(size_bytes / seconds / 1e6, 3),
        "p50_ms": round(percentile(latencies, 0.50) * 1000, 3),
        "p99_ms": round(percentile(latencies, 0.99) * 1000, 3),
    }


def percentile(values: list[float], fraction: float) -> float:
    """The smallest value that at least `fraction` of all values do not exceed; 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, -int(-fraction * len(ordered) // 1) - 1)]
