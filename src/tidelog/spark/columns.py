"""Fetched batches as the Arrow RecordBatches that Spark takes: its types to the letter, only the columns that are asked for, and no batch too large.

A column that is the same for all rows (topic, partition) is built once for each task and handed out in slices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.client.consumer.records import Chunk
from tidelog.client.metadata import TopicPartition
from tidelog.errors import CorruptDataError, TidelogError
from tidelog.records.batch import HEADER_SIZE, iter_headers, read_header
from tidelog.records.columnar import decode_batches

ROWS_MAX: Final = 1 << 18
BYTES_MAX: Final = 32 << 20
"""Of one RecordBatch: Spark's JVM holds all of it at once, and a binary column must stay below 2 GiB."""
STORED_BYTES_FIRST: Final = 1 << 20
DECODED_BYTES_MAX: Final = 64 << 20
"""Of one step of decoding, as far as the growth of what was decompressed last tells."""
_TIMESTAMP_MS_MAX: Final = ((1 << 63) - 1) // 1000
_DECODED: Final = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "headers": "headers",
}
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}


class UnreadableRecordError(TidelogError):
    """Bytes in the log that make no records, or none that Spark can hold."""


class ColumnsOfTask:
    """Builds the batches of one task. `names` are columns of ours; `fields` what the schema calls them, `required` those that it says are never null."""

    def __init__(
        self, names: Sequence[str], fields: Sequence[str] | None = None, required: Collection[str] = ()
    ) -> None:
        self._names = tuple(names)
        self.schema = pa.schema(
            [
                pa.field(field, ARROW_TYPES[name], nullable=field not in required)
                for name, field in zip(names, fields or names, strict=True)
            ]
        )
        self._decoded = tuple(dict.fromkeys(_DECODED[name] for name in names if name in _DECODED)) or (
            "offset",
        )
        self._constants: dict[tuple[str, TopicPartition], pa.Array] = {}

    def batches(self, chunk: Chunk, end_offset: int, *, check_crcs: bool) -> Iterator[pa.RecordBatch]:
        """The records of a chunk below `end_offset`. UnreadableRecordError names what cannot be read."""
        try:
            for piece in chunk.visible_ranges():
                for records in _decoded(piece, chunk.start_offset, end_offset, self._decoded, check_crcs):
                    if records.num_rows:
                        yield from slices(self._build(chunk.tp, records))
        except CorruptDataError as error:
            raise UnreadableRecordError(
                f"{chunk.tp}: {error}. To go on behind it, start at offset {_behind_damage(chunk)}"
            ) from error

    def _build(self, tp: TopicPartition, records: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [self.column(name, tp, records) for name in self._names], schema=self.schema
        )

    def column(self, name: str, tp: TopicPartition, records: pa.RecordBatch) -> pa.Array:
        if name in ("topic", "partition"):
            return self._constant(name, tp, records.num_rows)
        array = records.column(_DECODED[name])
        if name == "timestamp":
            return _microseconds(array, tp)
        if name == "timestampType":
            return array.cast(pa.int32())
        if name == "headers":
            return _headers(array)
        return array

    def _constant(self, name: str, tp: TopicPartition, rows: int) -> pa.Array:
        key = (name, tp)
        known = self._constants.get(key)
        if known is None or len(known) < rows:
            known = self._constants[key] = _constant(tp[0] if name == "topic" else tp[1], max(rows, 1024))
        return known[:rows]


def _decoded(
    piece: memoryview, start_offset: int, end_offset: int, columns: Sequence[str], check_crcs: bool
) -> Iterator[pa.RecordBatch]:
    """In as few steps as may be: all at once if nothing is compressed, else so much that what comes out of it is bounded."""
    at, step = 0, len(piece)
    if len(piece) >= HEADER_SIZE and read_header(piece).codec:
        step = STORED_BYTES_FIRST
    while at < len(piece):
        part = piece[at : at + step]
        found = decode_batches(
            part, start_offset=start_offset, end_offset=end_offset, columns=columns, check_crcs=check_crcs
        )
        if not found.consumed_bytes:
            if len(part) == len(piece) - at:
                return
            step *= 4  # not one whole batch
            continue
        yield found.records
        at += found.consumed_bytes
        growth = max(1.0, found.records.nbytes / found.consumed_bytes)
        step = max(STORED_BYTES_FIRST // 16, int(DECODED_BYTES_MAX / growth))


def _behind_damage(chunk: Chunk) -> int:
    """The offset after the first batch that cannot be read."""
    for position, header in iter_headers(chunk.data):
        try:
            decode_batches(
                chunk.data[position : position + header.size], columns=("offset", "key", "value", "headers")
            )
        except CorruptDataError:
            return header.next_offset
    return chunk.next_offset


def _constant(value: str | int, rows: int) -> pa.Array:
    if isinstance(value, int):
        numbers = np.full(rows, value, np.int32)
        return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(numbers)], null_count=0)
    text = value.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * len(text)
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(text * rows)], null_count=0
    )


def _microseconds(array: pa.Array, tp: TopicPartition) -> pa.Array:
    values: Any = np.frombuffer(array.buffers()[1], np.int64, len(array), array.offset * 8)
    if len(values) and (values.max() > _TIMESTAMP_MS_MAX or values.min() < -_TIMESTAMP_MS_MAX):
        raise UnreadableRecordError(
            f"{tp}: a record has a timestamp of {values[np.abs(values).argmax()]} ms, which is more than Spark's timestamps hold; "
            "leave the column timestamp out (option columns) to read it"
        )
    return pa.Array.from_buffers(
        ARROW_TYPES["timestamp"], len(values), [None, pa.py_buffer(values * 1000)], null_count=0
    )


def _headers(array: pa.Array) -> pa.Array:
    """A record without headers has none (null), as in Spark's Kafka source, not an empty list of them."""
    rows = len(array)
    ends: Any = np.frombuffer(array.buffers()[1], np.int32, rows + 1, array.offset * 4)
    present = np.packbits(ends[1:] > ends[:-1], bitorder="little")
    nulls = rows - int(np.count_nonzero(ends[1:] > ends[:-1]))
    items = array.values
    pairs = pa.StructArray.from_arrays([items.field(0), items.field(1)], fields=list(_HEADER))
    return pa.Array.from_buffers(
        ARROW_TYPES["headers"],
        rows,
        [pa.py_buffer(present) if nulls else None, pa.py_buffer(ends)],
        null_count=nulls,
        children=[pairs],
    )


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are not too large."""
    rows = batch.num_rows
    count = max(-(-rows // ROWS_MAX), -(-batch.nbytes // BYTES_MAX))
    if count <= 1:
        yield batch
        return
    step = max(1, -(-rows // count))
    for start in range(0, rows, step):
        yield batch[start : start + step]
