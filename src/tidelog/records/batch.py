"""A record batch (magic 2) as a view over bytes: its 61-byte header, its CRC, and the few fields a broker rewrites.

Owns the layout of the batch header (docs/formats/record-batch.md). Never looks at the records behind it and never copies a
batch on the produce path: the appender writes `patched_prefix(...)` followed by `buffer[PATCHED_PREFIX_SIZE:]`.
The CRC covers everything from the attributes on, so base offset and leader epoch, which the broker assigns, stay outside it.
Keeps I2 (`crc_matches` is the check made whenever bytes enter a replica).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from tidelog.errors import CorruptDataError

Buffer: TypeAlias = bytes | bytearray | memoryview

LOG_OVERHEAD: Final = 12  # base offset and batch length: what stands before the bytes that the length counts
HEADER_SIZE: Final = 61
PATCHED_PREFIX_SIZE: Final = 16
MAGIC_OFFSET: Final = 16
CRC_OFFSET: Final = 17
ATTRIBUTES_OFFSET: Final = 21  # the CRC covers the batch from here on
MAX_TIMESTAMP_OFFSET: Final = 35
CURRENT_MAGIC: Final = 2
MIN_BATCH_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NO_LEADER_EPOCH: Final = -1
_SEQUENCE_SPACE: Final = 1 << 31

HEADER_STRUCT: Final = Struct(">qiibIhiqqqhii")
_PREFIX_STRUCT: Final = Struct(">qii")
_CRC_STRUCT: Final = Struct(">I")
_ATTRIBUTES_STRUCT: Final = Struct(">h")
_TIMESTAMP_STRUCT: Final = Struct(">q")


class TimestampType(IntEnum):
    """Who set the timestamps of a batch: the producer per record, or the broker once for the whole batch."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, the 12 that its length field does not count included."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The codec's number as it stands in the attributes; `compression.Codec(header.codec)` names it, if it has a name."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        return (self.attributes & TIMESTAMP_TYPE_FLAG) >> 3

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def has_delete_horizon(self) -> bool:
        """The base timestamp is then the time from which tombstones may go (KIP-534)."""
        return self.attributes & DELETE_HORIZON_FLAG != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Sequences wrap from 2**31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCE_SPACE


_unpack_header = HEADER_STRUCT.unpack_from
_new_tuple = tuple.__new__


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, unjudged. `struct.error` when fewer than 61 bytes are there: callers check the size first.

    Built with `tuple.__new__` because this runs once per produced batch and the class's own constructor doubles the cost.
    """
    return _new_tuple(BatchHeader, _unpack_header(buffer, position))


def crc_matches(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """True when the bytes after the CRC field give the CRC that the header states. The batch must be there in full."""
    end = position + header[1] + LOG_OVERHEAD
    return bool(crc32c(memoryview(buffer)[position + ATTRIBUTES_OFFSET : end]) == header[4])


def patched_prefix(base_offset: int, batch_length: int, leader_epoch: int) -> bytes:
    """The first 16 bytes of a batch with the offset and epoch the leader gives it; the CRC does not cover them."""
    return _PREFIX_STRUCT.pack(base_offset, batch_length, leader_epoch)


def restamped(
    buffer: Buffer,
    header: BatchHeader,
    *,
    max_timestamp: int,
    timestamp_type: TimestampType = TimestampType.LOG_APPEND_TIME,
) -> bytearray:
    """A copy of the batch at the start of `buffer` with this timestamp type and max timestamp, and the CRC that goes with them.

    The base timestamp and the deltas of the records stay: under LogAppendTime readers take the max timestamp for every record.
    """
    batch = bytearray(memoryview(buffer)[: header.size])
    attributes = header.attributes & ~TIMESTAMP_TYPE_FLAG | timestamp_type << 3
    _ATTRIBUTES_STRUCT.pack_into(batch, ATTRIBUTES_OFFSET, attributes)
    _TIMESTAMP_STRUCT.pack_into(batch, MAX_TIMESTAMP_OFFSET, max_timestamp)
    write_crc(batch)
    return batch


def write_crc(batch: bytearray | memoryview) -> None:
    """Make the CRC field of a batch that fills `batch` match its bytes."""
    _CRC_STRUCT.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:]))


def iter_headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Every whole batch with its position; a tail that is cut off is left alone, as fetch answers may end in one.

    A length that no batch can have, or a magic other than 2, is CorruptDataError: behind it nothing can be found.
    """
    end = len(buffer)
    while position + HEADER_SIZE <= end:
        header = read_header(buffer, position)
        if header[1] < MIN_BATCH_LENGTH or header[3] != CURRENT_MAGIC:
            raise CorruptDataError(
                f"no record batch at position {position}: batch length {header.batch_length}, magic {header.magic}"
                f" (base offset field {header.base_offset})"
            )
        next_position = position + header[1] + LOG_OVERHEAD
        if next_position > end:
            return
        yield position, header
        position = next_position
