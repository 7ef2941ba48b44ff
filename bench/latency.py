"""Latency from end to end at a steady rate: from when a record was due to be sent until a consumer has it."""

from __future__ import annotations

import math
from array import array
from typing import NamedTuple

from bench import load
from bench.children import Child, new_event
from bench.plan import PER_SECOND, STEADY_RECORD_BYTES

DRAIN_SECONDS_MAX = 120.0
LINGER_MS = 5
"""librdkafka's own default, as are fetch.min.bytes=1 and fetch.wait.max.ms=500."""


class Percentiles(NamedTuple):
    """Milliseconds."""

    p50: float
    p99: float
    p999: float


def percentiles(nanoseconds: array[int] | list[int]) -> Percentiles:
    """By nearest rank: a value that was really measured."""
    ordered = sorted(nanoseconds)
    if not ordered:
        raise ValueError("no latency was measured")

    def at(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 1e6

    return Percentiles(at(0.5), at(0.99), at(0.999))


def steady(
    bootstrap: str,
    topic: str,
    *,
    seconds: float,
    skip_seconds: float,
    linger_ms: int = LINGER_MS,
    start: int = 0,
    readers: int = 1,
) -> Percentiles:
    """One producer at the steady rate, `readers` consumers at the tail; the percentiles of all of them together.

    `start` is the offset that the first record will get.
    """
    per_tick = round(PER_SECOND * load.TICK_SECONDS)
    records = round((seconds + skip_seconds) / load.TICK_SECONDS) * per_tick
    skip_records = round(skip_seconds / load.TICK_SECONDS) * per_tick
    go = new_event()
    ready = [new_event() for _ in range(readers)]
    patience = seconds + skip_seconds + DRAIN_SECONDS_MAX
    producer = Child(
        load.produce_steadily,
        bootstrap,
        topic,
        record_bytes=STEADY_RECORD_BYTES,
        per_second=PER_SECOND,
        seconds=seconds + skip_seconds,
        linger_ms=linger_ms,
        go=go,
    )
    consumers = [
        Child(
            load.latencies,
            bootstrap,
            topic,
            start=start,
            records=records,
            skip_records=skip_records,
            ready=event,
        )
        for event in ready
    ]
    try:
        for event in ready:
            if not event.wait(load.STALL_SECONDS_MAX):
                raise load.LoadError(f"a consumer of {topic} did not get ready")
        go.set()
        produced = producer.result(patience)
        found: array[int] = array("q")
        for consumer in consumers:
            found.extend(consumer.result(patience))
    finally:
        producer.end()
        for consumer in consumers:
            consumer.end()
    assert produced == records
    return percentiles(found)
