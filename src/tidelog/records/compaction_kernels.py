"""The compiled loops behind `compaction`: where records stand, what their keys hash to, which of them stay, and the bytes that remain.

Owns the only code of compaction that touches single records. As in `columnar_kernels`, every read is preceded by a comparison with the end
of what may be read: `outline` makes those comparisons once, and the loops behind it rely on the rows that it has filled. Never raises. A batch whose
records do not add up is marked, and whoever calls decides what that means.

Helpers come from `columnar_kernels`; numba's cache knows only the age of this file, so touch it when one of them changes.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from tidelog.records.columnar_kernels import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    EXPANDED,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    PAYLOAD_END,
    PAYLOAD_START,
    POSITION,
    RECORD_COUNT,
    ROWS,
    _big_endian,
    _compiled,
    _copy,
    _varint,
)

# Columns of the record table that `outline` fills, one row per record.
START: Final = 0  # of the record, its length included
BODY: Final = 1  # behind the length: the attributes
TAIL: Final = 2  # behind the timestamp delta: what never changes
END: Final = 3
OFFSET: Final = 4
TIMESTAMP: Final = 5
KEY: Final = 6
KEY_BYTES: Final = 7  # -1: there is no key
VALUE_BYTES: Final = 8  # -1: there is no value, the record is a tombstone
RECORD_WIDTH: Final = 9

# What the caller says of a batch.
DISCARD: Final = 1  # its records go: they were aborted, or a marker is not needed any more
RETAIN: Final = 2  # the batch stays although no record does: a producer is known from it
MARKER: Final = 4  # its records are markers: they have no key in the sense of compaction
ENDS_NOTHING: Final = 8  # a marker of whose transaction nothing is left
OPAQUE: Final = 16  # its records cannot be read: the batch stays as it is

# Columns of the plan that `decide` fills, one row per batch.
OUTCOME: Final = 0
FIRST_RECORD: Final = 1
KEPT: Final = 2
PAYLOAD_BYTES: Final = 3  # of the records that stay, not compressed
NEW_BASE_TIMESTAMP: Final = 4
NEW_MAX_TIMESTAMP: Final = 5
SIZE: Final = 6  # of the batch as it is written
HORIZON: Final = 7  # from which time its tombstones may go; -1: none is set
TARGET: Final = 8  # where `write` has put it
PLAN_WIDTH: Final = 9

# Outcomes.
DROP: Final = 0
COPY: Final = 1
REBUILD: Final = 2
EMPTY: Final = 3

# Control types, as `control_types` reports them beside those of the format.
NO_RECORD: Final = -1
UNREADABLE: Final = -2

_SLOT: Final = np.uint64(
    3
)  # words of a slot of the map: two of the hash, then the offset plus one (0: the slot is free)
_ONE: Final = np.uint64(1)
_TWO: Final = np.uint64(2)
_EMPTY: Final = np.uint64(0)
_SEVEN_BITS: Final = np.uint64(127)
_MORE: Final = np.uint64(128)


# ---- where records stand


@_compiled
def outline(stored: Any, expanded: Any, table: Any, records: Any, opaque: Any) -> Any:
    """Fill `records` from the batches of `table`, and each batch's ROWS. Returns how many records there are.

    A batch that does not add up gets no rows and is marked in `opaque`.
    """
    row = np.int64(0)
    for batch in range(table.shape[0]):
        data = expanded if table[batch, EXPANDED] else stored
        position = table[batch, PAYLOAD_START]
        payload_end = table[batch, PAYLOAD_END]
        base_offset = table[batch, BASE_OFFSET]
        last_delta = table[batch, LAST_OFFSET] - base_offset
        previous_delta = np.int64(-1)
        first_row = row
        sound = True
        for _ in range(table[batch, RECORD_COUNT]):
            start = position
            length, position = _varint(data, position, payload_end, 32)
            if length < 0 or length > payload_end - position:
                sound = False
                break
            body = position
            end = position + length
            timestamp_delta, tail = _varint(data, position + 1, end, 64)
            offset_delta, position = _varint(data, tail, end, 32)
            key_bytes, position = _varint(data, position, end, 32)
            if (
                position > end
                or offset_delta <= previous_delta
                or offset_delta > last_delta
                or key_bytes < -1
                or key_bytes > end - position
            ):
                sound = False
                break
            previous_delta = offset_delta
            key = position
            value_bytes, position = _varint(data, position + max(key_bytes, np.int64(0)), end, 32)
            if value_bytes < -1 or max(value_bytes, np.int64(0)) >= end - position:
                sound = False  # the number of headers must follow
                break
            records[row, START] = start
            records[row, BODY] = body
            records[row, TAIL] = tail
            records[row, END] = end
            records[row, OFFSET] = base_offset + offset_delta
            records[row, TIMESTAMP] = table[batch, BASE_TIMESTAMP] + timestamp_delta
            records[row, KEY] = key
            records[row, KEY_BYTES] = key_bytes
            records[row, VALUE_BYTES] = value_bytes
            row += 1
            position = end
        if not sound or position != payload_end:
            opaque[batch] = True
            row = first_row
        table[batch, ROWS] = row - first_row
    return row


@_compiled
def control_types(stored: Any, table: Any, records: Any, types: Any) -> Any:
    """The type in the key of each control batch's first record, or NO_RECORD, or UNREADABLE."""
    row = np.int64(0)
    for batch in range(table.shape[0]):
        if table[batch, ATTRIBUTES] & 0x20:
            if table[batch, RECORD_COUNT] == 0:
                types[batch] = NO_RECORD
            elif table[batch, ROWS] == 0 or table[batch, EXPANDED] or records[row, KEY_BYTES] < 4:
                types[batch] = UNREADABLE
            else:
                types[batch] = _big_endian(stored, records[row, KEY] + 2, 2)
        row += table[batch, ROWS]


# ---- the map


@numba.njit
def _rotated(value: Any, bits: Any) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@numba.njit
def _mixed(v0: Any, v1: Any, v2: Any, v3: Any, rounds: Any) -> Any:
    for _ in range(rounds):
        v0 += v1
        v2 += v3
        v1 = _rotated(v1, 13) ^ v0
        v3 = _rotated(v3, 16) ^ v2
        v0 = _rotated(v0, 32)
        v2 += v1
        v0 += v3
        v1 = _rotated(v1, 17) ^ v2
        v3 = _rotated(v3, 21) ^ v0
        v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@numba.njit
def _word(data: Any, position: Any, size: Any) -> Any:
    """Up to eight bytes as a little-endian number."""
    word = np.uint64(0)
    for index in range(size):
        word |= np.uint64(data[np.uintp(position + index)]) << np.uint64(8 * index)
    return word


@numba.njit
def hashed(data: Any, position: Any, size: Any, secret: Any) -> Any:
    """SipHash-2-4 with 128 bits of the bytes at `position`, under the two words of `secret`."""
    v0 = np.uint64(0x736F6D6570736575) ^ secret[0]
    v1 = np.uint64(0x646F72616E646F6D) ^ secret[1] ^ np.uint64(0xEE)
    v2 = np.uint64(0x6C7967656E657261) ^ secret[0]
    v3 = np.uint64(0x7465646279746573) ^ secret[1]
    whole = size >> 3
    for number in range(whole):
        word = _word(data, position + 8 * number, 8)
        v0, v1, v2, v3 = _mixed(v0, v1, v2, v3 ^ word, 2)
        v0 ^= word
    word = _word(data, position + 8 * whole, size & 7) | (np.uint64(size & 255) << np.uint64(56))
    v0, v1, v2, v3 = _mixed(v0, v1, v2, v3 ^ word, 2)
    v0, v1, v2, v3 = _mixed(v0 ^ word, v1, v2 ^ np.uint64(0xEE), v3, 4)
    low = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = _mixed(v0, v1 ^ np.uint64(0xDD), v2, v3, 4)
    return low, v0 ^ v1 ^ v2 ^ v3


@numba.njit
def _place(slots: Any, low: Any, high: Any) -> Any:
    """Where the key's slot begins, or the free one where it belongs. One slot at least is always free."""
    count = np.uint64(slots.shape[0]) // _SLOT
    slot = ((low >> np.uint64(32)) * count) >> np.uint64(32)
    while True:
        at = slot * _SLOT
        if slots[at + _TWO] == _EMPTY or (slots[at] == low and slots[at + _ONE] == high):
            return at
        slot += _ONE
        if slot == count:
            slot = np.uint64(0)


@_compiled
def add_keys(
    stored: Any,
    expanded: Any,
    table: Any,
    records: Any,
    skipped: Any,
    slots: Any,
    secret: Any,
    start_offset: Any,
    entries: Any,
    entries_max: Any,
) -> Any:
    """Note the offset of each record from `start_offset` on under its key, batches in `skipped` excepted.

    Returns (entries, offset of the first record that found no room; -1 if all did).
    """
    row = np.int64(0)
    for batch in range(table.shape[0]):
        count = table[batch, ROWS]
        if skipped[batch] or table[batch, LAST_OFFSET] < start_offset:
            row += count
            continue
        data = expanded if table[batch, EXPANDED] else stored
        for record in range(row, row + count):
            offset = records[record, OFFSET]
            if offset < start_offset or records[record, KEY_BYTES] < 0:
                continue
            low, high = hashed(data, records[record, KEY], records[record, KEY_BYTES], secret)
            at = _place(slots, low, high)
            if slots[at + _TWO] == _EMPTY:
                if entries >= entries_max:
                    return entries, offset
                slots[at] = low
                slots[at + _ONE] = high
                entries += 1
            slots[at + _TWO] = np.uint64(offset + 1)
        row += count
    return entries, np.int64(-1)


@_compiled
def find_key(data: Any, slots: Any, secret: Any) -> Any:
    """The offset noted for one key; -1 if there is none."""
    low, high = hashed(data, np.int64(0), np.int64(data.shape[0]), secret)
    return np.int64(slots[_place(slots, low, high) + _TWO]) - 1


# ---- which records stay


@numba.njit
def _zigzag(number: Any) -> Any:
    return np.uint64(number << 1) ^ np.uint64(number >> 63)


@numba.njit
def _varint_bytes(raw: Any) -> Any:
    size = np.int64(1)
    while raw >= _MORE:
        raw >>= np.uint64(7)
        size += 1
    return size


@numba.njit
def _shifted_bytes(records: Any, record: Any, base_timestamp: Any) -> Any:
    """What a record takes with its timestamp counted from another base."""
    body = 1 + _varint_bytes(_zigzag(records[record, TIMESTAMP] - base_timestamp))
    body += records[record, END] - records[record, TAIL]
    return _varint_bytes(_zigzag(body)) + body


@_compiled
def decide(
    stored: Any,
    expanded: Any,
    table: Any,
    records: Any,
    verdicts: Any,
    slots: Any,
    secret: Any,
    map_end: Any,
    now_ms: Any,
    horizon_ms: Any,
    stays: Any,
    plan: Any,
) -> Any:
    """Fill `stays`, one flag per record, and `plan`. Returns (records that stay, records without a key that go).

    What lies at or above `map_end` is unknown to the map and stays. `horizon_ms` is given to tombstones that become clean now.
    """
    row = kept_records = null_keys = np.int64(0)
    for batch in range(table.shape[0]):
        count = table[batch, ROWS]
        verdict = verdicts[batch]
        attributes = table[batch, ATTRIBUTES]
        has_horizon = attributes & 0x40 != 0
        base_timestamp = table[batch, BASE_TIMESTAMP]
        may_drop_tombstones = has_horizon and base_timestamp <= now_ms
        data = expanded if table[batch, EXPANDED] else stored
        kept = payload_bytes = np.int64(0)
        tombstones = False
        max_timestamp = np.int64(-1)
        for record in range(row, row + count):
            stay = verdict & DISCARD == 0
            offset = records[record, OFFSET]
            if stay and verdict & MARKER == 0 and offset < map_end:
                if records[record, KEY_BYTES] < 0:
                    null_keys += 1
                    stay = False
                elif records[record, VALUE_BYTES] < 0 and may_drop_tombstones:
                    stay = False
                else:
                    low, high = hashed(data, records[record, KEY], records[record, KEY_BYTES], secret)
                    stay = np.int64(slots[_place(slots, low, high) + _TWO]) <= offset + 1
            stays[record] = stay
            if stay:
                kept += 1
                payload_bytes += records[record, END] - records[record, START]
                tombstones = tombstones or records[record, VALUE_BYTES] < 0
                max_timestamp = max(max_timestamp, records[record, TIMESTAMP])
        plan[batch, FIRST_RECORD] = row
        plan[batch, KEPT] = kept
        plan[batch, NEW_BASE_TIMESTAMP] = base_timestamp
        # Under LogAppendTime the header's timestamp is that of every record.
        plan[batch, NEW_MAX_TIMESTAMP] = table[batch, MAX_TIMESTAMP] if attributes & 8 else max_timestamp
        plan[batch, HORIZON] = base_timestamp if has_horizon else -1
        stored_size = _big_endian(stored, table[batch, POSITION] + 8, 4) + 12
        outcome = REBUILD
        if verdict & OPAQUE:
            outcome = COPY
        elif kept == 0:
            if verdict & RETAIN == 0:
                outcome = DROP
            elif table[batch, RECORD_COUNT] == 0:
                outcome = COPY
            else:
                outcome = EMPTY
                plan[batch, HORIZON] = -1
        else:
            wants_horizon = verdict & ENDS_NOTHING != 0 or (verdict & MARKER == 0 and tombstones)
            if wants_horizon and not has_horizon and table[batch, LAST_OFFSET] < map_end:
                plan[batch, NEW_BASE_TIMESTAMP] = horizon_ms
                plan[batch, HORIZON] = horizon_ms
                payload_bytes = np.int64(0)
                for record in range(row, row + count):
                    if stays[record]:
                        payload_bytes += _shifted_bytes(records, record, horizon_ms)
            elif kept == count:
                outcome = COPY
        plan[batch, OUTCOME] = outcome
        plan[batch, PAYLOAD_BYTES] = payload_bytes if outcome == REBUILD else 0
        plan[batch, SIZE] = stored_size if outcome == COPY else 61 + plan[batch, PAYLOAD_BYTES]
        kept_records += kept
        row += count
    return kept_records, null_keys


# ---- the bytes that remain


@numba.njit
def _put_varint(out: Any, position: Any, raw: Any) -> Any:
    while raw >= _MORE:
        out[np.uintp(position)] = np.uint8(raw & _SEVEN_BITS | _MORE)
        raw >>= np.uint64(7)
        position += 1
    out[np.uintp(position)] = np.uint8(raw)
    return position + 1


@numba.njit
def _put_big_endian(out: Any, position: Any, number: Any, size: Any) -> Any:
    for index in range(size):
        out[position + size - 1 - index] = np.uint8((number >> (8 * index)) & 255)


@numba.njit
def _write_records(
    data: Any, table: Any, records: Any, stays: Any, plan: Any, batch: Any, out: Any, target: Any
) -> Any:
    first = plan[batch, FIRST_RECORD]
    base_timestamp = plan[batch, NEW_BASE_TIMESTAMP]
    moved = base_timestamp != table[batch, BASE_TIMESTAMP]
    run = np.int64(-1)  # where records begin that are copied together
    run_end = np.int64(-1)
    for record in range(first, first + table[batch, ROWS]):
        if stays[record] and not moved:
            if run < 0:
                run = records[record, START]
            run_end = records[record, END]
        elif run >= 0:
            _copy(data, run, out, target, run_end - run)
            target += run_end - run
            run = np.int64(-1)
        if stays[record] and moved:
            raw = _zigzag(records[record, TIMESTAMP] - base_timestamp)
            rest = records[record, END] - records[record, TAIL]
            target = _put_varint(out, target, _zigzag(1 + _varint_bytes(raw) + rest))
            out[target] = data[records[record, BODY]]
            target = _put_varint(out, target + 1, raw)
            _copy(data, records[record, TAIL], out, target, rest)
            target += rest
    if run >= 0:
        _copy(data, run, out, target, run_end - run)
        target += run_end - run
    return target


@_compiled
def write_header(stored: Any, table: Any, plan: Any, batch: Any, out: Any, target: Any, size: Any) -> Any:
    """The header of a batch that is rebuilt or emptied, `size` bytes long as a whole. Its CRC is the caller's to compute."""
    _copy(stored, table[batch, POSITION], out, target, 61)
    attributes = table[batch, ATTRIBUTES]
    if plan[batch, OUTCOME] == EMPTY:
        attributes &= ~np.int64(0x47)  # neither a codec nor a horizon
        base_timestamp = np.int64(-1)
        max_timestamp = table[batch, MAX_TIMESTAMP]
    else:
        if plan[batch, HORIZON] >= 0:
            attributes |= 0x40
        base_timestamp = plan[batch, NEW_BASE_TIMESTAMP]
        max_timestamp = plan[batch, NEW_MAX_TIMESTAMP]
    _put_big_endian(out, target + 8, size - 12, 4)
    _put_big_endian(out, target + 21, attributes, 2)
    _put_big_endian(out, target + 27, base_timestamp, 8)
    _put_big_endian(out, target + 35, max_timestamp, 8)
    _put_big_endian(out, target + 57, plan[batch, KEPT], 4)


@_compiled
def write_payload(
    stored: Any, expanded: Any, table: Any, records: Any, stays: Any, plan: Any, batch: Any, out: Any
) -> Any:
    """The records of one batch that stay, for whoever compresses them. Returns how many bytes they are."""
    data = expanded if table[batch, EXPANDED] else stored
    return _write_records(data, table, records, stays, plan, batch, out, np.int64(0))


@_compiled
def write(
    stored: Any,
    expanded: Any,
    table: Any,
    records: Any,
    stays: Any,
    plan: Any,
    first: Any,
    last: Any,
    out: Any,
    target: Any,
) -> Any:
    """What remains of the batches [first, last) behind `target`; returns where it ends. None of them is compressed and rebuilt."""
    for batch in range(first, last):
        outcome = plan[batch, OUTCOME]
        if outcome == DROP:
            continue
        plan[batch, TARGET] = target
        if outcome == COPY:
            _copy(stored, table[batch, POSITION], out, target, plan[batch, SIZE])
            target += plan[batch, SIZE]
            continue
        end = target + 61
        if outcome == REBUILD:
            end = _write_records(stored, table, records, stays, plan, batch, out, end)
        write_header(stored, table, plan, batch, out, target, end - target)
        target = end
    return target


# ---- where the indexes of what is written get their entries

POSITION_NOW: Final = 0
SINCE_ENTRY: Final = 1
LATEST: Final = 2
LATEST_OFFSET: Final = 3
STATE_WIDTH: Final = 4


@_compiled
def index_entries(
    sizes: Any, last_offsets: Any, max_timestamps: Any, interval_bytes: Any, state: Any, entries: Any
) -> Any:
    """(last offset, position, latest timestamp so far, its offset) of each batch that gets an index entry; returns how many.

    The same rule as `Segment.note_batch` has: an entry for the first batch behind each interval.
    """
    found = np.int64(0)
    for batch in range(sizes.shape[0]):
        if max_timestamps[batch] > state[LATEST]:
            state[LATEST] = max_timestamps[batch]
            state[LATEST_OFFSET] = last_offsets[batch]
        if state[SINCE_ENTRY] > interval_bytes:
            entries[found, 0] = last_offsets[batch]
            entries[found, 1] = state[POSITION_NOW]
            entries[found, 2] = state[LATEST]
            entries[found, 3] = state[LATEST_OFFSET]
            found += 1
            state[SINCE_ENTRY] = 0
        state[SINCE_ENTRY] += sizes[batch]
        state[POSITION_NOW] += sizes[batch]
    return found
