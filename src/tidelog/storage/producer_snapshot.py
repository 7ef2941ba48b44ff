"""The producer state on disk (`<offset>.snapshot`), in Kafka's format, so that a restart need not read the whole log.

A snapshot holds the state just before the offset in its name. Big endian: int16 version (1), uint32 CRC-32C of everything behind it,
int32 count, then entries of 46 bytes. Losing one is harmless (I4): an older one is loaded and the log replayed from there, or
from its beginning.

Kafka writes one entry per producer, its last batch. That would forget four of the five batches a producer may have in flight,
and a retry of one of them after a restart would be refused (I39). So the older batches come first, as entries of the same
producer: Kafka lets the last one win, our reader collects them. Format: docs/formats/producer-snapshot.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from crc32c import crc32c

from tidelog.errors import CorruptDataError
from tidelog.storage.disk import Disk, DiskError, File, read_file, write_file_atomically
from tidelog.storage.producer_state import NO_OFFSET, BatchMetadata, ProducerEntry, is_expired

VERSION: Final = 1
_HEAD: Final = Struct(">hIi")
# producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, transaction's first offset
_ENTRY: Final = Struct(">qhiqiqiq")
_CRC_END: Final = 6


def encode_snapshot(producers: Iterable[ProducerEntry]) -> bytes:
    rows = [row for entry in producers for row in _rows(entry)]
    body = b"".join(rows)
    count = len(rows).to_bytes(4, "big")
    return VERSION.to_bytes(2, "big") + crc32c(body, crc32c(count)).to_bytes(4, "big") + count + body


def decode_snapshot(data: bytes, path: str) -> list[ProducerEntry]:
    """CorruptDataError names `path` and what is wrong; the caller then falls back to an older snapshot or to the log."""
    if len(data) < _HEAD.size:
        raise CorruptDataError(
            f"{path} is only {len(data)} bytes long, a producer snapshot has {_HEAD.size} or more"
        )
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptDataError(f"{path} has version {version}, known is {VERSION}")
    actual = crc32c(memoryview(data)[_CRC_END:])
    if crc != actual:
        raise CorruptDataError(f"{path} has checksum {actual:#010x}, recorded is {crc:#010x}")
    if count < 0 or count * _ENTRY.size > len(data) - _HEAD.size:
        raise CorruptDataError(f"{path} claims {count} entries, its {len(data)} bytes cannot hold them")
    return _collect(data[_HEAD.size : _HEAD.size + count * _ENTRY.size])


def write_snapshot(disk: Disk, path: str, producers: Iterable[ProducerEntry]) -> File:
    """Write the file without waiting for the disk. The caller syncs file and directory when it next flushes, and closes it.

    A crash before that leaves the file missing or torn, which the checksum shows. One that is there already is never torn: it may be all
    that is known of producers whose batches are gone. It stays if it says the same, and is replaced as a whole if it does not.
    """
    content = encode_snapshot(producers)
    known = read_file(disk, path) if disk.exists(path) else b""
    if known == content:
        return disk.open(path)
    if known:
        write_file_atomically(disk, path, content)
        return disk.open(path)
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.write_at((content,), 0)
    except DiskError as error:
        file.close()
        if error.out_of_space:
            disk.remove(path)
        raise
    return file


def read_snapshot(
    disk: Disk, path: str, *, now_ms: int, producer_id_expiration_ms: int
) -> list[ProducerEntry]:
    """The producers that have not expired meanwhile. CorruptDataError or FileNotFoundError: try an older snapshot."""
    entries = decode_snapshot(read_file(disk, path), path)
    return [entry for entry in entries if not is_expired(entry, now_ms, producer_id_expiration_ms)]


def _rows(entry: ProducerEntry) -> list[bytes]:
    older = [_row(entry, batch, batch.timestamp, NO_OFFSET) for batch in list(entry.batches)[:-1]]
    newest = entry.batches[-1] if entry.batches else BatchMetadata(-1, -1, 0, entry.last_timestamp)
    return [*older, _row(entry, newest, entry.last_timestamp, entry.transaction_first_offset)]


def _row(entry: ProducerEntry, batch: BatchMetadata, timestamp: int, transaction_first_offset: int) -> bytes:
    return _ENTRY.pack(
        entry.producer_id,
        entry.producer_epoch,
        batch.last_sequence,
        batch.last_offset,
        batch.offset_delta,
        timestamp,
        entry.coordinator_epoch,
        transaction_first_offset,
    )


def _collect(rows: bytes) -> list[ProducerEntry]:
    producers: dict[int, ProducerEntry] = {}
    for row in _ENTRY.iter_unpack(rows):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset = (
            row
        )
        entry = producers.get(producer_id)
        if entry is None:
            entry = producers[producer_id] = ProducerEntry(producer_id, epoch)
        entry.enter_epoch(epoch)
        if last_offset >= 0:
            entry.remember(BatchMetadata(last_sequence, last_offset, delta, timestamp))
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.transaction_first_offset = first_offset
    return list(producers.values())
