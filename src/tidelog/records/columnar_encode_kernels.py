"""The compiled loops behind `columnar_encode`: hash keys, sort rows by partition, write records.

Owns the only code that writes record bytes without Python's own bounds checks: before a record is written its largest size is compared with
the room that is left. Offsets into the columns are checked once by `columnar_encode`. Never raises.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from tidelog.records.columnar_kernels import _compiled

RECORD_OVERHEAD_MAX: Final = (
    36  # length, attributes, two deltas, the lengths of key and value, the number of headers
)
HEADER_OVERHEAD_MAX: Final = 10  # the lengths of a name and a value


@numba.njit(inline="always")
def _put_varint(out: Any, position: Any, number: Any) -> Any:
    raw = np.uint64((number << np.int64(1)) ^ (number >> np.int64(63)))
    while raw >= np.uint64(128):
        out[position] = np.uint8(raw & np.uint64(127)) | np.uint8(128)
        position += 1
        raw >>= np.uint64(7)
    out[position] = np.uint8(raw)
    return position + 1


@numba.njit(inline="always")
def _varint_size(number: Any) -> Any:
    raw = np.uint64((number << np.int64(1)) ^ (number >> np.int64(63)))
    size = np.int64(1)
    while raw >= np.uint64(128):
        raw >>= np.uint64(7)
        size += 1
    return size


@numba.njit(inline="always")
def _put_bytes(out: Any, position: Any, data: Any, start: Any, size: Any) -> Any:
    source, target = np.uintp(start), np.uintp(position)
    for index in range(np.uintp(size)):
        out[target + index] = data[source + index]
    return position + size


@_compiled
def encode(
    rows: Any,
    first: Any,
    limit: Any,
    timestamps: Any,
    key_ends: Any,
    key_data: Any,
    key_valid: Any,
    value_ends: Any,
    value_data: Any,
    value_valid: Any,
    list_ends: Any,
    name_ends: Any,
    name_data: Any,
    content_ends: Any,
    content_data: Any,
    content_valid: Any,
    out: Any,
) -> Any:
    """Records of `rows[first:]` into `out` until `limit` bytes would be exceeded, but at least one if it fits `out` at all.

    Columns without values have no ends; one without nulls has no validity. Returns (next row, bytes, base timestamp, max timestamp).
    """
    position = np.int64(0)
    number = np.int64(0)
    row_number = np.int64(first)
    base_timestamp = max_timestamp = np.int64(-1)
    has_keys, has_values, has_headers = key_ends.shape[0] > 0, value_ends.shape[0] > 0, list_ends.shape[0] > 0
    no_null_key, no_null_value = key_valid.shape[0] == 0, value_valid.shape[0] == 0
    no_null_content = content_valid.shape[0] == 0
    while row_number < rows.shape[0]:
        row = rows[row_number]
        key_size = value_size = np.int64(-1)
        if has_keys and (no_null_key or key_valid[row]):
            key_size = np.int64(key_ends[row + 1] - key_ends[row])
        if has_values and (no_null_value or value_valid[row]):
            value_size = np.int64(value_ends[row + 1] - value_ends[row])
        header_size = np.int64(1)
        header_count = np.int64(0)
        if has_headers:
            header_count = np.int64(list_ends[row + 1] - list_ends[row])
            header_size = _varint_size(header_count)
            for header in range(list_ends[row], list_ends[row + 1]):
                size = np.int64(name_ends[header + 1] - name_ends[header])
                header_size += _varint_size(size) + size
                if no_null_content or content_valid[header]:
                    size = np.int64(content_ends[header + 1] - content_ends[header])
                    header_size += _varint_size(size) + size
                else:
                    header_size += 1
        timestamp = timestamps[row]
        delta = timestamp - base_timestamp if number else np.int64(0)
        size = (
            1 + _varint_size(delta) + _varint_size(number) + _varint_size(key_size) + _varint_size(value_size)
        )
        size += max(key_size, np.int64(0)) + max(value_size, np.int64(0)) + header_size
        whole = _varint_size(size) + size
        if position + whole > out.shape[0] or (number and position + whole > limit):
            break
        if number == 0:
            base_timestamp = max_timestamp = timestamp
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        position = _put_varint(out, position, size)
        out[position] = np.uint8(0)
        position = _put_varint(out, position + 1, delta)
        position = _put_varint(out, position, number)
        position = _put_varint(out, position, key_size)
        if key_size > 0:
            position = _put_bytes(out, position, key_data, key_ends[row], key_size)
        position = _put_varint(out, position, value_size)
        if value_size > 0:
            position = _put_bytes(out, position, value_data, value_ends[row], value_size)
        position = _put_varint(out, position, header_count)
        if header_count:
            for header in range(list_ends[row], list_ends[row + 1]):
                size = np.int64(name_ends[header + 1] - name_ends[header])
                position = _put_varint(out, position, size)
                position = _put_bytes(out, position, name_data, name_ends[header], size)
                if no_null_content or content_valid[header]:
                    size = np.int64(content_ends[header + 1] - content_ends[header])
                    position = _put_varint(out, position, size)
                    position = _put_bytes(out, position, content_data, content_ends[header], size)
                else:
                    position = _put_varint(out, position, np.int64(-1))
        number += 1
        row_number += 1
    return row_number, position, base_timestamp, max_timestamp


@_compiled
def hash_keys(ends: Any, data: Any, valid: Any, partitions: Any, count: Any) -> Any:
    """`partitions[row]` for every row that has a key: murmur2 as Java has it, modulo `count`. Rows without one stay as they are."""
    m = np.uint32(0x5BD1E995)
    has_nulls = valid.shape[0] > 0
    for row in range(ends.shape[0] - 1):
        if has_nulls and not valid[row]:
            continue
        start, end = np.int64(ends[row]), np.int64(ends[row + 1])
        size = end - start
        h = np.uint32(0x9747B28C) ^ np.uint32(size)
        position = start
        for _ in range(size >> 2):
            k = (
                np.uint32(data[position])
                | (np.uint32(data[position + 1]) << np.uint32(8))
                | (np.uint32(data[position + 2]) << np.uint32(16))
                | (np.uint32(data[position + 3]) << np.uint32(24))
            )
            k = np.uint32(k * m)
            k = np.uint32((k ^ (k >> np.uint32(24))) * m)
            h = np.uint32(np.uint32(h * m) ^ k)
            position += 4
        left = end - position
        if left >= 3:
            h ^= np.uint32(data[position + 2]) << np.uint32(16)
        if left >= 2:
            h ^= np.uint32(data[position + 1]) << np.uint32(8)
        if left >= 1:
            h ^= np.uint32(data[position])
            h = np.uint32(h * m)
        h = np.uint32((h ^ (h >> np.uint32(13))) * m)
        h = np.uint32(h ^ (h >> np.uint32(15)))
        partitions[row] = np.int32((np.int64(h) & np.int64(0x7FFFFFFF)) % count)


@_compiled
def sort_by_partition(partitions: Any, starts: Any, order: Any) -> Any:
    """Rows of each partition together, in their order; those of partition p are order[starts[p]:starts[p + 1]]. `starts` comes zeroed."""
    for row in range(partitions.shape[0]):
        starts[partitions[row] + 1] += 1
    for partition in range(1, starts.shape[0]):
        starts[partition] += starts[partition - 1]
    next_place = starts.copy()
    for row in range(partitions.shape[0]):
        partition = partitions[row]
        order[next_place[partition]] = row
        next_place[partition] += 1
