"""Arrow columns as the records of batches: the writing side of `columnar`, without a Python loop over rows.

Owns how a column becomes a field: bytes and text as they are, whatever else must be cast by whoever has it. A row keeps its place among the rows of
its partition. What comes out are payloads (records without the batch's header), because producer id and sequence number are given when a
batch is sent. The loops are in `columnar_encode_kernels`. Budget: 0.18 µs for a row of 100 B (`bench/budgets.py`).

Needs numba, numpy and pyarrow (the `arrow` extra), which take their time to import: only where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.records import columnar_encode_kernels as kernels
from tidelog.records.batch import HEADER_SIZE

NO_PARTITION: Final = -1


def _read_only(array: Any) -> Any:
    """Read-only whatever it is, so that the kernels are compiled for one type."""
    view = array.view()
    view.flags.writeable = False
    return view


_EMPTY_ENDS: Final = np.empty(0, np.int64)
_EMPTY_BYTES: Final = _read_only(np.empty(0, np.uint8))
_EMPTY_VALID: Final = _read_only(np.empty(0, np.bool_))


class ColumnError(TypeError):
    """A column that cannot be a key, a value, headers, a timestamp or a partition."""


class Bytes(NamedTuple):
    """A column of byte strings as arrays: `data[ends[row]:ends[row + 1]]`. Without nulls `valid` is empty; without a column all are."""

    ends: Any = _EMPTY_ENDS
    data: Any = _EMPTY_BYTES
    valid: Any = _EMPTY_VALID


class Columns(NamedTuple):
    rows: int
    timestamps: Any
    key: Bytes
    value: Bytes
    header_ends: Any
    header_names: Bytes
    header_contents: Bytes

    def bytes_bound(self) -> int:
        """More than all rows take."""
        headers = len(self.header_names.ends)
        data = sum(len(each.data) for each in (self.key, self.value, self.header_names, self.header_contents))
        return data + self.rows * kernels.RECORD_OVERHEAD_MAX + headers * kernels.HEADER_OVERHEAD_MAX


class Payload(NamedTuple):
    """Encoded records of one batch, behind room for its header."""

    data: memoryview
    rows: int
    base_timestamp: int
    max_timestamp: int


def columns_of(
    batch: pa.RecordBatch,
    *,
    key: str | None,
    value: str | None,
    headers: str | None,
    timestamp: str | None,
    now_ms: int,
) -> Columns:
    """The named columns of a batch; None stands for one that there is not."""
    names, contents = Bytes(), Bytes()
    header_ends = _EMPTY_ENDS
    if headers is not None:
        header_ends, names, contents = _headers(headers, _column(batch, headers))
    return Columns(
        batch.num_rows,
        _timestamps(batch, timestamp, now_ms),
        Bytes() if key is None else bytes_of(key, _column(batch, key)),
        Bytes() if value is None else bytes_of(value, _column(batch, value)),
        header_ends,
        names,
        contents,
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise ColumnError(f"there is no column {name!r}, or more than one; there are {batch.schema.names}")
    return batch.column(index)


def bytes_of(name: str, column: pa.Array) -> Bytes:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if pa.types.is_string_view(kind):
        column, kind = column.cast(pa.large_string()), pa.large_string()
    elif pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        column, kind = column.cast(pa.large_binary()), pa.large_binary()
    elif pa.types.is_null(kind):
        return Bytes()
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        width: Any = np.int32
    elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        width = np.int64
    else:
        raise ColumnError(
            f"column {name!r} is {kind}; keys and values are binary or string columns: cast it, or encode it as JSON or Avro first"
        )
    _, ends, data = column.buffers()
    rows = len(column)
    if ends is None or rows == 0:
        return Bytes(np.zeros(rows + 1, np.int64))
    positions = np.frombuffer(ends, width, rows + 1, column.offset * np.dtype(width).itemsize).astype(
        np.int64
    )
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else _EMPTY_BYTES
    _check_ends(name, positions, len(raw))
    return Bytes(positions, _read_only(raw), _valid(column))


def _check_ends(name: str, ends: Any, size: int) -> None:
    """What a program made of buffers of its own may be anything, and the loops behind this follow it."""
    if ends[0] < 0 or ends[-1] > size or bool((ends[1:] < ends[:-1]).any()):
        raise ColumnError(
            f"column {name!r} is no valid Arrow: its offsets lead out of its {size} bytes or items, or back; made by hand, they may have overflowed (validate(full=True) tells where)"
        )


def _valid(column: pa.Array) -> Any:
    return _read_only(column.is_valid().to_numpy(zero_copy_only=False)) if column.null_count else _EMPTY_VALID


def _headers(name: str, column: pa.Array) -> tuple[Any, Bytes, Bytes]:
    """From a list of (key, value) structs or a map; a null list has no headers."""
    kind = column.type
    if pa.types.is_map(kind):
        items, names, contents = column, column.keys, column.items
    elif (
        (pa.types.is_list(kind) or pa.types.is_large_list(kind))
        and pa.types.is_struct(kind.value_type)
        and kind.value_type.num_fields == 2
    ):
        items = column
        values = column.values
        names, contents = values.field(0), values.field(1)
    else:
        raise ColumnError(
            f"column {name!r} is {kind}; headers are a list of structs of a key and a value, or a map"
        )
    if names.null_count:
        raise ColumnError(f"column {name!r} has a header without a name")
    width: Any = np.int64 if pa.types.is_large_list(kind) else np.int32
    ends = np.frombuffer(
        items.buffers()[1], width, len(items) + 1, items.offset * np.dtype(width).itemsize
    ).astype(np.int64)
    _check_ends(name, ends, min(len(names), len(contents)))
    return ends, bytes_of(name, names), bytes_of(name, contents)


def _timestamps(batch: pa.RecordBatch, name: str | None, now_ms: int) -> Any:
    if name is None:
        return _read_only(np.full(batch.num_rows, now_ms, np.int64))
    column = _column(batch, name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_int64(column.type):
        raise ColumnError(
            f"column {name!r} is {column.type}; a timestamp is a timestamp or int64 milliseconds"
        )
    return _read_only(pc.fill_null(column, now_ms).to_numpy(zero_copy_only=False))


# ---- partitions


def partitions_by_key(columns: Columns, count: int) -> Any:
    """The partition of each row with a key, as Java's producer chooses it; NO_PARTITION for those without."""
    found = np.full(columns.rows, NO_PARTITION, np.int32)
    if len(columns.key.ends):
        kernels.hash_keys(columns.key.ends, columns.key.data, columns.key.valid, found, count)
    return found


def partitions_of_column(batch: pa.RecordBatch, name: str, count: int) -> Any:
    column = _column(batch, name)
    if not pa.types.is_integer(column.type):
        raise ColumnError(f"column {name!r} is {column.type}; partitions are integers")
    found = pc.fill_null(column.cast(pa.int32()), NO_PARTITION).to_numpy(zero_copy_only=False)
    if len(found) and (found.max() >= count or found.min() < NO_PARTITION):
        raise ColumnError(
            f"column {name!r} names partitions from {found.min()} to {found.max()}; the topic has 0 to {count - 1}"
        )
    return found.astype(np.int32)


def rows_by_partition(partitions: Any, count: int) -> Iterator[tuple[int, Any]]:
    """(partition, its rows in order) for every partition that has rows."""
    starts = np.zeros(count + 1, np.int64)
    order = np.empty(len(partitions), np.int64)
    kernels.sort_by_partition(partitions, starts, order)
    for partition in np.flatnonzero(np.diff(starts)).tolist():
        yield partition, order[starts[partition] : starts[partition + 1]]


# ---- records


def is_loaded() -> bool:
    """Whether this process has compiled the encoder, or found it on disk: before that the first call may take seconds."""
    return bool(getattr(kernels.encode, "overloads", ()))


def encode_rows(columns: Columns, rows: Any, *, bytes_max: int) -> Iterator[Payload]:
    """Batches of at most `bytes_max` bytes, but for a single record that is larger by itself."""
    size_max = max(0, min(columns.bytes_bound(), bytes_max - HEADER_SIZE))
    room = _room(size_max)
    first = 0
    while first < len(rows):
        after, size, base_timestamp, max_timestamp = kernels.encode(
            rows, first, size_max, columns.timestamps, *columns.key, *columns.value,
            columns.header_ends, columns.header_names.ends, columns.header_names.data, *columns.header_contents, room[HEADER_SIZE:],
        )  # fmt: skip
        if after == first:  # not even one: the room is for records of ordinary size
            room = _room(columns.bytes_bound())
            continue
        data = room[: HEADER_SIZE + size]
        if len(data) > len(room) * 3 // 4:
            room = _room(size_max)  # this one is handed on as it is
        else:
            data = data.copy()
        yield Payload(data.data, int(after - first), int(base_timestamp), int(max_timestamp))
        first = after


def _room(size: int) -> Any:
    """Of Arrow's pool, which keeps the pages of batches that have arrived: fresh ones cost several times the copy into them."""
    room = np.frombuffer(pa.allocate_buffer(HEADER_SIZE + size), np.uint8)
    room[:HEADER_SIZE] = 0
    return room
