"""Loads a shard: replays its log from the start to the end, in steps so small that others get their turn in between.

Owns the reading side of a coordinator partition: batches, compressed or not, their CRC, transactions and their markers. Skips nothing that
it cannot read (I2): CorruptDataError ends the load, and the shard does not serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic

from tidelog.coordinator.runtime_ports import Decode, Journal, S
from tidelog.errors import CorruptDataError
from tidelog.records.batch import NO_PRODUCER_ID, BatchHeader, Buffer, crc_matches, iter_headers
from tidelog.records.control import read_end_transaction_marker
from tidelog.records.record import iter_records

CHUNK_BYTES: Final = 1 << 20
_STEP_RECORDS: Final = 500  # some ten milliseconds


class Load(Generic[S]):
    __slots__ = ("_chunk_bytes", "_decode", "_journal", "_steps", "_until_pause", "shard")

    def __init__(self, shard: S, journal: Journal, decode: Decode, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.shard = shard
        self._journal = journal
        self._decode = decode
        self._chunk_bytes = chunk_bytes
        self._until_pause = _STEP_RECORDS
        self._steps = self._replay_all()

    def step(self) -> bool:
        """Go on for a few milliseconds. False: everything is replayed."""
        self._until_pause = _STEP_RECORDS
        return next(self._steps, False)

    def _replay_all(self) -> Iterator[bool]:
        """Yields True wherever others may have their turn."""
        journal = self._journal
        position = journal.start_offset
        while position < journal.end_offset:
            chunk = journal.read(position, self._chunk_bytes)
            if not chunk:
                return  # what stood between here and the end was compacted away
            next_position = position
            for at, header in iter_headers(chunk):
                if not crc_matches(chunk, at, header):
                    raise CorruptDataError(f"the batch at offset {header.base_offset} fails its CRC")
                yield from self._replay_batch(chunk, at, header, position)
                next_position = header.next_offset
            if next_position <= position:
                raise CorruptDataError(
                    f"{len(chunk)} bytes at offset {position} hold no whole batch from there on"
                )
            position = next_position
            yield True

    def _replay_batch(self, chunk: Buffer, at: int, header: BatchHeader, start: int) -> Iterator[bool]:
        if header.is_control:
            self._replay_control(chunk, at, header)
            yield from self._pause_if_due()
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for record in iter_records(chunk, at, header):
            if record.offset < start:
                continue  # the log begins in the middle of this batch
            if record.key is None:
                raise CorruptDataError(f"the record at offset {record.offset} has no key")
            decoded = self._decode(record.key, record.value)
            if decoded is not None:
                self.shard.replay(decoded, producer_id)
            yield from self._pause_if_due()

    def _pause_if_due(self) -> Iterator[bool]:
        self._until_pause -= 1
        if self._until_pause <= 0:
            yield True

    def _replay_control(self, chunk: Buffer, at: int, header: BatchHeader) -> None:
        if not header.record_count:
            return  # compaction took the marker and left the batch
        marker = read_end_transaction_marker(chunk, at, header)
        if marker is not None:
            self.shard.replay_end_transaction(header.producer_id, marker.is_commit)
