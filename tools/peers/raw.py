"""A few Kafka requests written by hand, for measuring and for looking at what a broker really stores.

Owns four fixed encodings (Produce 7, Fetch 11, ListOffsets 1, InitProducerId 0) over one blocking socket. Deliberately does not use
`tidelog.wire`: a mistake there must not be able to cancel itself out here. Not a client: no retries, no metadata.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

PRODUCE, FETCH, LIST_OFFSETS, INIT_PRODUCER_ID = 0, 1, 2, 22
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
BATCH_OVERHEAD = 12
_NOWHERE = memoryview(bytearray(1 << 20))


class StoredBatch(NamedTuple):
    """What the header of a batch on the broker's disk says."""

    base_offset: int
    size: int
    magic: int
    codec: str
    last_offset_delta: int
    record_count: int


class ProduceAnswer(NamedTuple):
    error_code: int
    base_offset: int


def build_batch(
    values: list[bytes],
    *,
    timestamp_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    codec: str = "none",
) -> bytes:
    """One batch of records without keys."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=CODEC_NAMES.index(codec),
        is_transactional=0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=sum(map(len, values)) + 64 * len(values) + 128,
    )
    for delta, value in enumerate(values):
        builder.append(delta, timestamp=timestamp_ms, key=None, value=value, headers=[])
    return bytes(builder.build())


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhi", api_key, version, 1) + _string("raw") + body
    return struct.pack(">i", len(request)) + request


def produce_request(topic: str, batch: bytes, *, partition: int = 0, acks: int = -1) -> bytes:
    """A whole Produce 7 frame with one batch for one partition."""
    body = struct.pack(">hhii", -1, acks, 30_000, 1) + _string(topic)
    return _frame(PRODUCE, 7, body + struct.pack(">iii", 1, partition, len(batch)) + batch)


def fetch_request(
    topic: str, offset: int, *, partition: int = 0, max_bytes: int = 1 << 20, max_wait_ms: int = 0
) -> bytes:
    """A whole Fetch 11 frame for one partition, outside any session, that does not wait unless told to."""
    return fetch_partitions_request(topic, {partition: offset}, max_bytes=max_bytes, max_wait_ms=max_wait_ms)


def fetch_partitions_request(
    topic: str,
    offsets: Mapping[int, int],
    *,
    max_bytes: int = 1 << 20,
    max_wait_ms: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
) -> bytes:
    """A whole Fetch 11 frame for partitions of one topic, `max_bytes` of each; epoch 0 asks for a session."""
    most = max_bytes * max(1, len(offsets))
    body = struct.pack(">iiiibii", -1, max_wait_ms, 1, most, 0, session_id, session_epoch)
    body += struct.pack(">i", 1) + _string(topic) + struct.pack(">i", len(offsets))
    for partition, offset in offsets.items():
        body += struct.pack(">iiqqi", partition, -1, offset, -1, max_bytes)
    return _frame(FETCH, 11, body + struct.pack(">i", 0) + _string(""))


def list_offsets_request(topic: str, timestamp: int, *, partition: int = 0) -> bytes:
    body = struct.pack(">ii", -1, 1) + _string(topic)
    return _frame(LIST_OFFSETS, 1, body + struct.pack(">iiq", 1, partition, timestamp))


class RawConnection:
    """One socket to a broker; requests go out as bytes, answers come back as bytes."""

    def __init__(self, bootstrap: str, *, timeout_seconds: float = 30.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, frames: bytes) -> None:
        self._socket.sendall(frames)

    def discard(self, size: int) -> None:
        """Let that many bytes go by without copying them out of the kernel (Linux: MSG_TRUNC on a stream)."""
        while size:
            gone = self._socket.recv_into(_NOWHERE, min(size, len(_NOWHERE)), socket.MSG_TRUNC)
            if gone == 0:
                raise ConnectionError("the broker closed the connection in the middle of an answer")
            size -= gone

    def receive_into(self, memory: memoryview, size: int) -> None:
        """Copy that many bytes out of the kernel, to `memory` again and again, and look at none of them."""
        while size:
            received = self._socket.recv_into(memory, min(size, len(memory)))
            if received == 0:
                raise ConnectionError("the broker closed the connection in the middle of an answer")
            size -= received

    def receive_exactly(self, size: int) -> bytearray:
        """Read that many bytes, or fail when the broker hangs up."""
        answer = bytearray(size)
        view = memoryview(answer)
        while view:
            received = self._socket.recv_into(view)
            if received == 0:
                raise ConnectionError("the broker closed the connection in the middle of an answer")
            view = view[received:]
        return answer

    def receive(self) -> bytearray:
        """One answer without its length, correlation id included."""
        return self.receive_exactly(struct.unpack(">i", self.receive_exactly(4))[0])

    def produce(self, topic: str, batch: bytes, *, partition: int = 0, acks: int = -1) -> ProduceAnswer:
        self.send(produce_request(topic, batch, partition=partition, acks=acks))
        answer = self.receive()
        position = 4 + 4 + 2 + len(topic.encode()) + 4 + 4
        return ProduceAnswer(*struct.unpack_from(">hq", answer, position))

    def fetch(
        self, topic: str, offset: int, *, partition: int = 0, max_bytes: int = 1 << 20, max_wait_ms: int = 0
    ) -> memoryview:
        """The record bytes from an offset on, as the broker sends them."""
        self.send(
            fetch_request(topic, offset, partition=partition, max_bytes=max_bytes, max_wait_ms=max_wait_ms)
        )
        return fetched_records(memoryview(self.receive()), topic)

    def list_offset(self, topic: str, timestamp: int, *, partition: int = 0) -> int:
        """The offset for a timestamp; -1 asks for the latest, -2 for the earliest."""
        self.send(list_offsets_request(topic, timestamp, partition=partition))
        answer = self.receive()
        error_code, _, offset = struct.unpack_from(">hqq", answer, 4 + 4 + 2 + len(topic.encode()) + 4 + 4)
        if error_code != 0:
            raise RuntimeError(f"ListOffsets for {topic} answered error {error_code}")
        return int(offset)


def init_producer_id(connection: RawConnection) -> tuple[int, int]:
    """A fresh producer id and its epoch."""
    connection.send(_frame(INIT_PRODUCER_ID, 0, struct.pack(">hi", -1, 60_000)))
    error_code, producer_id, epoch = struct.unpack_from(">hqh", connection.receive(), 8)
    if error_code != 0:
        raise RuntimeError(f"InitProducerId answered error {error_code}")
    return producer_id, epoch


def fetched_records(answer: memoryview, topic: str) -> memoryview:
    """Cut the records out of a Fetch 11 answer for one partition."""
    position = 4 + 4  # correlation id, throttle time
    error_code, _session, _topics = struct.unpack_from(">hii", answer, position)
    position += 10 + 2 + len(topic.encode()) + 4
    _partition, partition_error, _high, _stable, _start = struct.unpack_from(">ihqqq", answer, position)
    if error_code or partition_error:
        raise RuntimeError(f"Fetch from {topic} answered error {error_code or partition_error}")
    position += 4 + 2 + 24
    (aborted,) = struct.unpack_from(">i", answer, position)
    position += 4 + 16 * max(aborted, 0) + 4  # then the preferred read replica
    (size,) = struct.unpack_from(">i", answer, position)
    return answer[position + 4 : position + 4 + max(size, 0)]


def stored_batches(records: memoryview) -> Iterator[StoredBatch]:
    """The headers of the whole batches in what a Fetch returned."""
    position = 0
    while position + 61 <= len(records):
        base_offset, length = struct.unpack_from(">qi", records, position)
        magic = records[position + 16]
        attributes, last_offset_delta = struct.unpack_from(">hi", records, position + 21)
        (count,) = struct.unpack_from(">i", records, position + 57)
        if position + BATCH_OVERHEAD + length > len(records):
            return
        yield StoredBatch(
            base_offset, BATCH_OVERHEAD + length, magic, CODEC_NAMES[attributes & 7], last_offset_delta, count
        )
        position += BATCH_OVERHEAD + length


def whole_batches(records: memoryview) -> tuple[int, int]:
    """The bytes that the whole batches of fetched records take, and the offset after them; (0, -1) without one."""
    position, end = 0, -1
    while position + 61 <= len(records):
        base_offset, length = struct.unpack_from(">qi", records, position)
        if position + BATCH_OVERHEAD + length > len(records):
            break
        end = base_offset + struct.unpack_from(">i", records, position + 23)[0] + 1
        position += BATCH_OVERHEAD + length
    return position, end


def last_batch_end(records: memoryview) -> int:
    """The offset after the last whole batch in fetched records; -1 when there is none. Reads headers only."""
    return whole_batches(records)[1]
