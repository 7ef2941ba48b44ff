"""A run of record batches as one Arrow RecordBatch: the one decoder behind Spark, the cleaner, the console and the CLI.

Owns the column schema and the assembly; the loops are in `columnar_kernels`. Never builds a column that was not asked for,
never reads outside the buffer, and never returns a record it could not read: damage is a CorruptDataError that names the
offset. Keeps I2 on the reading side (CRC of every batch it decodes, as Kafka's `check.crcs`).

Needs numba, numpy and pyarrow (the `arrow` extra), which take their time to import: only where it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from tidelog.errors import CorruptDataError
from tidelog.records import columnar_kernels as kernels
from tidelog.records.batch import ATTRIBUTES_OFFSET, CODEC_MASK, CONTROL_FLAG, CRC_OFFSET, TIMESTAMP_TYPE_FLAG
from tidelog.records.compression import decompress_onto
from tidelog.records.record import DECOMPRESS_LIMIT_BYTES, INT64_MAX, RECORD_BYTES_MIN

_HEADERS_TYPE: Final = pa.list_(
    pa.field(
        "item", pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    )
)
COLUMN_TYPES: Final[dict[str, pa.DataType]] = {
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
    "timestamp_type": pa.int8(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": _HEADERS_TYPE,
    "is_control": pa.bool_(),
    "producer_id": pa.int64(),
    "producer_epoch": pa.int16(),
    "partition_leader_epoch": pa.int32(),
}
DEFAULT_COLUMNS: Final = ("offset", "timestamp", "timestamp_type", "key", "value")

# Arrow's binary columns address their bytes with 32 bits: one call stops here, and the caller goes on behind what it consumed.
_PAYLOAD_BYTES_MAX: Final = 1 << 30
_TABLE_ROWS_FIRST: Final = 1024

_PROBLEMS: Final = {
    kernels.BAD_LENGTH: "states a length that its batch cannot hold",
    kernels.BAD_DELTAS: "has a broken timestamp delta, or an offset delta out of order or out of its batch",
    kernels.BAD_KEY: "has a key that does not fit",
    kernels.BAD_VALUE: "has a value that does not fit",
    kernels.BAD_HEADERS: "has headers that do not fit",
    kernels.BAD_END: "has bytes left behind its last field",
}
_BATCH_PROBLEMS: Final = {
    kernels.BAD_BATCH: "no record batch",
    kernels.BAD_OFFSETS: "a batch whose offsets are negative or overflow",
    kernels.BAD_COUNT: "a batch that claims more records than its bytes can hold",
}


class Decoded(NamedTuple):
    records: pa.RecordBatch
    consumed_bytes: int  # whole batches looked at; what follows is a cut-off tail, or for the next call
    next_offset: int | None  # where to read on; None when nothing was consumed and no start offset was given


def decode_batches(
    buffer: Any,
    *,
    start_offset: int | None = None,
    end_offset: int | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    include_control: bool = False,
    decompress_limit: int = DECOMPRESS_LIMIT_BYTES,
    check_crcs: bool = True,
) -> Decoded:
    """The records with offsets in [start_offset, end_offset) of the batches in `buffer`, which may end in the middle of one.

    `buffer` is anything with the buffer protocol: a fetch answer, a piece of a segment file, a mapping of it. The result holds
    copies: the buffer may be reused. `decompress_limit` bounds each batch. A call stops after about 1 GiB of payload:
    go on at `consumed_bytes` while that is not 0.
    """
    unknown = [name for name in columns if name not in COLUMN_TYPES]
    if unknown:
        raise ValueError(f"unknown columns {unknown}; there are {list(COLUMN_TYPES)}")
    stored = _as_bytes(buffer)
    low = -1 if start_offset is None else start_offset
    high = INT64_MAX if end_offset is None else end_offset
    table, consumed, next_offset = _find_batches(stored, low, high, include_control)
    if check_crcs:
        _check_crcs(stored, table)
    expanded, table, cut = _decompress(stored, table, decompress_limit)
    if cut is not None:
        consumed, next_offset = cut
    columns_built, rows = _build(stored, expanded, table, low, high, columns)
    arrays = [columns_built[name] for name in columns]
    schema = pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in columns])
    if columns:
        records = pa.RecordBatch.from_arrays(arrays, schema=schema)
    else:  # a count and nothing else: Arrow keeps the length of a batch without columns only in a struct
        records = pa.RecordBatch.from_struct_array(pa.array([{}] * rows, type=pa.struct([])))
    return Decoded(records, consumed, start_offset if next_offset < 0 else next_offset)


def is_loaded(columns: Sequence[str]) -> bool:
    """Whether this process has compiled what these columns need, or found it on disk: before that the first call may take seconds."""
    needed = [kernels.scan, kernels.walk, *([kernels.collect_headers] if "headers" in columns else [])]
    return all(getattr(kernel, "overloads", ()) for kernel in needed)


def _as_bytes(buffer: Any) -> Any:
    """A read-only uint8 array over the buffer: read-only whatever it is, so that the kernels are compiled for one type."""
    array = np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
    view = array.view()
    view.flags.writeable = False
    return view


def _find_batches(stored: Any, low: int, high: int, include_control: bool) -> tuple[Any, int, int]:
    """The batch table, the bytes consumed, and the next offset (-1 if no batch was seen)."""
    table = np.empty((_TABLE_ROWS_FIRST, kernels.TABLE_WIDTH), np.int64)
    position = count = payload = 0
    next_offset = -1
    while True:
        error, position, count, seen_next, payload = kernels.scan(
            stored, position, table, count, payload, low, high, include_control, _PAYLOAD_BYTES_MAX
        )
        next_offset = seen_next if seen_next >= 0 else next_offset
        if error != kernels.OK:
            raise CorruptDataError(
                f"{_BATCH_PROBLEMS[error]} at position {position} of {stored.shape[0]} bytes"
            )
        if count < table.shape[0]:
            return table[:count], int(position), int(next_offset)
        grown = np.empty((table.shape[0] * 4, kernels.TABLE_WIDTH), np.int64)
        grown[:count] = table
        table = grown


def _check_crcs(stored: Any, table: Any) -> None:
    view = memoryview(stored)
    for base_offset, position, end in table[
        :, [kernels.BASE_OFFSET, kernels.POSITION, kernels.PAYLOAD_END]
    ].tolist():
        stated = int.from_bytes(view[position + CRC_OFFSET : position + ATTRIBUTES_OFFSET], "big")
        computed = crc32c(view[position + ATTRIBUTES_OFFSET : end])
        if computed != stated:
            raise CorruptDataError(
                f"batch at offset {base_offset} (position {position}): CRC is {computed:#010x}, its header says {stated:#010x}"
            )


def _decompress(stored: Any, table: Any, limit: int) -> tuple[Any, Any, tuple[int, int] | None]:
    """Decompressed payloads in one array, with the table pointing there; cut short before the total leaves Arrow's reach.

    The third value is then (position, base offset) of the first batch that was left out.
    """
    bytes_max = 2 * _PAYLOAD_BYTES_MAX - 1
    listed_bytes = int((table[:, kernels.PAYLOAD_END] - table[:, kernels.PAYLOAD_START]).sum())
    out = bytearray()
    end = 0
    for row in np.flatnonzero(table[:, kernels.ATTRIBUTES] & CODEC_MASK).tolist():
        payload_end = _expand(stored, table[row], out, end, min(limit, bytes_max))
        if payload_end + listed_bytes > bytes_max and len(table) > 1:
            rows = max(row, 1)  # one batch is always read
            if rows < len(table):
                left_out = table[rows]
                return (
                    _as_bytes(out),
                    table[:rows],
                    (int(left_out[kernels.POSITION]), int(left_out[kernels.BASE_OFFSET])),
                )
        end = payload_end
    return _as_bytes(out), table, None


def _expand(stored: Any, entry: Any, out: bytearray, start: int, limit: int) -> int:
    """Decompress one batch onto `out`, point its table entry there, and return where it ends."""
    payload = memoryview(stored)[entry[kernels.PAYLOAD_START] : entry[kernels.PAYLOAD_END]]
    base_offset, count = entry[kernels.BASE_OFFSET], entry[kernels.RECORD_COUNT]
    likely = start + 4 * len(payload)
    if len(out) < likely:  # in large steps, or each of many small batches would move the buffer
        out.extend(bytes(max(likely - len(out), len(out) // 2)))
    try:
        end = decompress_onto(int(entry[kernels.ATTRIBUTES]) & CODEC_MASK, payload, out, start, limit)
    except CorruptDataError as error:
        raise CorruptDataError(f"batch at offset {base_offset}: {error}") from error
    if count > (end - start) // RECORD_BYTES_MIN:
        raise CorruptDataError(f"batch at offset {base_offset} claims {count} records in {end - start} bytes")
    entry[kernels.PAYLOAD_START], entry[kernels.PAYLOAD_END], entry[kernels.EXPANDED] = start, end, 1
    return end


def _build(
    stored: Any, expanded: Any, table: Any, low: int, high: int, columns: Sequence[str]
) -> tuple[dict[str, pa.Array], int]:
    want_key, want_value, want_headers = "key" in columns, "value" in columns, "headers" in columns
    rows_max = int(table[:, kernels.RECORD_COUNT].sum())
    bytes_max = int((table[:, kernels.PAYLOAD_END] - table[:, kernels.PAYLOAD_START]).sum())
    offsets, timestamps = _Room(rows_max, np.int64), _Room(rows_max, np.int64)
    key = _BinaryRoom(rows_max, bytes_max, want_key)
    value = _BinaryRoom(rows_max, bytes_max, want_value)
    header_places = np.empty(rows_max if want_headers else 0, np.int64)
    totals = np.zeros(kernels.TOTALS, np.int64)
    error = kernels.walk(
        stored, expanded, table, len(table), low, high, want_key, want_value, want_headers, offsets.view, timestamps.view,
        *key.views, *value.views, header_places, totals,
    )  # fmt: skip
    if error != kernels.OK:
        raise _damaged(error, table[totals[kernels.FAILED_BATCH]], totals[kernels.FAILED_RECORD])
    rows, key_bytes, value_bytes, null_keys, null_values, headers, header_bytes = totals[
        : kernels.FAILED_BATCH
    ].tolist()
    built: dict[str, pa.Array] = {
        "offset": _primitive("offset", rows, offsets.filled(rows)),
        "timestamp": _primitive("timestamp", rows, timestamps.filled(rows)),
    }
    if want_key:
        built["key"] = key.array(pa.binary(), rows, key_bytes, null_keys)
    if want_value:
        built["value"] = value.array(pa.binary(), rows, value_bytes, null_values)
    if want_headers:
        built["headers"] = _build_headers(stored, expanded, table, header_places, rows, headers, header_bytes)
    _add_batch_columns(built, table, columns)
    return built, rows


def _damaged(error: int, entry: Any, record: int) -> CorruptDataError:
    base_offset = entry[kernels.BASE_OFFSET]
    if error == kernels.BAD_TAIL:
        return CorruptDataError(f"batch at offset {base_offset} has bytes left behind its last record")
    return CorruptDataError(f"record {record} of the batch at offset {base_offset} {_PROBLEMS[error]}")


class _Room:
    """Memory of Arrow's pool, to be written through `view`, of which a column takes what was filled.

    The pool keeps the pages of columns that were dropped, whatever thread drops them; pages fresh from the kernel cost several times the copy into them.
    """

    __slots__ = ("_buffer", "view")

    def __init__(self, count: int, kind: type[np.generic]) -> None:
        self._buffer = pa.allocate_buffer(count * np.dtype(kind).itemsize)
        self.view = np.frombuffer(self._buffer, kind) if count else np.empty(0, kind)

    def filled(self, count: int) -> pa.Buffer:
        return self._buffer.slice(0, count * self.view.itemsize)


class _BinaryRoom:
    """Room for a binary column of unknown size: untouched pages of it cost nothing, and Arrow takes it over as it is."""

    __slots__ = ("_data", "_ends", "_valid", "views")

    def __init__(self, rows_max: int, bytes_max: int, wanted: bool) -> None:
        self._ends = _Room(rows_max + 1 if wanted else 1, np.int32)
        self._data = _Room(bytes_max if wanted else 0, np.uint8)
        self._valid = _Room((rows_max + 7) // 8 if wanted else 0, np.uint8)
        self._ends.view[0] = 0
        self._valid.view[:] = 255
        self.views = (self._ends.view, self._data.view, self._valid.view)

    def array(self, kind: pa.DataType, rows: int, used: int, nulls: int) -> pa.Array:
        validity = self._valid.filled((rows + 7) // 8) if nulls else None
        buffers = [validity, self._ends.filled(rows + 1), self._data.filled(used)]
        return pa.Array.from_buffers(kind, rows, buffers, null_count=nulls)


def _primitive(name: str, rows: int, buffer: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(COLUMN_TYPES[name], rows, [None, buffer], null_count=0)


def _repeated(name: str, values: Any, rows: Any) -> pa.Array:
    column = np.repeat(values, rows)
    return _primitive(name, len(column), pa.py_buffer(column))


def _add_batch_columns(built: dict[str, pa.Array], table: Any, columns: Sequence[str]) -> None:
    """Columns whose value is the same for all records of a batch."""
    rows = table[:, kernels.ROWS]
    attributes = table[:, kernels.ATTRIBUTES]
    if "timestamp_type" in columns:
        kinds = (attributes & TIMESTAMP_TYPE_FLAG) >> 3
        built["timestamp_type"] = _repeated("timestamp_type", kinds.astype(np.int8), rows)
    if "is_control" in columns:
        built["is_control"] = pa.array(np.repeat(attributes & CONTROL_FLAG != 0, rows))
    for name, column, kind in (
        ("producer_id", kernels.PRODUCER_ID, np.int64),
        ("producer_epoch", kernels.PRODUCER_EPOCH, np.int16),
        ("partition_leader_epoch", kernels.LEADER_EPOCH, np.int32),
    ):
        if name in columns:
            built[name] = _repeated(name, table[:, column].astype(kind), rows)


def _build_headers(
    stored: Any, expanded: Any, table: Any, places: Any, rows: int, headers: int, header_bytes: int
) -> pa.Array:
    list_ends = np.zeros(rows + 1, np.int32)
    key = _BinaryRoom(headers, header_bytes, True)
    value = _BinaryRoom(headers, header_bytes, True)
    key_bytes, value_bytes, nulls = kernels.collect_headers(
        stored, expanded, table, len(table), places, list_ends,
        *key.views[:2], *value.views,
    )  # fmt: skip
    keys = _text(key.array(pa.binary(), headers, key_bytes, 0))
    values = value.array(pa.binary(), headers, value_bytes, nulls)
    items = pa.StructArray.from_arrays([keys, values], fields=list(_HEADERS_TYPE.value_type))
    return pa.Array.from_buffers(
        _HEADERS_TYPE, rows, [None, pa.py_buffer(list_ends)], null_count=0, children=[items]
    )


def _text(keys: pa.Array) -> pa.Array:
    """Header keys as strings; bytes that are not UTF-8 become U+FFFD, as `record.iter_records` and Java clients have it."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], type=pa.string())
