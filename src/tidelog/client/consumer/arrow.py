"""Tables out: what was fetched as Arrow RecordBatches, without a Python object per record.

A chunk of fetched batches is decoded where it was received, while the kernel takes what comes next: to hand it to a thread and back takes longer than to decode it,
and another processor does not have its bytes at hand. Only what would hold up the event loop (compressed, many small batches, many rows) goes to a thread. Control
records and, under read_committed, aborted ones are left out. Needs the `arrow` extra.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidelog.client.consumer.positions import PartitionState
from tidelog.client.consumer.records import Chunk
from tidelog.client.errors import RecordError
from tidelog.client.metadata import TopicPartition
from tidelog.errors import CorruptDataError
from tidelog.records.columnar import COLUMN_TYPES, decode_batches, is_loaded

if TYPE_CHECKING:
    from tidelog.client.consumer.consumer import Consumer

DEFAULT_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
_TOPIC_TYPE: Final = pa.dictionary(pa.int8(), pa.string())
_OWN_TYPES: Final = {"topic": _TOPIC_TYPE, "partition": pa.int32()}
SCAN_WAIT_MS: Final = 500
ON_LOOP_US_MAX: Final = 2_000
"""What decoding may take of the event loop at a time: about what a `poll` of 500 records does."""
_BATCH_US: Final = 3.0
_ROW_US: Final = 0.02
_ROW_WITH_HEADERS_US: Final = 0.2
_KIB_US: Final = 0.1

Edge = str | int | Mapping[TopicPartition, int]
"""Where a scan begins or ends: "earliest", "latest", a time in ms, or an offset for each partition."""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    unknown = [name for name in columns if name not in COLUMN_TYPES and name not in _OWN_TYPES]
    if unknown:
        raise ValueError(f"unknown columns {unknown}; there are {[*_OWN_TYPES, *COLUMN_TYPES]}")
    return pa.schema([pa.field(name, _OWN_TYPES.get(name) or COLUMN_TYPES[name]) for name in columns])


def decode_chunk(
    chunk: Chunk, columns: Sequence[str], *, end_offset: int | None = None, check_crcs: bool = True
) -> pa.RecordBatch:
    """In any thread. RecordError names what cannot be read."""
    decoded = [name for name in columns if name in COLUMN_TYPES]
    parts: list[pa.RecordBatch] = []
    rows = 0
    try:
        for piece in chunk.visible_ranges():
            at = 0
            while at < len(piece):
                found = decode_batches(
                    piece[at:],
                    start_offset=chunk.start_offset,
                    end_offset=end_offset,
                    columns=decoded,
                    check_crcs=check_crcs,
                )
                if not found.consumed_bytes:
                    break
                at += found.consumed_bytes
                parts.append(found.records)
                rows += found.records.num_rows
    except CorruptDataError as error:
        raise RecordError(
            f"{chunk.tp}: {error}; to go on behind it, seek to offset {chunk.next_offset}"
        ) from error
    schema = schema_of(columns)
    arrays: list[Any] = []
    for name in columns:
        if name == "topic":
            arrays.append(
                pa.DictionaryArray.from_arrays(
                    pa.nulls(rows, pa.int8()).fill_null(0), pa.array([chunk.tp.topic])
                )
            )
        elif name == "partition":
            arrays.append(pa.nulls(rows, pa.int32()).fill_null(chunk.tp.partition))
        elif len(parts) == 1:
            arrays.append(parts[0].column(decoded.index(name)))
        else:
            column = decoded.index(name)
            arrays.append(
                pa.concat_arrays([part.column(column) for part in parts])
                if parts
                else pa.array([], COLUMN_TYPES[name])
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def fits_on_loop(chunk: Chunk, columns: Sequence[str]) -> bool:
    """Whether decoding it takes no longer than ON_LOOP_US_MAX, by what its headers say."""
    batches, rows, is_compressed = chunk.outline()
    row_us = _ROW_WITH_HEADERS_US if "headers" in columns else _ROW_US
    cost_us = batches * _BATCH_US + rows * row_us + chunk.size / 1024 * _KIB_US
    return cost_us <= ON_LOOP_US_MAX and not is_compressed and is_loaded(columns)


async def decoded(
    chunk: Chunk, columns: Sequence[str], *, check_crcs: bool, end_offset: int | None = None
) -> pa.RecordBatch:
    decode = partial(decode_chunk, chunk, columns, end_offset=end_offset, check_crcs=check_crcs)
    return decode() if fits_on_loop(chunk, columns) else await asyncio.to_thread(decode)


async def poll_arrow(consumer: Consumer, *, timeout_ms: int, columns: Sequence[str]) -> pa.RecordBatch:
    """See `Consumer.poll_arrow`."""
    schema = schema_of(columns)
    found: tuple[PartitionState, Chunk] | None = await consumer.wait_for_chunk(timeout_ms)
    if found is None:
        return pa.RecordBatch.from_pylist([], schema=schema)
    state, chunk = found
    version = state.version
    batch = await decoded(chunk, columns, check_crcs=consumer.settings.check_crcs)
    if state.version == version:
        state.position = chunk.next_offset
        state.epoch = chunk.last_epoch
    return batch


async def scan(
    consumer: Consumer,
    topic: str,
    *,
    start: Edge,
    end: Edge,
    partitions: Iterable[int] | None,
    columns: Sequence[str],
) -> AsyncGenerator[pa.RecordBatch, None]:
    """See `tidelog.client.scan`."""
    schema_of(columns)
    numbers = await consumer.partitions_for(topic) if partitions is None else list(partitions)
    tps = [TopicPartition(topic, number) for number in numbers]
    starts, ends = await _offsets(consumer, tps, start), await _offsets(consumer, tps, end)
    beginnings = await consumer.beginning_offsets(tps)
    starts = {tp: max(starts[tp], beginnings[tp]) for tp in tps}
    left = {tp for tp in tps if starts[tp] < ends[tp]}
    consumer.assign(left)
    for tp in left:
        consumer.seek(tp, starts[tp])
    while left:
        found = await consumer.wait_for_chunk(SCAN_WAIT_MS)
        if found is None:
            continue
        state, chunk = found
        tp = chunk.tp
        batch = await decoded(chunk, columns, end_offset=ends[tp], check_crcs=consumer.settings.check_crcs)
        state.position = chunk.next_offset
        if chunk.next_offset >= ends[tp]:
            left.discard(tp)
            consumer.pause(tp)
        if batch.num_rows:
            yield batch


async def _offsets(
    consumer: Consumer, tps: Sequence[TopicPartition], edge: Edge
) -> dict[TopicPartition, int]:
    if edge == "earliest":
        return await consumer.beginning_offsets(tps)
    ends = await consumer.end_offsets(tps)
    if edge == "latest":
        return ends
    if isinstance(edge, int):
        found = await consumer.offsets_for_times(dict.fromkeys(tps, edge))
        return {tp: ends[tp] if (each := found[tp]) is None else each.offset for tp in tps}
    if isinstance(edge, str):
        raise ValueError(
            f'a scan begins and ends at "earliest", "latest", a time in ms or offsets by partition, not at {edge!r}'
        )
    named = {TopicPartition(*tp): offset for tp, offset in edge.items()}
    missing = [str(tp) for tp in tps if tp not in named]
    if missing:
        raise ValueError(f"no offsets are given for {', '.join(missing)}")
    return named
