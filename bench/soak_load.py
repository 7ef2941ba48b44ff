"""The loads of the soak: everything a broker must not remember for ever, at once. Each function runs in a process of its own.

A load goes on until it is told to stop, reconnects when it is refused, and returns how often it did its work: a soak in which a
load did nothing has shown nothing.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench import payload
from tools.peers.raw import (
    RawConnection,
    build_batch,
    fetch_partitions_request,
    fetch_request,
    init_producer_id,
    produce_request,
    whole_batches,
)

TOPIC = "soak"
PARTITIONS = 6
SMALL_TOPIC = "soak-small"
"""For one-record requests and new producers."""
RECORD_BYTES = 1024
PAUSE_SECONDS = 0.2
CROWD = 20
"""Connections that each badly behaved load holds."""
HELD_SECONDS = 15.0
FAILURES = (OSError, RuntimeError, struct.error)
"""What a raw client meets when it is refused or cut off."""


def again_and_again(stop: Event, cycle: Callable[[], int], *, per_second: float = 0.0) -> int:
    """Repeat until told to stop, at most so often; returns the sum of what the cycles did."""
    done = 0
    while not stop.is_set():
        began = time.monotonic()
        try:
            done += cycle()
        except FAILURES:
            stop.wait(PAUSE_SECONDS)
        if per_second and (left := 1 / per_second - (time.monotonic() - began)) > 0:
            stop.wait(left)
    return done


def produce_in_bulk(bootstrap: str, stop: Event, megabytes_per_second: float) -> int:
    """Batches through librdkafka to all partitions; 0 megabytes per second: as many as the broker takes."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "log_level": 0, "acks": "all", "linger.ms": 5}
        | {"batch.size": 1_000_000, "queue.buffering.max.kbytes": 32_768, "enable.idempotence": True}
    )
    messages = [{"value": value} for value in payload.values(RECORD_BYTES)]
    sent = calls = 0
    began = time.monotonic()
    while not stop.is_set():
        queued = producer.produce_batch(TOPIC, messages, partition=calls % PARTITIONS)
        sent += queued
        calls += 1
        producer.poll(0.01 if queued < len(messages) else 0)
        if megabytes_per_second:
            due = began + sent * RECORD_BYTES / 1e6 / megabytes_per_second
            stop.wait(max(0.0, due - time.monotonic()))
    return sent - int(producer.flush(30))


def produce_one_by_one(bootstrap: str, stop: Event, depth: int) -> int:
    """Requests of one record each, as fast as they are answered: keeps the broker's loop busy."""
    request = produce_request(SMALL_TOPIC, build_batch([b"x" * 100], timestamp_ms=int(time.time() * 1000)))

    def cycle() -> int:
        done = 0
        with RawConnection(bootstrap) as connection:
            connection.send(request)
            answer_size = 4 + len(connection.receive())
            while not stop.is_set():
                connection.send(request * depth)
                connection.receive_exactly(answer_size * depth)
                done += depth
        return done

    return again_and_again(stop, cycle)


def read_at_the_end(bootstrap: str, stop: Event) -> int:
    """A reader that keeps up: bytes."""

    def cycle() -> int:
        size = 0
        with RawConnection(bootstrap) as connection:
            offset = connection.list_offset(TOPIC, -1)
            while not stop.is_set():
                whole, following = whole_batches(connection.fetch(TOPIC, offset, max_wait_ms=500))
                size += whole
                offset = max(offset, following)
        return size

    return again_and_again(stop, cycle)


def read_slowly(bootstrap: str, stop: Event) -> int:
    """Readers that take a few kilobytes at a time of the megabyte they asked for: bytes."""

    def cycle() -> int:
        taken = 0
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(_Sipping(bootstrap, n % PARTITIONS)) for n in range(CROWD)]
            until = time.monotonic() + 4 * HELD_SECONDS
            while time.monotonic() < until and not stop.wait(0.1):
                taken += sum(connection.sip(8192) for connection in connections)
        return taken

    return again_and_again(stop, cycle)


class _Sipping:
    """Asks for a megabyte from the beginning of a partition, takes it in sips, then asks again."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        host, _, port = bootstrap.rpartition(":")
        with RawConnection(bootstrap) as asking:
            earliest = asking.list_offset(TOPIC, -2, partition=partition)
        self._request = fetch_request(TOPIC, earliest, partition=partition)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        self._socket.connect((host, int(port)))
        self._socket.setblocking(False)
        self._left = 0

    def sip(self, size: int) -> int:
        if self._left == 0:
            self._socket.send(self._request)
            self._left = -1
        try:
            data = self._socket.recv(size)
        except BlockingIOError:
            return 0
        if not data:
            raise ConnectionError("the broker hung up on a slow reader")
        if self._left < 0:
            self._left = 4 + struct.unpack_from(">i", data)[0]
        self._left -= len(data)
        return len(data)

    def __enter__(self) -> _Sipping:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()


def never_read(bootstrap: str, stop: Event) -> int:
    """Connections that ask a lot, read nothing, and go away without a word: connections."""
    host, _, port = bootstrap.rpartition(":")
    metadata = struct.pack(">ihhihi", 14, 3, 0, 1, -1, 0)  # Metadata 0 for every topic
    fetches = [fetch_request(TOPIC, 0, partition=n) for n in range(PARTITIONS)]

    def cycle() -> int:
        held = []
        try:
            for number in range(CROWD):
                connection = socket.socket()
                held.append(connection)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.connect((host, int(port)))
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    connection.send(metadata * 5000 if number % 4 == 0 else b"".join(fetches) * 100)
            stop.wait(HELD_SECONDS)
        finally:
            for connection in held:
                connection.close()
        return len(held)

    return again_and_again(stop, cycle)


def come_and_go(bootstrap: str, stop: Event) -> int:
    """Connections that end at once, in the middle of a large frame, or after a single large request: connections."""
    host, _, port = bootstrap.rpartition(":")
    batch = build_batch(payload.values(RECORD_BYTES, 900), timestamp_ms=int(time.time() * 1000))
    large = produce_request(TOPIC, batch)
    number = 0

    def cycle() -> int:
        nonlocal number
        number += 1
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            if number % 3 == 1:
                connection.sendall(large[: len(large) // 3])
            elif number % 30 == 2:
                connection.sendall(large)
                connection.recv(100)
        return 1

    return again_and_again(stop, cycle, per_second=30)


def consume_and_leave(bootstrap: str, stop: Event) -> int:
    """librdkafka consumers that stay for a second, with their fetch sessions and long polls: consumers."""

    def cycle() -> int:
        consumer: Any = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "soak", "log_level": 0, "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(TOPIC, n, -1) for n in range(PARTITIONS)])
        for _ in range(10):
            consumer.consume(200, 0.1)
        consumer.close()
        return 1

    return again_and_again(stop, cycle, per_second=0.5)


def new_producers(bootstrap: str, stop: Event) -> int:
    """A new idempotent producer for every batch: producers."""

    def cycle() -> int:
        done = 0
        with RawConnection(bootstrap) as connection:
            while not stop.wait(0.02) and done < 100:
                producer_id, epoch = init_producer_id(connection)
                batch = build_batch(
                    [b"once"],
                    timestamp_ms=int(time.time() * 1000),
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=0,
                )
                if connection.produce(SMALL_TOPIC, batch).error_code == 0:
                    done += 1
        return done

    return again_and_again(stop, cycle)


def make_and_delete_topics(bootstrap: str, stop: Event) -> int:
    """Topics that live for a moment: topics."""
    admin: Any = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    batch = build_batch([b"short"], timestamp_ms=int(time.time() * 1000))

    def cycle() -> int:
        topic = f"soak-passing-{time.time_ns()}"
        admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
        with RawConnection(bootstrap) as connection:
            for partition in range(3):
                connection.produce(topic, batch, partition=partition)
        admin.delete_topics([topic])[topic].result(30)
        return 1

    return again_and_again(stop, cycle, per_second=2)


def open_fetch_sessions(bootstrap: str, stop: Event) -> int:
    """Fetch sessions that nobody closes: sessions asked for."""

    def cycle() -> int:
        done = 0
        request = fetch_partitions_request(
            TOPIC, dict.fromkeys(range(PARTITIONS), 0), max_bytes=1024, session_epoch=0
        )
        with RawConnection(bootstrap) as connection:
            while not stop.wait(0.02) and done < 50:
                connection.send(request)
                connection.receive()
                done += 1
        return done

    return again_and_again(stop, cycle)


def look_up_times(bootstrap: str, stop: Event) -> int:
    """Offsets by timestamp, all over the log: look-ups."""
    draw = random.Random(1)

    def cycle() -> int:
        done = 0
        with RawConnection(bootstrap) as connection:
            while not stop.wait(0.02) and done < 500:
                past_ms = draw.randrange(120_000)
                partition = draw.randrange(PARTITIONS)
                connection.list_offset(TOPIC, int(time.time() * 1000) - past_ms, partition=partition)
                done += 1
        return done

    return again_and_again(stop, cycle)
