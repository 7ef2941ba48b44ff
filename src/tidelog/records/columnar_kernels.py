"""The compiled loops behind `columnar`: find the batches of a buffer, walk their records, copy fields into columns.

Owns the only code that reads record bytes without Python's own bounds checks, so every read here is preceded by a comparison
with the end of what may be read, and every write goes to room whose size was derived from the bytes read. Never raises:
a kernel returns an error number and the place, and `columnar` turns them into a CorruptDataError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np

# Columns of the batch table that `scan` fills, one row per batch to be read.
BASE_OFFSET: Final = 0
ATTRIBUTES: Final = 1
BASE_TIMESTAMP: Final = 2
MAX_TIMESTAMP: Final = 3
RECORD_COUNT: Final = 4
PAYLOAD_START: Final = 5
PAYLOAD_END: Final = 6
LAST_OFFSET: Final = 7
PRODUCER_ID: Final = 8
PRODUCER_EPOCH: Final = 9
LEADER_EPOCH: Final = 10
EXPANDED: Final = 11  # 1: the payload lies in the buffer of decompressed payloads
ROWS: Final = 12  # filled by `walk`: records kept of this batch
POSITION: Final = 13  # where the batch starts in the buffer
TABLE_WIDTH: Final = 14

# What scan and walk may find wrong.
OK: Final = 0
BAD_BATCH: Final = 1
BAD_OFFSETS: Final = 2
BAD_COUNT: Final = 3
BAD_LENGTH: Final = 4
BAD_DELTAS: Final = 5
BAD_KEY: Final = 6
BAD_VALUE: Final = 7
BAD_HEADERS: Final = 8
BAD_END: Final = 9
BAD_TAIL: Final = 10

# What walk leaves in `totals`: sizes when all went well, the place when not.
TOTAL_ROWS: Final = 0
KEY_BYTES: Final = 1
VALUE_BYTES: Final = 2
NULL_KEYS: Final = 3
NULL_VALUES: Final = 4
HEADERS: Final = 5
HEADER_BYTES: Final = 6
FAILED_BATCH: Final = 7
FAILED_RECORD: Final = 8
TOTALS: Final = 9

_NOWHERE: Final = 1 << 62  # a position behind every end: one failed read makes all that follow fail


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled on first call and kept on disk; where no directory can hold the cache, compiled anew in every process."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


@numba.njit
def _varint(data: Any, position: Any, end: Any, bits: Any) -> Any:
    """(number, position behind it), or (0, _NOWHERE) when it is cut off or too long for `bits`."""
    if position >= end:
        return np.int64(0), np.int64(_NOWHERE)
    byte = np.uint64(data[np.uintp(position)])
    position += 1
    if byte < np.uint64(128):
        return np.int64(byte >> np.uint64(1)) ^ -np.int64(byte & np.uint64(1)), position
    raw = byte & np.uint64(127)
    shift = np.uint64(7)
    while byte >= np.uint64(128):
        if position >= end or shift >= np.uint64(bits):
            return np.int64(0), np.int64(_NOWHERE)
        byte = np.uint64(data[np.uintp(position)])
        position += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.int64(0), np.int64(_NOWHERE)  # more than 64 bits; the shift would drop them in silence
        raw |= (byte & np.uint64(127)) << shift
        shift += np.uint64(7)
    if bits == 32 and raw >> np.uint64(32) != np.uint64(0):
        return np.int64(0), np.int64(_NOWHERE)
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), position


@numba.njit
def _copy(source: Any, position: Any, target: Any, target_position: Any, size: Any) -> Any:
    """Unsigned indexes, because Python's meaning of negative ones would cost a branch per byte and the vectorised loop with it."""
    start = np.uintp(position)
    target_start = np.uintp(target_position)
    for index in range(np.uintp(size)):
        target[target_start + index] = source[start + index]


@numba.njit
def _big_endian(data: Any, position: Any, size: Any) -> Any:
    """A signed number of `size` bytes; the caller has checked that they are there."""
    number = np.int64(np.int8(data[position]))
    for index in range(1, size):
        number = (number << 8) | np.int64(data[position + index])
    return number


@_compiled
def scan(
    data: Any,
    position: Any,
    table: Any,
    row: Any,
    payload_bytes: Any,
    start_offset: Any,
    end_offset: Any,
    control: Any,
    bytes_max: Any,
) -> Any:
    """Fill `table` from `row` on with the batches from `position` on that hold offsets in [start_offset, end_offset).

    Stops at a cut-off tail, at end_offset, when the table is full, or before the payloads listed exceed bytes_max (but never
    before the first one). Returns (error, position, row, next offset or -1, payload bytes listed).
    """
    end = data.shape[0]
    next_offset = np.int64(-1)
    while position + 61 <= end and row < table.shape[0]:
        length = _big_endian(data, position + 8, 4)
        if length < 49 or data[position + 16] != 2:
            return BAD_BATCH, position, row, next_offset, payload_bytes
        batch_end = position + 12 + length
        if batch_end > end:
            break
        base_offset = _big_endian(data, position, 8)
        last_delta = _big_endian(data, position + 23, 4)
        if base_offset < 0 or last_delta < 0 or base_offset > np.int64(0x7FFFFFFFFFFFFFFF) - last_delta - 1:
            return BAD_OFFSETS, position, row, next_offset, payload_bytes
        if base_offset >= end_offset:
            next_offset = end_offset
            break
        last_offset = base_offset + last_delta
        attributes = _big_endian(data, position + 21, 2)
        if last_offset >= start_offset and (control or attributes & 0x20 == 0):
            if row > 0 and payload_bytes + length - 49 > bytes_max:
                break
            count = _big_endian(data, position + 57, 4)
            if count < 0 or (attributes & 7 == 0 and count > (length - 49) // 7):
                return BAD_COUNT, position, row, next_offset, payload_bytes
            table[row, BASE_OFFSET] = base_offset
            table[row, ATTRIBUTES] = attributes
            table[row, BASE_TIMESTAMP] = _big_endian(data, position + 27, 8)
            table[row, MAX_TIMESTAMP] = _big_endian(data, position + 35, 8)
            table[row, RECORD_COUNT] = count
            table[row, PAYLOAD_START] = position + 61
            table[row, PAYLOAD_END] = batch_end
            table[row, LAST_OFFSET] = last_offset
            table[row, PRODUCER_ID] = _big_endian(data, position + 43, 8)
            table[row, PRODUCER_EPOCH] = _big_endian(data, position + 51, 2)
            table[row, LEADER_EPOCH] = _big_endian(data, position + 12, 4)
            table[row, EXPANDED] = 0
            table[row, ROWS] = 0
            table[row, POSITION] = position
            row += 1
            payload_bytes += length - 49
        next_offset = last_offset + 1
        position = batch_end
    return OK, position, row, min(next_offset, end_offset), payload_bytes


@numba.njit
def _failed(error: Any, batch: Any, record: Any, totals: Any) -> Any:
    totals[FAILED_BATCH] = batch
    totals[FAILED_RECORD] = record
    return error


@_compiled
def walk(
    stored: Any,
    expanded: Any,
    table: Any,
    batches: Any,
    start_offset: Any,
    end_offset: Any,
    want_key: Any,
    want_value: Any,
    want_headers: Any,
    offsets: Any,
    timestamps: Any,
    key_ends: Any,
    key_bytes: Any,
    key_valid: Any,
    value_ends: Any,
    value_bytes: Any,
    value_valid: Any,
    header_places: Any,
    totals: Any,
) -> Any:
    """Every record of the listed batches into columns. Returns an error number; `totals` says how much there is, or where it is."""
    row = key_end = value_end = null_keys = null_values = headers = header_bytes = np.int64(0)
    want_body = want_key or want_value or want_headers
    for batch in range(batches):
        data = expanded if table[batch, EXPANDED] else stored
        position = table[batch, PAYLOAD_START]
        payload_end = table[batch, PAYLOAD_END]
        base_offset = table[batch, BASE_OFFSET]
        base_timestamp = table[batch, BASE_TIMESTAMP]
        append_time = table[batch, ATTRIBUTES] & 8 != 0
        last_delta = table[batch, LAST_OFFSET] - base_offset
        previous_delta = np.int64(-1)
        first_row = row
        for record in range(table[batch, RECORD_COUNT]):
            length, position = _varint(data, position, payload_end, 32)
            if length < 0 or length > payload_end - position:
                return _failed(BAD_LENGTH, batch, record, totals)
            end = position + length
            timestamp_delta, position = _varint(data, position + 1, end, 64)
            offset_delta, position = _varint(data, position, end, 32)
            if position > end or offset_delta <= previous_delta or offset_delta > last_delta:
                return _failed(BAD_DELTAS, batch, record, totals)
            previous_delta = offset_delta
            offset = base_offset + offset_delta
            if offset < start_offset or offset >= end_offset:
                position = end
                continue
            offsets[row] = offset
            timestamps[row] = table[batch, MAX_TIMESTAMP] if append_time else base_timestamp + timestamp_delta
            if not want_body:
                position = end
                row += 1
                continue

            size, position = _varint(data, position, end, 32)
            if size < -1 or size > end - position:
                return _failed(BAD_KEY, batch, record, totals)
            if size >= 0:
                if want_key:
                    _copy(data, position, key_bytes, key_end, size)
                    key_end += size
                position += size
            elif want_key:
                null_keys += 1
                key_valid[row >> 3] &= np.uint8(255 ^ (1 << (row & 7)))
            if want_key:
                key_ends[row + 1] = key_end

            size, position = _varint(data, position, end, 32)
            if size < -1 or size > end - position:
                return _failed(BAD_VALUE, batch, record, totals)
            if size >= 0:
                if want_value:
                    _copy(data, position, value_bytes, value_end, size)
                    value_end += size
                position += size
            elif want_value:
                null_values += 1
                value_valid[row >> 3] &= np.uint8(255 ^ (1 << (row & 7)))
            if want_value:
                value_ends[row + 1] = value_end

            if want_headers:
                header_places[row] = position
                header_bytes += end - position
            count, position = _varint(data, position, end, 32)
            if count < 0 or count > end - position:
                return _failed(BAD_HEADERS, batch, record, totals)
            headers += count
            for _ in range(count):
                size, position = _varint(data, position, end, 32)
                if size < 0 or size > end - position:
                    return _failed(BAD_HEADERS, batch, record, totals)
                size, position = _varint(data, position + size, end, 32)
                if size < -1 or size > end - position:
                    return _failed(BAD_HEADERS, batch, record, totals)
                position += max(size, np.int64(0))
            if position != end:
                return _failed(BAD_END, batch, record, totals)
            row += 1
        if position != payload_end:
            return _failed(BAD_TAIL, batch, 0, totals)
        table[batch, ROWS] = row - first_row
    totals[TOTAL_ROWS] = row
    totals[KEY_BYTES] = key_end
    totals[VALUE_BYTES] = value_end
    totals[NULL_KEYS] = null_keys
    totals[NULL_VALUES] = null_values
    totals[HEADERS] = headers
    totals[HEADER_BYTES] = header_bytes
    return OK


@_compiled
def collect_headers(
    stored: Any,
    expanded: Any,
    table: Any,
    batches: Any,
    header_places: Any,
    list_ends: Any,
    key_ends: Any,
    key_bytes: Any,
    value_ends: Any,
    value_bytes: Any,
    value_valid: Any,
) -> Any:
    """Headers of the rows that `walk` kept and checked, into list, key and value columns. Returns (key bytes, value bytes, nulls)."""
    row = header = key_end = value_end = null_values = np.int64(0)
    for batch in range(batches):
        data = expanded if table[batch, EXPANDED] else stored
        end = table[batch, PAYLOAD_END]
        for _ in range(table[batch, ROWS]):
            count, position = _varint(data, header_places[row], end, 32)
            for _ in range(count):
                size, position = _varint(data, position, end, 32)
                _copy(data, position, key_bytes, key_end, size)
                key_end += size
                key_ends[header + 1] = key_end
                size, position = _varint(data, position + size, end, 32)
                if size < 0:
                    null_values += 1
                    value_valid[header >> 3] &= np.uint8(255 ^ (1 << (header & 7)))
                else:
                    _copy(data, position, value_bytes, value_end, size)
                    value_end += size
                    position += size
                value_ends[header + 1] = value_end
                header += 1
            row += 1
            list_ends[row] = header
    return key_end, value_end, null_values
