"""A socket to a broker and Kafka's requests over it, as small as the attacks need: valid requests, raw bytes, and patience."""

from __future__ import annotations

import itertools
import socket
import struct
from typing import Any, Self

from tidelog.broker.apis import APIS
from tidelog.wire.api import spec
from tidelog.wire.headers import RequestHeader, decode_response, encode_request
from tidelog.wire.messages import create_topics, produce

SECONDS_MAX = 30.0
_KEYS = {spec(key).request_class: int(key) for key in APIS}


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def encoded(request: Any, *, version: int | None = None, correlation_id: int = 1) -> bytes:
    """A whole frame."""
    key = _KEYS[type(request)]
    version = APIS[key].max_version if version is None else version
    return encode_request(RequestHeader(key, version, correlation_id, "fuzz"), request)


class Wire:
    def __init__(self, port: int, *, timeout: float = SECONDS_MAX, receive_buffer: int | None = None) -> None:
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(timeout)
        self.sock.connect(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ids = itertools.count(1)
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def abort(self) -> None:
        """Close with a reset instead of a goodbye."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self, request: Any, version: int | None = None) -> Any:
        key = _KEYS[type(request)]
        version = APIS[key].max_version if version is None else version
        correlation_id = next(self._ids)
        self.send(encoded(request, version=version, correlation_id=correlation_id))
        found, message = decode_response(key, version, self.receive())
        assert found == correlation_id
        return message

    def ask_behind(self, request: Any, *, skip: int = 0) -> Any:
        """Ask behind what was sent already: its answer, and `skip` more, are thrown away."""
        key = _KEYS[type(request)]
        version = APIS[key].max_version
        self.send(encoded(request, version=version, correlation_id=7777))
        for _ in range(1 + skip):
            self.receive()
        found, message = decode_response(key, version, self.receive())
        assert found == 7777
        return message

    def receive(self) -> bytes:
        """The next answer without its length; EOFError when the broker hangs up."""
        while (frame := self._next_frame()) is None:
            more = self.sock.recv(262_144)
            if not more:
                raise EOFError("the broker closed the connection")
            self._buffer += more
        return frame

    def _next_frame(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        end = 4 + struct.unpack_from(">i", buffer)[0]
        if len(buffer) < end:
            return None
        frame = bytes(buffer[4:end])
        del buffer[:end]
        return frame

    def is_closed(self, timeout: float) -> bool:
        """The broker hangs up within this time; answers that still come are thrown away."""
        self.sock.settimeout(timeout)
        try:
            while self.sock.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True

    # ---- frequent questions

    def create(self, name: str, partitions: int = 1, config: dict[str, str] | None = None) -> bytes:
        """Returns the topic's id."""
        asked = create_topics.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                create_topics.CreatableTopicConfig(name=key, value=value)
                for key, value in (config or {}).items()
            ],
        )
        (result,) = self.ask(create_topics.CreateTopicsRequest(topics=[asked], timeout_ms=10_000)).topics
        assert result.error_code == 0, result
        topic_id: bytes = result.topic_id
        return topic_id

    def produce(self, topic_id: bytes, records: bytes, *, acks: int = -1, partition: int = 0) -> Any:
        """The answer for the one partition."""
        return (
            self.ask(produce_request(topic_id, records, acks=acks, partition=partition))
            .responses[0]
            .partition_responses[0]
        )


def produce_request(topic_id: bytes, records: bytes, *, acks: int = -1, partition: int = 0) -> Any:
    data = produce.PartitionProduceData(index=partition, records=records)
    return produce.ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[produce.TopicProduceData(topic_id=topic_id, partition_data=[data])],
    )
