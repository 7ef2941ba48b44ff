"""The load behind `tidelog bench`, and its figures. MB/s counts uncompressed values for produce, wire bytes for consume."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from typing import Any, NamedTuple

from tidelog.cli.boundary import CommandError, our_name
from tidelog.cli.reading import POLL_MS, Watch, reader_options
from tidelog.cli.start_offsets import end_offsets, partitions_of, start_offsets
from tidelog.client.admin import Admin, NewTopic
from tidelog.client.cluster import ClusterClient, TopicMissingError
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.metadata import TopicInfo, TopicPartition
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.producer import Producer
from tidelog.client.producer.sender import Fate
from tidelog.client.settings import INT32_MAX
from tidelog.records.batch import HEADER_SIZE, BatchHeader, read_header
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


class Load(NamedTuple):
    """A batch that was built beforehand, and what a producer wants to know of it."""

    sealed: bytes
    plain: memoryview
    """Uncompressed, for a producer that must take it apart."""
    header: BatchHeader

    @classmethod
    def build(cls, record_count: int, size: int, codec: Codec) -> Load:
        sealed = build_load_batch(record_count, size, codec)
        plain = sealed if codec == Codec.NONE else build_load_batch(record_count, size, Codec.NONE)
        return cls(sealed, memoryview(bytearray(plain)), read_header(sealed))


async def measure_produce(
    bootstrap_servers: str,
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
    load = Load.build(per_batch, size, codec)
    tail = count % per_batch
    loads = [load] * (count // per_batch) + ([Load.build(tail, size, codec)] if tail else [])
    targets = [TopicPartition(topic.name, partition) for partition in topic.partitions]
    latencies: list[float] = []
    work = zip(loads, itertools.cycle(targets), strict=False)
    async with Producer(
        bootstrap_servers,
        acks=acks,
        enable_idempotence=False,
        compression_type=codec.name.lower(),
        max_in_flight_requests_per_connection=in_flight,
        max_request_size=max(len(load.plain), 1 << 20),
        buffer_memory=min(len(load.plain) * in_flight, INT32_MAX),
        **our_name(),
    ) as producer:
        await producer.topics.get(topic.name)

        async def worker() -> None:
            for ready, tp in work:
                started = time.perf_counter()
                await _deliver(producer, tp, ready)
                latencies.append(time.perf_counter() - started)

        started = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(in_flight):
                    group.create_task(worker())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the others say the same
        seconds = time.perf_counter() - started
    return figures(count, count * size, seconds, latencies)


async def _deliver(producer: Producer, tp: TopicPartition, load: Load) -> None:
    loop = asyncio.get_running_loop()

    def append() -> ProducerBatch | None:
        return producer.accumulator.append_batch(
            tp,
            load.plain,
            load.header.record_count,
            (load.header.base_timestamp, load.header.max_timestamp),
            load.sealed[HEADER_SIZE:],
            loop.time(),
        )

    batch = append()
    if batch is None:
        batch = await producer.room.wait(append)
    batch.encoded = load.sealed  # without sequence numbers every batch is the same: no checksum on the way
    producer.shipping.look_soon()
    fate: Fate = await asyncio.shield(batch.done)
    batch.observed = True
    if fate.parts:
        raise CommandError(
            f"a batch of {len(load.sealed)} bytes is more than {tp.topic} takes (max.message.bytes): choose a smaller --batch-bytes"
        )
    if fate.error is not None:
        raise fate.error


async def measure_consume(
    cluster: ClusterClient, bootstrap_servers: str, topic: str, count: int | None
) -> dict[str, Any]:
    partitions = await partitions_of(cluster, topic, None)
    ends = await end_offsets(cluster, partitions)
    positions = await start_offsets(cluster, partitions, from_beginning=True)
    unfinished = {tp for tp in partitions if positions[tp] < ends[tp]}
    records = size_bytes = 0
    latencies: list[float] = []
    watch = Watch(cluster, topic)
    async with Consumer(bootstrap_servers, **reader_options()) as consumer:
        await consumer.partitions_for(topic)
        started = time.perf_counter()
        consumer.assign(unfinished)
        for tp in unfinished:
            consumer.seek(tp, positions[tp])
        while unfinished and (count is None or records < count):
            found = await consumer.wait_for_chunk(POLL_MS)
            await watch.heard(found is not None)
            if found is None:
                continue
            state, chunk = found
            records += sum(header.record_count for _, header in chunk.visible_batches())
            size_bytes += chunk.size
            latencies.append(chunk.latency_seconds)
            state.position = chunk.next_offset
            if chunk.next_offset >= ends[chunk.tp]:
                unfinished.discard(chunk.tp)
                consumer.pause(chunk.tp)
        seconds = time.perf_counter() - started
    return figures(records, size_bytes, seconds, latencies)


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
