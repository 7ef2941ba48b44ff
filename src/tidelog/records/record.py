"""The records of one batch in plain Python, for small work: control records, timestamp lookups, validation, tests.

Owns the layout of a record. Never reads outside the batch it was given, and never believes a length it has not compared with
the bytes that are left. Large amounts go through `columnar`, which is some fifty times faster per record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from tidelog.errors import CorruptDataError
from tidelog.records.batch import HEADER_SIZE, BatchHeader, Buffer, TimestampType
from tidelog.records.compression import decompress
from tidelog.records.varint import read_varint, read_varlong

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

RECORD_BYTES_MIN: Final = 7  # length, attributes, two deltas, key and value lengths, header count
DECOMPRESS_LIMIT_BYTES: Final = 128 * 1024 * 1024
INT64_MAX: Final = (1 << 63) - 1
_INT64_SPACE: Final = 1 << 64


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def records_payload(
    buffer: Buffer, position: int, header: BatchHeader, *, limit: int = DECOMPRESS_LIMIT_BYTES
) -> memoryview:
    """The bytes of the batch's records, decompressed. Checks offsets and record count before anyone counts on them."""
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.next_offset > INT64_MAX:
        raise CorruptDataError(
            f"batch at offset {header.base_offset} with last offset delta {header.last_offset_delta} has no valid offsets"
        )
    end = position + header.size
    if header.size < HEADER_SIZE or end > len(buffer):
        raise CorruptDataError(
            f"batch at offset {header.base_offset} claims {header.size} bytes; {len(buffer) - position} are there"
        )
    payload = decompress(header.codec, memoryview(buffer)[position + HEADER_SIZE : end], limit)
    if not 0 <= header.record_count <= len(payload) // RECORD_BYTES_MIN:
        raise CorruptDataError(
            f"batch at offset {header.base_offset} claims {header.record_count} records in {len(payload)} bytes"
        )
    return payload


def iter_records(
    buffer: Buffer, position: int, header: BatchHeader, *, limit: int = DECOMPRESS_LIMIT_BYTES
) -> Iterator[Record]:
    """Every record of the batch at `position`, offsets rising; CorruptDataError names the record that stops making sense."""
    payload = records_payload(buffer, position, header, limit=limit)
    append_time = header.max_timestamp if header.timestamp_type == TimestampType.LOG_APPEND_TIME else None
    cursor, index, least_offset, last_offset = 0, 0, header.base_offset, header.last_offset
    count = header.record_count
    try:
        while index < count:
            record, cursor = _read_record(payload, cursor, header, append_time)
            if not least_offset <= record.offset <= last_offset:
                raise CorruptDataError(f"has offset {record.offset}, outside [{least_offset}, {last_offset}]")
            yield record
            least_offset = record.offset + 1
            index += 1
    except IndexError as error:
        raise CorruptDataError(_where(header, index, "runs past the end of its batch")) from error
    except CorruptDataError as error:
        raise CorruptDataError(_where(header, index, str(error))) from error
    if cursor != len(payload):
        raise CorruptDataError(
            f"batch at offset {header.base_offset}: {len(payload) - cursor} bytes behind its last record"
        )


def first_at_or_after_timestamp(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    timestamp: int,
    *,
    start_offset: int = 0,
    limit: int = DECOMPRESS_LIMIT_BYTES,
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record from `start_offset` on that is as late as `timestamp`, or None.

    Parses lengths and deltas only, and nothing at all when the header already answers.
    """
    if header.max_timestamp < timestamp or header.last_offset < start_offset:
        return None
    payload = records_payload(buffer, position, header, limit=limit)
    append_time = header.max_timestamp if header.timestamp_type == TimestampType.LOG_APPEND_TIME else None
    cursor, index = 0, 0
    try:
        while index < header.record_count:
            # One byte for each number is the common case, and a call for each would be most of the time.
            byte = payload[cursor]
            if byte < 128:
                length, cursor = (byte >> 1) ^ -(byte & 1), cursor + 1
            else:
                length, cursor = read_varint(payload, cursor)
            end = cursor + length
            if length < 0 or end > len(payload):
                _record_end(payload, cursor, length)
            timestamp_delta, cursor = read_varlong(payload, cursor + 1)
            offset_delta, cursor = read_varint(payload, cursor)
            record_timestamp = timestamp_of(header, timestamp_delta) if append_time is None else append_time
            offset = header.base_offset + offset_delta
            if record_timestamp >= timestamp and start_offset <= offset <= header.last_offset:
                return record_timestamp, offset
            cursor = end
            index += 1
    except IndexError as error:
        raise CorruptDataError(_where(header, index, "runs past the end of its batch")) from error
    except CorruptDataError as error:
        raise CorruptDataError(_where(header, index, str(error))) from error
    return None


def _read_record(
    payload: memoryview, cursor: int, header: BatchHeader, append_time: int | None
) -> tuple[Record, int]:
    length, cursor = read_varint(payload, cursor)
    end = _record_end(payload, cursor, length)
    timestamp_delta, cursor = read_varlong(payload, cursor + 1)  # one byte of attributes, unused
    offset_delta, cursor = read_varint(payload, cursor)
    key, cursor = _read_bytes(payload, cursor, end)
    value, cursor = _read_bytes(payload, cursor, end)
    headers: Headers = ()
    if payload[cursor]:
        count, cursor = read_varint(payload, cursor)
        headers, cursor = _read_headers(payload, cursor, end, count)
    else:
        cursor += 1
    if cursor != end:
        raise CorruptDataError(
            f"states a length of {length} bytes but its fields end {cursor - end:+d} bytes from there"
        )
    timestamp = timestamp_of(header, timestamp_delta) if append_time is None else append_time
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers), end


def timestamp_of(header: BatchHeader, delta: int) -> int:
    """A sum beyond 64 bits wraps, as it does in Java and in Arrow's columns: it must fit into answers all the same."""
    timestamp = header.base_timestamp + delta
    if -INT64_MAX <= timestamp <= INT64_MAX:
        return timestamp
    return (timestamp + INT64_MAX + 1) % _INT64_SPACE - INT64_MAX - 1


def _record_end(payload: memoryview, cursor: int, length: int) -> int:
    if not 0 <= length <= len(payload) - cursor:
        raise CorruptDataError(
            f"states a length of {length} bytes with {len(payload) - cursor} left in the batch"
        )
    return cursor + length


def _read_bytes(payload: memoryview, cursor: int, end: int) -> tuple[bytes | None, int]:
    byte = payload[cursor]
    if byte < 0x80:  # nearly always, and a call would take as long as all the rest
        length, cursor = (byte >> 1) ^ -(byte & 1), cursor + 1
    else:
        length, cursor = read_varint(payload, cursor)
    if length < 0:
        if length != -1:
            raise CorruptDataError(f"has a field of {length} bytes")
        return None, cursor
    if length > end - cursor:
        raise CorruptDataError(f"has a field of {length} bytes with {end - cursor} left in the record")
    return bytes(payload[cursor : cursor + length]), cursor + length


def _read_headers(payload: memoryview, cursor: int, end: int, count: int) -> tuple[Headers, int]:
    if not 0 <= count <= (end - cursor) // 2:
        raise CorruptDataError(f"claims {count} headers with {end - cursor} bytes left in the record")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, cursor = _read_bytes(payload, cursor, end)
        if key is None:
            raise CorruptDataError("has a header without a key")
        value, cursor = _read_bytes(payload, cursor, end)
        headers.append((key.decode("utf-8", "replace"), value))
    return tuple(headers), cursor


def _where(header: BatchHeader, index: int, problem: str) -> str:
    return f"record {index} of the batch at offset {header.base_offset} {problem}"
