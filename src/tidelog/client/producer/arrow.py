"""Tables in: Arrow columns become record batches, compressed and hashed by partition, without a Python loop over rows.

Rows are sorted by partition in a thread, some hundred thousand at a time, and those behind them meanwhile. Encoding a batch takes less than to hand it to a thread and back, and
leaves its bytes where the checksum and the socket want them next, so the loop does it; compression happens in a thread, while the loop sends the batch before. Each batch is
as large as a request may be (`max.request.size`), because many rows come at once; order within a partition is the order of the rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from tidelog.client.cluster import PartitionMissingError
from tidelog.client.errors import DeliveryFailedError
from tidelog.client.metadata import TopicPartition
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.sender import Fate
from tidelog.records.batch import HEADER_SIZE, Buffer
from tidelog.records.columnar_encode import (
    NO_PARTITION,
    Columns,
    Payload,
    columns_of,
    encode_rows,
    is_loaded,
    partitions_by_key,
    partitions_of_column,
    rows_by_partition,
)
from tidelog.records.compression import Codec, compress

if TYPE_CHECKING:
    from tidelog.client.producer.producer import Producer
    from tidelog.client.producer.topics import KnownTopic

SLICE_ROWS: Final = 200_000
"""Rows that are sorted by partition together: enough to fill batches of many partitions, few enough to begin sending soon."""
ON_LOOP_BYTES_MAX: Final = 4 << 20
"""Batches up to this size are encoded on the event loop: a millisecond or two at most, however small the rows."""

_Step = TypeVar("_Step")


class RowsDelivered(NamedTuple):
    """Rows that are at `base_offset` and behind it; -1 where the broker does not say."""

    partition: int
    base_offset: int
    rows: int


class ArrowDelivery:
    """Await it for where the rows went, batch by batch. DeliveryFailedError if some were not delivered."""

    __slots__ = ("_batches", "rows")

    def __init__(self, batches: list[ProducerBatch], rows: int) -> None:
        self._batches = batches
        self.rows = rows

    def __await__(self) -> Generator[Any, None, list[RowsDelivered]]:
        return self._wait().__await__()

    async def _wait(self) -> list[RowsDelivered]:
        delivered: list[RowsDelivered] = []
        failed, first = 0, None
        left = self._batches[::-1]
        while left:
            batch = left.pop()
            fate: Fate = await asyncio.shield(batch.done)
            batch.observed = True
            if fate.parts:
                left.extend(reversed(fate.parts))
            elif fate.error is not None:
                failed, first = failed + batch.count, first or fate.error
            else:
                delivered.append(RowsDelivered(batch.tp.partition, fate.base_offset, batch.count))
        if first is not None:
            raise DeliveryFailedError(
                f"{failed} of {self.rows} rows were not delivered; the first: {first}"
            ) from first
        return delivered


class _Names(NamedTuple):
    """The columns that records are made of; a partition may be a number."""

    key: str | None
    value: str | None
    headers: str | None
    partition: str | int | None
    timestamp: str | None


class _Piece(NamedTuple):
    """Rows that are sorted: (partition, its rows) for each that has some."""

    columns: Columns
    by_partition: list[tuple[int, Any]]


class _Encoded(NamedTuple):
    partition: int
    payload: Payload
    compressed: Buffer | None


async def send_arrow(
    producer: Producer,
    topic: str,
    data: Any,
    *,
    key: str | None,
    value: str | None,
    headers: str | None,
    partition: str | int | None,
    timestamp: str | None,
) -> ArrowDelivery:
    known = await producer.topics.get(topic)
    if isinstance(partition, int) and partition not in known.partitions:
        raise PartitionMissingError(TopicPartition(topic, partition), known.count)
    pieces = _pieces(data, _Names(key, value, headers, partition, timestamp), known)
    settings = producer.settings
    is_quick = settings.codec == Codec.NONE and settings.max_request_size <= ON_LOOP_BYTES_MAX
    batches: list[ProducerBatch] = []
    async with aclosing(_ahead(pieces)) as sorted_rows:
        async for piece in sorted_rows:
            encoding = _encode(piece, settings.max_request_size, settings.codec, settings.compression_level)
            if is_quick and is_loaded():
                batches += [await _append(producer, topic, encoded) for encoded in encoding]
                continue
            async with aclosing(_ahead(encoding)) as from_thread:
                batches += [await _append(producer, topic, encoded) async for encoded in from_thread]
    return ArrowDelivery(batches, sum(batch.count for batch in batches))


async def _ahead(steps: Iterator[_Step]) -> AsyncGenerator[_Step, None]:
    """Each step in a thread, while the one before is used. To be closed: a thread may be at work still."""
    step = await asyncio.to_thread(next, steps, None)
    while step is not None:
        following = asyncio.ensure_future(asyncio.to_thread(next, steps, None))
        try:
            yield step
        finally:
            await asyncio.wait({following})
        step = following.result()


async def _append(producer: Producer, topic: str, encoded: _Encoded) -> ProducerBatch:
    tp, payload = TopicPartition(topic, encoded.partition), encoded.payload
    loop = asyncio.get_running_loop()

    def append() -> ProducerBatch | None:
        return producer.accumulator.append_batch(
            tp,
            payload.data,
            payload.rows,
            (payload.base_timestamp, payload.max_timestamp),
            encoded.compressed,
            loop.time(),
        )

    batch = None if producer.room.waiters else append()
    if batch is None:
        return await producer.room.wait(append)
    producer.shipping.look_soon()
    await asyncio.sleep(0)
    return batch


def _slices(data: Any) -> Iterator[pa.RecordBatch]:
    source: Iterable[pa.RecordBatch]
    if isinstance(data, pa.RecordBatch):
        source = (data,)
    elif isinstance(data, pa.Table):
        source = data.to_batches(max_chunksize=SLICE_ROWS)
    elif isinstance(data, pa.RecordBatchReader):
        source = data
    elif hasattr(data, "__arrow_c_stream__"):  # Polars, pandas and others hand their data over like this
        source = pa.RecordBatchReader.from_stream(data)
    else:
        raise TypeError(
            f"send_arrow takes Arrow data (a RecordBatch, a Table, a reader, a Polars frame), not {type(data).__name__}"
        )
    for batch in source:
        for start in range(0, batch.num_rows, SLICE_ROWS):
            yield batch.slice(start, SLICE_ROWS)


def _pieces(data: Any, names: _Names, known: KnownTopic) -> Iterator[_Piece]:
    """However large the table, two pieces of it are looked at: one that is sent, and one behind it."""
    for piece in _slices(data):
        columns = columns_of(
            piece,
            key=names.key,
            value=names.value,
            headers=names.headers,
            timestamp=names.timestamp,
            now_ms=time.time_ns() // 1_000_000,
        )
        yield _Piece(columns, list(_by_partition(columns, piece, names.partition, known)))


def _encode(piece: _Piece, bytes_max: int, codec: Codec, level: int | None) -> Iterator[_Encoded]:
    for number, rows in piece.by_partition:
        for payload in encode_rows(piece.columns, rows, bytes_max=bytes_max):
            compressed = compress(codec, payload.data[HEADER_SIZE:], level) if codec != Codec.NONE else None
            yield _Encoded(number, payload, compressed)


def _by_partition(
    columns: Columns, piece: pa.RecordBatch, partition: str | int | None, known: KnownTopic
) -> Iterator[tuple[int, Any]]:
    if isinstance(partition, int):
        yield partition, np.arange(columns.rows, dtype=np.int64)
        return
    if partition is not None:
        chosen = partitions_of_column(piece, partition, known.count)
        if (open_rows := chosen == NO_PARTITION).any():  # as everywhere, the key decides where nobody says
            chosen[open_rows] = partitions_by_key(columns, known.count)[open_rows]
    else:
        chosen = partitions_by_key(columns, known.count)
    if (free := chosen == NO_PARTITION).any():
        chosen[free] = known.next_for_rows()
    yield from rows_by_partition(chosen, known.count)
