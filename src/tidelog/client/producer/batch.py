"""One batch of records on its way to one partition, from its first record until its fate is known.

Records are encoded when they are appended, behind room for the header, so a batch knows its size to the byte, holds no record twice, and sealing it
costs a header in place, a CRC and the compression. Budget: 2.3 µs for a record of 100 B, appended and sealed (`bench/budgets.py`). Who has sent it how often, under which producer id, epoch and sequence number, is written here and decided by
`sequences` and `sender`. Pure: no clock, no socket, no future; `done` is whatever the shell put there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidelog.client.metadata import TopicPartition
from tidelog.records.batch import (
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Buffer,
    write_crc,
)
from tidelog.records.compression import Codec, compress
from tidelog.records.record import Headers
from tidelog.records.varint import encode_varint, read_varint, read_varlong

_SMALL: Final = 16_384
_VARINTS: Final = tuple(encode_varint(number) for number in range(_SMALL))
"""Lengths, offset deltas and, within a batch, most timestamp deltas: a look-up instead of a loop."""
_NULL: Final = encode_varint(-1)
_NO_HEADERS: Final = b"\x00"
_NO_ATTRIBUTES: Final = b"\x00"
RECORD_OVERHEAD_MAX: Final = 36
"""Length, attributes, two deltas, the lengths of key and value and the number of headers, each as long as it can be."""


def size_bound(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """What a record takes at most, before it is known where in a batch it stands."""
    size = RECORD_OVERHEAD_MAX + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += (
            3 * len(name) + len(content or b"") + 10
        )  # a character is three bytes of UTF-8 at most, or two of them four
    return size


class ProducerBatch:
    __slots__ = (
        "_sealed",
        "attempts",
        "base_sequence",
        "base_timestamp",
        "compressed",
        "count",
        "created",
        "done",
        "encoded",
        "is_closed",
        "max_timestamp",
        "observed",
        "on_the_wire",
        "order",
        "payload",
        "producer_epoch",
        "producer_id",
        "ready_at",
        "reserved",
        "tp",
    )

    def __init__(
        self, tp: TopicPartition, created: float, *, order: tuple[int, ...] = (), done: Any = None
    ) -> None:
        self.tp = tp
        self.order = (
            order  # among the batches of its partition; a part of a batch has the batch's and its own number
        )
        self.created = created
        self.done = done
        self.payload: Buffer = bytearray(HEADER_SIZE)  # behind room for the header
        self.is_closed = False  # takes no more records
        self.count = 0
        self.base_timestamp = self.max_timestamp = -1
        self.reserved = 0  # of buffer.memory
        self.observed = False  # somebody has heard of its fate
        self.compressed: Buffer | None = None  # the records, once somebody has compressed them
        self.encoded: Buffer | None = None  # once sealed
        self._sealed: bytearray | memoryview | None = None  # what the header goes into
        self.attempts = 0
        self.on_the_wire = False
        self.ready_at = created  # not before: linger at first, a pause after a failure
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE

    def __repr__(self) -> str:
        return f"ProducerBatch({self.tp}, {self.count} records, sequence {self.base_sequence}, attempt {self.attempts})"

    @property
    def size(self) -> int:
        """Bytes on the wire, uncompressed."""
        return len(self.payload)

    @property
    def is_stamped(self) -> bool:
        """Whether it has a sequence number, which it keeps until it is certain that the broker does not have it."""
        return self.base_sequence != NO_SEQUENCE

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        """Returns the record's place in the batch."""
        number = self.count
        if number == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        delta = timestamp - self.base_timestamp
        body = b"".join(
            (
                _NO_ATTRIBUTES,
                _VARINTS[delta] if 0 <= delta < _SMALL else encode_varint(delta),
                _VARINTS[number] if number < _SMALL else encode_varint(number),
                _nullable(key),
                _nullable(value),
                encode_headers(headers) if headers else _NO_HEADERS,
            )
        )
        size = len(body)
        payload = self.payload
        assert type(payload) is bytearray
        payload += _VARINTS[size] if size < _SMALL else encode_varint(size)
        payload += body
        self.count = number + 1
        return number

    def seal(self, codec: int, level: int | None) -> Buffer:
        """The batch as it goes out; compressed once, stamped anew where the sequence number has changed."""
        if self.encoded is None:
            if self._sealed is None:
                self._sealed = self._body(codec, level)
            batch = self._sealed
            HEADER_STRUCT.pack_into(
                batch, 0,
                0, len(batch) - LOG_OVERHEAD, NO_LEADER_EPOCH, CURRENT_MAGIC, 0, codec, self.count - 1,
                self.base_timestamp, self.max_timestamp,
                self.producer_id, self.producer_epoch, self.base_sequence, self.count,
            )  # fmt: skip
            write_crc(batch)
            self.encoded = memoryview(batch).toreadonly()
        return self.encoded

    def _body(self, codec: int, level: int | None) -> bytearray | memoryview:
        if codec == Codec.NONE:
            assert not isinstance(self.payload, bytes)
            return self.payload
        if self.compressed is None:
            self.compressed = compress(codec, memoryview(self.payload)[HEADER_SIZE:], level)
        return bytearray(HEADER_SIZE) + self.compressed

    def let_go(self) -> None:
        """Its fate is known: the bytes are not needed any more, though somebody may hold the batch for its future."""
        self.payload, self.compressed, self.encoded, self._sealed = b"", None, None, None

    def stamp(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.encoded = None

    def unstamp(self) -> None:
        self.stamp(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)

    def records(self) -> list[tuple[int, bytes | None, bytes | None, Headers]]:
        """What was appended, read back: for the rare batch that must be taken apart."""
        found, at, payload = [], HEADER_SIZE, memoryview(self.payload)
        for _ in range(self.count):
            _, at = read_varint(payload, at)
            delta, at = read_varlong(payload, at + 1)
            _, at = read_varint(payload, at)
            key, at = _read(payload, at)
            value, at = _read(payload, at)
            count, at = read_varint(payload, at)
            headers = []
            for _ in range(count):
                name, at = _read(payload, at)
                content, at = _read(payload, at)
                headers.append(((name or b"").decode(), content))
            found.append((self.base_timestamp + delta, key, value, tuple(headers)))
        return found


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, content in headers:
        raw = name.encode()
        parts += (encode_varint(len(raw)), raw, _nullable(content))
    return b"".join(parts)


def _nullable(data: bytes | None) -> bytes:
    if data is None:
        return _NULL
    size = len(data)
    return (_VARINTS[size] if size < _SMALL else encode_varint(size)) + data


def _read(payload: memoryview, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(payload, at)
    if size < 0:
        return None, at
    return bytes(payload[at : at + size]), at + size
