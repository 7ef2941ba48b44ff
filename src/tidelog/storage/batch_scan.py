"""Walks over the batches of a segment file without loading it: header by header, or batch by batch.

Owns the chunked reading that searches, recovery, replay and scrub share. It judges only what it must to find the next batch (length and
magic); CRCs and offsets are the caller's business, except where batches are looked for behind damage. It never writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from tidelog.errors import CorruptDataError
from tidelog.records.batch import (
    ATTRIBUTES_OFFSET,
    CURRENT_MAGIC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MIN_BATCH_LENGTH,
    BatchHeader,
    crc_matches,
    read_header,
)
from tidelog.storage.disk import Buffer

SEARCH_CHUNK_BYTES: Final = 8 << 10  # an index entry every 4 KiB: one read usually reaches the batch
SCAN_CHUNK_BYTES: Final = 1 << 20


class Readable(Protocol):
    """What is asked of a file here; every `File` is one."""

    @property
    def path(self) -> str: ...

    def read_at(self, count: int, position: int, /) -> bytes: ...


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
    file: Readable, position: int, end: int, *, chunk_bytes: int = SEARCH_CHUNK_BYTES
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


def scan_batches(file: Readable, position: int, end: int) -> Iterator[Batch]:
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


def _header_at(file: Readable, position: int, end: int, chunk: bytes, offset: int) -> BatchHeader:
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


def read_batch(file: Readable, position: int, header: BatchHeader) -> Batch:
    data = file.read_at(header.size, position)
    if len(data) < header.size:
        raise CorruptDataError(f"{file.path}: the batch at position {position} ends in the middle")
    return Batch(position, header, data, 0)


def find_valid_batch(
    file: Readable,
    position: int,
    end: int,
    *,
    first_offset: int,
    last_offset: int,
    search_end: int | None = None,
) -> int | None:
    """Behind damage: the first position in [position, end) where a whole batch with a matching CRC and offsets within
    [first_offset, last_offset] stands, or None. With `search_end` it must begin before that. Slow and thorough: only those
    who met damage pay for it. Memory stays bounded whatever the bytes claim.
    """
    search_end = end if search_end is None else min(search_end, end)
    # A batch is found by its magic byte; behind it most bytes that happen to have that value fail the next comparisons.
    shared = 3 if first_offset >> 40 == last_offset >> 40 else 0
    high = first_offset.to_bytes(8, "big")[:shared]
    while position < search_end and position + HEADER_SIZE <= end:
        chunk = file.read_at(
            min(SCAN_CHUNK_BYTES, search_end - position + HEADER_SIZE - 1, end - position), position
        )
        at = chunk.find(CURRENT_MAGIC, MAGIC_OFFSET)
        while at >= 0 and at + HEADER_SIZE - MAGIC_OFFSET <= len(chunk):
            start = at - MAGIC_OFFSET
            if chunk[start : start + shared] == high and sound_batch_at(
                file, position + start, end, first_offset=first_offset, last_offset=last_offset
            ):
                return position + start
            at = chunk.find(CURRENT_MAGIC, at + 1)
        if len(chunk) < HEADER_SIZE:
            return None
        position += len(chunk) - HEADER_SIZE + 1
    return None


def sound_batch_at(
    file: Readable, position: int, end: int, *, first_offset: int, last_offset: int
) -> BatchHeader | None:
    """The header of the batch at `position`, if a whole one with a matching CRC and offsets in the range stands there."""
    raw = file.read_at(HEADER_SIZE, position) if position + HEADER_SIZE <= end else b""
    if len(raw) < HEADER_SIZE:
        return None
    header = read_header(raw)
    if (
        header.magic != CURRENT_MAGIC
        or not MIN_BATCH_LENGTH <= header.batch_length <= end - position - LOG_OVERHEAD
        or not first_offset <= header.base_offset <= header.last_offset <= last_offset
    ):
        return None
    crc, at, batch_end = 0, position + ATTRIBUTES_OFFSET, position + header.size
    while at < batch_end:
        piece = file.read_at(min(SCAN_CHUNK_BYTES, batch_end - at), at)
        if not piece:
            return None
        crc = crc32c(piece, crc)
        at += len(piece)
    return header if crc == header.crc else None
