"""Walks over the batches of a segment file without loading it: header by header, or batch by batch.

Owns the chunked reading that searches, recovery and replay share. It judges only what it must to find the next batch (length and
magic); CRCs and offsets are the caller's business. It never writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tidelog.errors import CorruptDataError
from tidelog.records.batch import (
    CURRENT_MAGIC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MIN_BATCH_LENGTH,
    BatchHeader,
    crc_matches,
    read_header,
)
from tidelog.storage.disk import Buffer, File

SEARCH_CHUNK_BYTES: Final = 8 << 10  # an index entry every 4 KiB: one read usually reaches the batch
SCAN_CHUNK_BYTES: Final = 1 << 20


class Batch(NamedTuple):
    """One batch in full: `buffer[offset : offset + header.size]` are its bytes."""

    position: int
    header: BatchHeader
    buffer: Buffer
    offset: int

    def crc_matches(self) -> bool:
        return crc_matches(self.buffer, self.offset, self.header)

    def bytes(self) -> memoryview:
        return memoryview(self.buffer)[self.offset : self.offset + self.header.size]


def scan_headers(
    file: File, position: int, end: int, *, chunk_bytes: int = SEARCH_CHUNK_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch from `position` to `end`; CorruptDataError where they stop making sense."""
    chunk, chunk_start, chunk_end = b"", position, position
    while position < end:
        if position + HEADER_SIZE > chunk_end:
            chunk = file.read_at(min(chunk_bytes, end - position), position)
            chunk_start, chunk_end = position, position + len(chunk)
        header = _header_at(file, position, end, chunk, position - chunk_start)
        yield position, header
        position += header[1] + LOG_OVERHEAD


def scan_batches(file: File, position: int, end: int) -> Iterator[Batch]:
    """Every batch with its bytes from `position` to `end`; CorruptDataError where they stop making sense."""
    chunk, chunk_start, chunk_end = b"", position, position
    while position < end:
        if position + HEADER_SIZE > chunk_end:
            chunk = file.read_at(min(SCAN_CHUNK_BYTES, end - position), position)
            chunk_start, chunk_end = position, position + len(chunk)
        header = _header_at(file, position, end, chunk, position - chunk_start)
        size = header[1] + LOG_OVERHEAD
        if position + size > chunk_end:
            chunk = file.read_at(min(max(SCAN_CHUNK_BYTES, size), end - position), position)
            chunk_start, chunk_end = position, position + len(chunk)
            if len(chunk) < size:
                raise CorruptDataError(f"{file.path}: the batch at position {position} ends in the middle")
        yield Batch(position, header, chunk, position - chunk_start)
        position += size


def _header_at(file: File, position: int, end: int, chunk: bytes, offset: int) -> BatchHeader:
    if len(chunk) - offset < HEADER_SIZE:
        raise CorruptDataError(
            f"{file.path}: {len(chunk) - offset} bytes at position {position} are no batch header"
        )
    header = read_header(chunk, offset)
    length = header[1]
    if length < MIN_BATCH_LENGTH or header[3] != CURRENT_MAGIC:
        raise CorruptDataError(
            f"{file.path}: no record batch at position {position}: batch length {length}, magic {header[3]}"
        )
    if position + length + LOG_OVERHEAD > end:
        raise CorruptDataError(
            f"{file.path}: the batch at position {position} claims {length + LOG_OVERHEAD} bytes,"
            f" {end - position} are there"
        )
    return header


def read_batch(file: File, position: int, header: BatchHeader) -> Batch:
    return Batch(position, header, file.read_at(header.size, position), 0)


def find_valid_batch(
    file: File, position: int, end: int, *, first_offset: int, last_offset: int
) -> int | None:
    """Behind damage: the first position in [position, end) where a whole batch with a matching CRC and an offset within
    [first_offset, last_offset] stands, or None. Slow and thorough; only recovery of damaged data pays for it.
    """
    # The high bytes of the base offset, a length below 2**31, any epoch, magic 2.
    high = first_offset.to_bytes(8, "big")[:3] if first_offset >> 40 == last_offset >> 40 else b""
    pattern = re.compile(
        b"(?=" + re.escape(high) + b"." * (8 - len(high)) + b"[\x00-\x7f]" + b"." * 7 + b"\x02)", re.DOTALL
    )
    while position + HEADER_SIZE <= end:
        chunk = file.read_at(min(SCAN_CHUNK_BYTES, end - position), position)
        for match in pattern.finditer(chunk):
            if _valid_batch_at(file, position + match.start(), end, first_offset, last_offset):
                return position + match.start()
        if len(chunk) <= HEADER_SIZE:
            return None
        position += len(chunk) - HEADER_SIZE + 1 if position + len(chunk) < end else len(chunk)
    return None


def _valid_batch_at(file: File, position: int, end: int, first_offset: int, last_offset: int) -> bool:
    raw = file.read_at(HEADER_SIZE, position)
    if len(raw) < HEADER_SIZE:
        return False
    header = read_header(raw)
    if (
        header.magic != CURRENT_MAGIC
        or not MIN_BATCH_LENGTH <= header.batch_length <= end - position - LOG_OVERHEAD
    ):
        return False
    if not first_offset <= header.base_offset <= header.last_offset <= last_offset:
        return False
    return read_batch(file, position, header).crc_matches()
