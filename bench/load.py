"""Load through librdkafka, the client that most languages use. Each function runs in a process of its own (`bench.children`).

Owns the client settings that are stated with every result, and how the load is timed. Knows a bootstrap address and nothing
of the broker behind it. Each function checks that the broker really holds or returned what was counted.
"""

from __future__ import annotations

import time
from array import array
from multiprocessing.synchronize import Event
from struct import Struct
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench import payload, topics
from bench.librdkafka import BareConsumer, BareProducer

# What is stated with every result. librdkafka's own defaults but for these.
PRODUCER_SETTINGS: dict[str, Any] = {
    "acks": "all",
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
    # More would be memory that the client touches for the first time while the clock runs.
    "queue.buffering.max.kbytes": 128 << 10,
}
CONSUMER_SETTINGS: dict[str, Any] = {
    # With the default of 100,000 librdkafka pauses a second whenever its queue is full, and measures itself.
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1 << 20,
}
STALL_SECONDS_MAX = 60.0
TICK_SECONDS = 0.001

_STAMP = Struct(">q")


class LoadError(Exception):
    """The broker did not do what it was measured for."""


def produce(
    bootstrap: str,
    topic: str,
    *,
    record_bytes: int,
    records: int,
    codec: str = "none",
    partitions: int = 1,
    stored_before: int = 0,
    batch_bytes: int = PRODUCER_SETTINGS["batch.size"],
) -> float:
    """Seconds from the first record handed over until the last is acknowledged."""
    settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "log_level": 0}
    settings |= PRODUCER_SETTINGS | {"batch.size": batch_bytes}
    producer = BareProducer(settings, topic, payload.values(record_bytes))
    producer.connect(STALL_SECONDS_MAX)  # and informed before the clock starts
    sent = calls = 0
    began = time.perf_counter()
    while sent < records:
        sent += producer.produce(calls % partitions)
        calls += 1
    left = producer.flush(STALL_SECONDS_MAX)
    seconds = time.perf_counter() - began
    if left:
        raise LoadError(f"{left} of {sent} records were not acknowledged within {STALL_SECONDS_MAX} s")
    stored = topics.stored_records(bootstrap, topic, partitions) - stored_before
    if stored != sent:
        raise LoadError(f"{sent} records were sent and {stored} stored")
    return seconds * records / sent


def consume(bootstrap: str, topic: str, *, records: int, partitions: int = 1) -> float:
    """Seconds until the last record is here, everything from the beginning."""
    consumer = BareConsumer(
        {"bootstrap.servers": bootstrap, "log_level": 0} | CONSUMER_SETTINGS, topic, partitions
    )
    consumer.connect(STALL_SECONDS_MAX)
    got = 0
    began = latest = time.perf_counter()
    consumer.start()
    while got < records:
        more = consumer.consume(0.1)
        got += more
        now = time.perf_counter()
        if more:
            latest = now
        elif now - latest > STALL_SECONDS_MAX:
            raise LoadError(f"read {got} of {records} records, then nothing for {STALL_SECONDS_MAX} s")
    seconds = time.perf_counter() - began
    while more := consumer.consume(0.1):
        got += more
    # The library counts a note of its own for each partition that it begins with.
    if not records <= got <= records + partitions:
        raise LoadError(f"{got} records came of {records}")
    return seconds


def produce_steadily(
    bootstrap: str,
    topic: str,
    *,
    record_bytes: int,
    per_second: int,
    seconds: float,
    linger_ms: int,
    go: Event,
) -> int:
    """A fixed number of records every millisecond, come what may; each carries when it was due. Returns how many.

    A record that could not be handed over in time keeps the time it was due at: a broker that stalls pays for every record it
    has kept waiting, not only for the one it met.
    """
    producer = Producer(
        {"bootstrap.servers": bootstrap, "log_level": 0, "acks": "all", "linger.ms": linger_ms}
        | {"queue.buffering.max.messages": 1_000_000}  # a stall must not make the sender wait
    )
    producer.list_topics(topic, timeout=30)
    padding = bytes(record_bytes - _STAMP.size)
    per_tick = round(per_second * TICK_SECONDS)
    tick_ns = int(TICK_SECONDS * 1e9)
    ticks = round(seconds / TICK_SECONDS)
    go.wait(STALL_SECONDS_MAX)
    first = time.monotonic_ns() + 10 * tick_ns
    for tick in range(ticks):
        due = first + tick * tick_ns
        while (ahead := due - time.monotonic_ns()) > 0:
            time.sleep(ahead / 1e9)
        value = _STAMP.pack(due) + padding
        for _ in range(per_tick):
            producer.produce(topic, value, partition=0)
        producer.poll(0)
    if left := producer.flush(STALL_SECONDS_MAX):
        raise LoadError(f"{left} records were not acknowledged within {STALL_SECONDS_MAX} s")
    return ticks * per_tick


def latencies(
    bootstrap: str, topic: str, *, start: int, records: int, skip_records: int, ready: Event
) -> array[int]:
    """Nanoseconds from when each record was due until it was here, without the first `skip_records`."""
    consumer: Any = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "log_level": 0}
        | {"enable.auto.commit": False, "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    consumer.poll(0.2)  # fetching before the first record is due
    ready.set()
    found = array("q")
    deadline = time.monotonic() + STALL_SECONDS_MAX
    while len(found) < records:
        message = consumer.poll(1.0)
        now = time.monotonic_ns()
        if message is None:
            if time.monotonic() > deadline:
                raise LoadError(f"read {len(found)} of {records} records, then nothing for a minute")
            continue
        if message.error():
            raise KafkaException(message.error())
        found.append(now - _STAMP.unpack_from(message.value())[0])
        if len(found) & 1023 == 0:
            deadline = time.monotonic() + STALL_SECONDS_MAX
    return found[skip_records:]
