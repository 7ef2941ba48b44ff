"""The load itself: records through librdkafka, requests and fetches over a bare socket.

Owns what is sent and how it is timed. Knows a bootstrap address and nothing of the broker behind it. Every function returns
seconds of wall clock; each checks that the broker really holds or returned what was counted.
"""

from __future__ import annotations

import struct
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tools.peers.raw import RawConnection, build_batch, last_batch_end, produce_request

# What is stated with every result. librdkafka's own defaults but for these.
PRODUCER_SETTINGS: dict[str, Any] = {
    "acks": "all",
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1 << 20,
}
CONSUMER_SETTINGS: dict[str, Any] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    # With the default of 100,000 librdkafka pauses a second whenever its queue is full, and measures itself.
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1 << 20,
}
CALL_RECORDS = 1000
CONSUME_RECORDS = 1000
STALL_SECONDS_MAX = 60.0
RAW_FETCH_BYTES = 1 << 20


class LoadError(Exception):
    """The broker did not do what it was measured for."""


def create_topic(bootstrap: str, topic: str, *, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    # Deleted topics give their space back soon: a minute of waiting files would fill the disk.
    new = NewTopic(topic, partitions, 1, config={"file.delete.delay.ms": "100"})
    admin.create_topics([new])[topic].result(30)
    for number in range(partitions):
        _wait_for_leader(bootstrap, topic, number)


def _wait_for_leader(bootstrap: str, topic: str, partition: int) -> None:
    """Kafka says that a topic is created a moment before it serves it."""
    deadline = time.monotonic() + STALL_SECONDS_MAX
    with RawConnection(bootstrap) as connection:
        while True:
            try:
                connection.list_offset(topic, -1, partition=partition)
                return
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)


def produce(
    bootstrap: str, topic: str, *, record_bytes: int, records: int, codec: str = "none", partitions: int = 1
) -> float:
    """Seconds from the first record handed over until the last is acknowledged."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "log_level": 0} | PRODUCER_SETTINGS
    )
    producer.list_topics(topic, timeout=30)  # connected and informed before the clock starts
    messages = [{"value": value} for value in _values(record_bytes)]
    sent = 0
    began = time.perf_counter()
    while sent < records:
        queued = producer.produce_batch(topic, messages, partition=(sent // CALL_RECORDS) % partitions)
        sent += queued
        if queued < len(messages):
            producer.poll(0.005)
    left = producer.flush(STALL_SECONDS_MAX)
    seconds = time.perf_counter() - began
    if left:
        raise LoadError(f"{left} of {sent} records were not acknowledged within {STALL_SECONDS_MAX} s")
    stored = _stored(bootstrap, topic, partitions)
    if stored != sent:
        raise LoadError(f"{sent} records were sent and {stored} stored")
    return seconds * records / sent


def _values(record_bytes: int) -> list[bytes]:
    """Half repeats, half does not, so that a codec has work to do and something to gain."""
    noise = bytes((i * 2654435761 >> 7) & 0xFF for i in range(record_bytes))
    return [
        (b"%08d" % number + noise[number % 97 :][: record_bytes // 2]).ljust(record_bytes, b".")[
            :record_bytes
        ]
        for number in range(CALL_RECORDS)
    ]


def _stored(bootstrap: str, topic: str, partitions: int) -> int:
    with RawConnection(bootstrap) as connection:
        return sum(connection.list_offset(topic, -1, partition=number) for number in range(partitions))


def consume(bootstrap: str, topic: str, *, records: int, partitions: int = 1) -> float:
    """Seconds from the first record received until the last, everything from the beginning."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "log_level": 0} | CONSUMER_SETTINGS
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        got = len(_consumed(consumer, 1, STALL_SECONDS_MAX))
        began = time.perf_counter()
        while got < records:
            more = len(_consumed(consumer, CONSUME_RECORDS, 0.1))
            got += more
            if not more and time.perf_counter() - began > STALL_SECONDS_MAX:
                raise LoadError(f"read {got} of {records} records in {STALL_SECONDS_MAX} s")
        return time.perf_counter() - began
    finally:
        consumer.close()


def _consumed(consumer: Any, count: int, timeout_seconds: float) -> list[Any]:
    messages: list[Any] = consumer.consume(count, timeout_seconds)
    if messages and messages[0].error():
        raise KafkaException(messages[0].error())
    return messages


def fetch_and_discard(bootstrap: str, topic: str, *, end: int) -> tuple[float, int]:
    """Read a partition with bare Fetch requests and look at nothing but batch headers: (seconds, bytes)."""
    with RawConnection(bootstrap) as connection:
        offset = fetched = 0
        began = time.perf_counter()
        while offset < end:
            records = connection.fetch(topic, offset, max_bytes=RAW_FETCH_BYTES)
            following = last_batch_end(records)
            if following <= offset:
                raise LoadError(f"a fetch of {topic} from {offset} brought no whole batch")
            fetched += len(records)
            offset = following
        return time.perf_counter() - began, fetched


def one_record_requests(bootstrap: str, topic: str, *, depth: int, seconds: float) -> float:
    """Produce requests per second with one 100-byte record each, `depth` of them written before the answers are read."""
    batch = build_batch([b"x" * 100], timestamp_ms=int(time.time() * 1000))
    request = produce_request(topic, batch)
    with RawConnection(bootstrap) as connection:
        connection.send(request)
        answer_size = 4 + len(connection.receive())
        requests = request * depth
        done = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            connection.send(requests)
            answers = connection.receive_exactly(answer_size * depth)
            done += depth
        elapsed = time.perf_counter() - began
        (error_code,) = struct.unpack_from(">h", answers, 4 + 4 + 4 + 2 + len(topic.encode()) + 4 + 4)
        if error_code:
            raise LoadError(f"Produce answered error {error_code}")
        if (end := connection.list_offset(topic, -1)) != done + 1:
            raise LoadError(f"{done + 1} requests were answered and {end} records stored")
    return done / elapsed
