"""Making record batches: for coordinators, markers, the client's small sends, and tests.

Owns the writing side of docs/formats/record-batch.md. Never produces a batch that `validation` would refuse for its form:
offsets rise, the header's timestamps and counts are those of the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.records.batch import (
    CONTROL_FLAG,
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    Buffer,
    TimestampType,
    write_crc,
)
from tidelog.records.compression import Codec, compress
from tidelog.records.record import Headers, Record
from tidelog.records.varint import encode_varint

_NULL: Final = encode_varint(-1)
_NO_HEADERS: Final = encode_varint(0)


class BatchBuilder:
    """Collects records and builds one batch of them. Offsets run from `base_offset` on unless `append` is told otherwise."""

    __slots__ = (
        "_attributes",
        "_base_offset",
        "_base_sequence",
        "_base_timestamp",
        "_codec",
        "_count",
        "_leader_epoch",
        "_level",
        "_max_timestamp",
        "_next_offset",
        "_payload",
        "_producer_epoch",
        "_producer_id",
    )

    def __init__(
        self,
        *,
        codec: int = Codec.NONE,
        level: int | None = None,
        base_offset: int = 0,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
        is_control: bool = False,
        partition_leader_epoch: int = NO_LEADER_EPOCH,
    ) -> None:
        self._codec = codec
        self._level = level
        self._base_offset = base_offset
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._base_sequence = base_sequence
        self._leader_epoch = partition_leader_epoch
        self._attributes = (
            codec
            | (TIMESTAMP_TYPE_FLAG if timestamp_type == TimestampType.LOG_APPEND_TIME else 0)
            | (TRANSACTIONAL_FLAG if is_transactional else 0)
            | (CONTROL_FLAG if is_control else 0)
        )
        self._payload = bytearray()
        self._count = 0
        self._next_offset = base_offset
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP

    @property
    def record_count(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """What the batch would take uncompressed."""
        return HEADER_SIZE + len(self._payload)

    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Headers = (),
        *,
        offset: int | None = None,
    ) -> int:
        """Add a record and return its offset. `offset` leaves a gap, as compaction does; it must not go back."""
        if offset is None:
            offset = self._next_offset
        elif offset < self._next_offset:
            raise ValueError(f"offset {offset} in a batch whose next offset is {self._next_offset}")
        if self._count == 0:
            self._base_timestamp = timestamp
        body = b"".join(
            (
                b"\x00",  # attributes: none are defined
                encode_varint(timestamp - self._base_timestamp),
                encode_varint(offset - self._base_offset),
                _nullable(key),
                _nullable(value),
                _encode_headers(headers) if headers else _NO_HEADERS,
            )
        )
        self._payload += encode_varint(len(body))
        self._payload += body
        self._count += 1
        self._next_offset = offset + 1
        self._max_timestamp = max(self._max_timestamp, timestamp)
        return offset

    def build(self) -> bytes:
        """The batch. A builder without records builds nothing a reader would want: that is a mistake of the caller."""
        if self._count == 0:
            raise ValueError("a batch needs at least one record")
        payload = compress(self._codec, self._payload, self._level)
        batch = bytearray(HEADER_SIZE)
        batch += payload
        HEADER_STRUCT.pack_into(
            batch,
            0,
            self._base_offset,
            len(batch) - LOG_OVERHEAD,
            self._leader_epoch,
            CURRENT_MAGIC,
            0,
            self._attributes,
            self._next_offset - 1 - self._base_offset,
            self._base_timestamp,
            self._max_timestamp,
            self._producer_id,
            self._producer_epoch,
            self._base_sequence,
            self._count,
        )
        write_crc(batch)
        return bytes(batch)


def build_batch(
    records: Iterable[Record],
    *,
    codec: int = Codec.NONE,
    level: int | None = None,
    base_offset: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """One batch of `records` at their own offsets. The batch starts at the first record's offset unless `base_offset` is given."""
    listed = list(records)
    if base_offset is None:
        base_offset = listed[0].offset if listed else 0
    builder = BatchBuilder(
        codec=codec,
        level=level,
        base_offset=base_offset,
        timestamp_type=timestamp_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
        is_control=is_control,
        partition_leader_epoch=partition_leader_epoch,
    )
    for record in listed:
        builder.append(record.timestamp, record.key, record.value, record.headers, offset=record.offset)
    return builder.build()


def _nullable(data: Buffer | None) -> bytes:
    return _NULL if data is None else encode_varint(len(data)) + data


def _encode_headers(headers: Headers) -> bytes:
    parts = [encode_varint(len(headers))]
    for key, value in headers:
        parts += (_nullable(key.encode("utf-8")), _nullable(value))
    return b"".join(parts)
