"""Records out of fetched bytes, as an application sees them.

`Chunk` is what one answer held of one partition: whole batches, read one after the other as records are asked for. Control batches are passed over, and so are
batches of aborted transactions for whoever reads committed data only. A batch that fails its checksum, or whose records cannot be made out, is an error
that names it; the position stays before it. Pure; plain Python, because keys and values end as Python objects anyway. Columns: `arrow`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidelog.client.errors import RecordError
from tidelog.client.metadata import TopicPartition
from tidelog.errors import CorruptDataError
from tidelog.records.batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, crc_matches, iter_headers
from tidelog.records.compression import Codec, decompress
from tidelog.records.control import read_end_transaction_marker
from tidelog.records.record import DECOMPRESS_LIMIT_BYTES, RECORD_BYTES_MIN, Headers
from tidelog.records.varint import read_varint, read_varlong


class ConsumerRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    """0: when it was made, as its producer says; 1: when the broker got it."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    leader_epoch: int


_new: Final = tuple.__new__
_SIGNED: Final = tuple((number >> 1) ^ -(number & 1) for number in range(1 << 14))
"""Numbers of one or two bytes, as they are meant: small ones of either sign are small ones without."""


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int


class Chunk:
    __slots__ = (
        "_aborted",
        "_aborting",
        "_batches",
        "_check_crcs",
        "data",
        "last_epoch",
        "latency_seconds",
        "next_offset",
        "size",
        "start_offset",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        data: memoryview,
        start_offset: int,
        *,
        aborted: Sequence[Aborted] | None = None,
        check_crcs: bool = True,
        latency_seconds: float = 0.0,
    ) -> None:
        """`aborted`: transactions that were aborted, for readers of committed data; None shows everything. RecordError if these are no batches.

        `latency_seconds`: from the question to the answer, the broker's wait for data included.
        """
        self.tp = tp
        self.start_offset = start_offset
        self.latency_seconds = latency_seconds
        self._check_crcs = check_crcs
        self._aborted = (
            None if aborted is None else sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        )
        self._aborting: set[int] = set()  # producers of aborted transactions at this point
        try:
            batches = list(iter_headers(data))
        except CorruptDataError as error:
            raise RecordError(
                f"{tp}: what the broker sent from offset {start_offset} on are no record batches: {error}"
            ) from error
        end = batches[-1][0] + batches[-1][1].size if batches else 0
        self.data = data[:end]
        self.size = end
        self.next_offset = batches[-1][1].next_offset if batches else start_offset
        self.last_epoch = batches[-1][1].partition_leader_epoch if batches else -1
        self._batches = batches[::-1]

    def outline(self) -> tuple[int, int, bool]:
        """(batches, records, whether any of them is compressed) of what was not read yet, by the headers."""
        headers = [header for _, header in self._batches]
        records = sum(header.record_count for header in headers)
        return len(headers), records, any(header.codec != Codec.NONE for header in headers)

    def next_batch(self) -> list[ConsumerRecord] | None:
        """The records of the next batch that has any to show; None when there is none left."""
        for position, header in self.visible_batches():
            try:
                if self._check_crcs and not crc_matches(self.data, position, header):
                    raise CorruptDataError("it fails its CRC; the broker's copy or the network is damaged")
                records = decode_batch(self.data, position, header, self.tp, self.start_offset)
            except CorruptDataError as error:
                raise RecordError(
                    f"{self.tp}: the batch at offset {header.base_offset} cannot be read: {error}; to go on, seek to offset {header.next_offset}"
                ) from error
            if records:
                return records
        return None

    def visible_batches(self) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of each batch that the reader may see, from where the last call has stopped."""
        while self._batches:
            position, header = self._batches.pop()
            if self._aborted is not None and header.producer_id >= 0 and self._is_aborted(position, header):
                continue
            if not header.is_control and header.next_offset > self.start_offset:
                yield position, header

    def visible_ranges(self) -> Iterator[memoryview]:
        """The same as bytes, neighbours together."""
        if self._aborted is None:
            self._batches.clear()
            yield self.data
            return
        start = end = 0
        for position, header in self.visible_batches():
            if position != end:
                if end > start:
                    yield self.data[start:end]
                start = position
            end = position + header.size
        if end > start:
            yield self.data[start:end]

    def _is_aborted(self, position: int, header: BatchHeader) -> bool:
        """Batches come in the order of their offsets; a transaction is aborted from its first offset to its marker."""
        assert self._aborted is not None
        while self._aborted and self._aborted[-1].first_offset <= header.last_offset:
            self._aborting.add(self._aborted.pop().producer_id)
        if header.is_control:
            marker = read_end_transaction_marker(self.data, position, header) if header.record_count else None
            if marker is not None and not marker.is_commit:
                self._aborting.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._aborting


def decode_batch(
    data: memoryview, position: int, header: BatchHeader, tp: TopicPartition, start_offset: int
) -> list[ConsumerRecord]:
    """Every record of a batch from `start_offset` on. CorruptDataError where its bytes make no sense. Budget: 1.8 µs for each (`bench/budgets.py`)."""
    stored = data[position + HEADER_SIZE : position + header.size]
    codec = header.codec
    payload = (
        bytes(stored) if codec == Codec.NONE else bytes(decompress(codec, stored, DECOMPRESS_LIMIT_BYTES))
    )
    count, size = header.record_count, len(payload)
    if not 0 <= count <= size // RECORD_BYTES_MIN:
        raise CorruptDataError(f"it claims {count} records in {size} bytes")
    topic, partition = tp
    base_offset, epoch, kind = header.base_offset, header.partition_leader_epoch, header.timestamp_type
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if kind else NO_TIMESTAMP
    found: list[ConsumerRecord] = []
    append, at, signed = found.append, 0, _SIGNED
    try:
        for _ in range(count):
            # One or two bytes for each number is the common case, and a call for each would be most of the time.
            byte = payload[at]
            if byte < 128:
                end = at + 1 + signed[byte]
                at += 2  # and the attributes, which nobody uses
            elif (more := payload[at + 1]) < 128:
                end = at + 2 + signed[byte & 127 | more << 7]
                at += 3
            else:
                length, at = read_varint(payload, at)
                end = at + length
                at += 1
            if end > size or end < at:
                raise CorruptDataError(f"a record ends at byte {end} of {size}")
            byte = payload[at]
            if byte < 128:
                timestamp = base_timestamp + signed[byte]
                at += 1
            elif (more := payload[at + 1]) < 128:
                timestamp = base_timestamp + signed[byte & 127 | more << 7]
                at += 2
            else:
                delta, at = read_varlong(payload, at)
                timestamp = base_timestamp + delta
            byte = payload[at]
            if byte < 128:
                offset = base_offset + signed[byte]
                at += 1
            elif (more := payload[at + 1]) < 128:
                offset = base_offset + signed[byte & 127 | more << 7]
                at += 2
            else:
                delta, at = read_varint(payload, at)
                offset = base_offset + delta
            byte = payload[at]
            if byte < 128:
                length = signed[byte]
                at += 1
            else:
                length, at = read_varint(payload, at)
            if length >= 0:
                key: bytes | None = payload[at : at + length]
                at += length
            else:
                key = None
            byte = payload[at]
            if byte < 128:
                length = signed[byte]
                at += 1
            elif (more := payload[at + 1]) < 128:
                length = signed[byte & 127 | more << 7]
                at += 2
            else:
                length, at = read_varint(payload, at)
            if length >= 0:
                value: bytes | None = payload[at : at + length]
                at += length
            else:
                value = None
            headers: Headers = ()
            if payload[at]:
                headers, at = _headers(payload, at, end)
            else:
                at += 1
            if at != end:
                raise CorruptDataError(
                    f"the fields of the record at offset {offset} end {at - end:+d} bytes from its end"
                )
            if offset >= start_offset:
                if kind:
                    timestamp = append_time
                append(
                    _new(
                        ConsumerRecord,
                        (topic, partition, offset, timestamp, kind, key, value, headers, epoch),
                    )
                )
    except IndexError:
        raise CorruptDataError(f"it ends in the middle of a record, after {len(found)} of {count}") from None
    return found


def _headers(payload: bytes, at: int, end: int) -> tuple[Headers, int]:
    count, at = read_varint(payload, at)
    if not 0 <= count <= (end - at) // 2:
        raise CorruptDataError(f"a record claims {count} headers in {end - at} bytes")
    found: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, at = read_varint(payload, at)
        if not 0 <= length <= end - at:
            raise CorruptDataError(f"a header's name of {length} bytes does not fit its record")
        name, at = payload[at : at + length].decode("utf-8", "replace"), at + length
        length, at = read_varint(payload, at)
        if length > end - at:
            raise CorruptDataError(f"a header of {length} bytes does not fit its record")
        if length >= 0:
            found.append((name, payload[at : at + length]))
            at += length
        else:
            found.append((name, None))
    return tuple(found), at
