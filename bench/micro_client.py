"""What a record costs our own client, the broker's work left out. `python -m bench.micro client`.

First the deciding parts by themselves, then the whole: CPU of the application's thread, event loop and sockets included, against a broker in a process of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count

import numpy as np
import pyarrow as pa

from bench.timing import Stopwatch, Timing, cost_seconds
from bench.topics import create_topic
from tidelog.client import Consumer, Producer, TopicPartition
from tidelog.client.consumer.arrow import decode_chunk
from tidelog.client.consumer.records import Chunk, decode_batch
from tidelog.client.partitioner import partition_for_key
from tidelog.client.producer.accumulator import Accumulator
from tidelog.records.batch import read_header
from tidelog.records.builder import build_batch
from tidelog.records.columnar_encode import columns_of, encode_rows, partitions_by_key
from tidelog.records.compression import Codec
from tidelog.records.record import Record
from tools.peers.tidelog import TidelogPeer

NOW_MS = 1_700_000_000_000
TOPIC = "micro-client"
VALUE = bytes(100)
ROWS = 100_000
RECORDS = 50_000
TP = TopicPartition(TOPIC, 0)


def timings() -> Iterator[Timing]:
    yield from producing()
    yield from consuming()
    yield from whole()


def producing() -> Iterator[Timing]:
    numbers = count()
    yield Timing(
        "partition_for_key, a new key of 12 B",
        cost_seconds(lambda: partition_for_key(b"key-%08d" % next(numbers), 12)),
    )
    yield Timing("append and seal, per record of 100 B", cost_seconds(append_and_seal) / 1000)
    table = rows_of(ROWS)
    prepared = columns_of(table, key="key", value="value", headers=None, timestamp=None, now_ms=NOW_MS)
    everything = np.arange(ROWS, dtype=np.int64)
    yield Timing(
        "Arrow row of 100 B, encoded",
        cost_seconds(lambda: list(encode_rows(prepared, everything, bytes_max=1 << 20)), rounds=5) / ROWS,
    )
    place = partial(partitions_by_key, prepared, 12)
    yield Timing("Arrow row, partition of its key", cost_seconds(place, rounds=5) / ROWS)


def append_and_seal() -> None:
    accumulator = Accumulator(batch_size=1 << 20, linger_ms=5, buffer_memory=32 << 20)
    for _ in range(1000):
        accumulator.append(TP, NOW_MS, None, VALUE, (), 0.0)
    accumulator.take(TP).seal(Codec.NONE, None)


def rows_of(rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"key": [b"key-%08d" % n for n in range(rows)], "value": pa.array([VALUE] * rows, pa.binary())}
    )


def consuming() -> Iterator[Timing]:
    batch = memoryview(build_batch([Record(n, NOW_MS + n, b"key-%05d" % n, VALUE) for n in range(1000)]))
    header = read_header(batch)
    yield Timing(
        "record of 100 B, decoded", cost_seconds(lambda: decode_batch(batch, 0, header, TP, 0)) / 1000
    )
    columns = ("offset", "timestamp", "key", "value")
    yield Timing(
        "fetched chunk of 1,000 records to Arrow, per row",
        cost_seconds(lambda: decode_chunk(Chunk(TP, batch, 0), columns)) / 1000,
    )


def whole() -> Iterator[Timing]:
    with TidelogPeer(durability="replicated") as peer:
        create_topic(peer.bootstrap, TOPIC)
        yield asyncio.run(_timed("client: send, per record of 100 B", partial(_send, peer.bootstrap)))
        yield asyncio.run(_timed("client: async for, per record of 100 B", partial(_iterate, peer.bootstrap)))
        yield asyncio.run(_timed("client: poll, per record of 100 B", partial(_poll, peer.bootstrap)))


async def _timed(operation: str, work: Callable[[Stopwatch], Awaitable[int]]) -> Timing:
    watch = Stopwatch()
    moved = await work(watch)
    return Timing(operation, watch.seconds / moved)


async def _send(servers: str, watch: Stopwatch) -> int:
    async with Producer(servers, batch_size=256 << 10, linger_ms=5) as producer:
        for _ in range(RECORDS):  # for what is read below, and to be warm
            await producer.send(TOPIC, VALUE)
        await producer.flush()
        with watch:
            for _ in range(RECORDS):
                await producer.send(TOPIC, VALUE)
            await producer.flush()
    return RECORDS


async def _iterate(servers: str, watch: Stopwatch) -> int:
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TP])
        seen = 0
        with watch:
            async for _ in consumer:
                seen += 1
                if seen == RECORDS:
                    break
    return seen


async def _poll(servers: str, watch: Stopwatch) -> int:
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TP])
        seen = 0
        with watch:
            while seen < RECORDS:
                seen += len(await consumer.poll())
    return seen
