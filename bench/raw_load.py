"""Load by requests that were built beforehand, over a bare socket: shows the broker where a client would hide it.

Each function runs in a process of its own (`bench.children`) and checks that the broker really holds or returned what was
counted. Answers are looked at no further than that.
"""

from __future__ import annotations

import struct
import time
from bisect import bisect_right
from collections.abc import Callable
from multiprocessing.synchronize import Event
from typing import NamedTuple

from bench import payload, topics
from bench.load import STALL_SECONDS_MAX, LoadError
from tools.peers.raw import (
    RawConnection,
    build_batch,
    fetch_partitions_request,
    produce_request,
    stored_batches,
    whole_batches,
)

IN_FLIGHT = 5
FETCH_BYTES = 1 << 20
TAIL_WAIT_MS = 500


class Rate(NamedTuple):
    """Record bytes that went by, and the seconds they took."""

    size: int
    seconds: float

    @property
    def megabytes_per_second(self) -> float:
        return self.size / 1e6 / self.seconds


def produce_frames(
    bootstrap: str,
    topic: str,
    *,
    record_bytes: int,
    seconds: float,
    bytes_max: int,
    codec: str = "none",
    partitions: int = 1,
    stored_before: int = 0,
) -> Rate:
    """Full batches, one request each, a few in flight. The size counts record values, uncompressed."""
    per_batch = payload.batch_records(record_bytes)
    values = payload.values(record_bytes, per_batch)
    batch = build_batch(values, timestamp_ms=int(time.time() * 1000), codec=codec)
    frames = [produce_request(topic, batch, partition=number) for number in range(partitions)]
    requests_max = max(IN_FLIGHT, bytes_max // (per_batch * record_bytes))
    with RawConnection(bootstrap) as connection:
        connection.send(frames[0])
        answer_size = 4 + len(connection.receive())
        began = time.perf_counter()
        sent = answered = 0
        while sent < requests_max and time.perf_counter() - began < seconds:
            connection.send(frames[sent % partitions])
            sent += 1
            if sent - answered >= IN_FLIGHT:
                answer = connection.receive_exactly(answer_size)
                answered += 1
        while answered < sent:
            answer = connection.receive_exactly(answer_size)
            answered += 1
        elapsed = time.perf_counter() - began
        check_produced(answer, topic)
    stored = topics.stored_records(bootstrap, topic, partitions) - stored_before
    if stored != (sent + 1) * per_batch:
        raise LoadError(f"{(sent + 1) * per_batch} records were sent and {stored} stored")
    return Rate(sent * per_batch * record_bytes, elapsed)


def check_produced(answer: bytes | bytearray, topic: str) -> None:
    """The answer, length included, of a Produce 7 with one partition."""
    (error_code,) = struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(topic.encode()) + 4 + 4)
    if error_code:
        raise LoadError(f"Produce answered error {error_code}")


def one_record_requests(bootstrap: str, topic: str, *, depth: int, seconds: float) -> float:
    """Requests per second with one 100-byte record each, `depth` of them written before their answers are read."""
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
        check_produced(answers, topic)
        if (end := connection.list_offset(topic, -1)) != done + 1:
            raise LoadError(f"{done + 1} requests were answered and {end} records stored")
    return done / elapsed


class BatchMap:
    """Where the batches of a partition begin, learnt by reading it once: afterwards a reader may discard what it fetches."""

    def __init__(self, connection: RawConnection, topic: str, partition: int, end: int) -> None:
        self.ends = [0]
        self.offsets = [0]
        while self.offsets[-1] < end:
            records = connection.fetch(
                topic, self.offsets[-1], partition=partition, max_bytes=FETCH_BYTES, max_wait_ms=TAIL_WAIT_MS
            )
            before = len(self.ends)
            for batch in stored_batches(records):
                self.ends.append(self.ends[-1] + batch.size)
                self.offsets.append(batch.base_offset + batch.last_offset_delta + 1)
            if len(self.ends) == before:
                raise LoadError(f"a fetch of {topic} from {self.offsets[-1]} brought no whole batch")

    def after(self, index: int, size: int) -> int:
        """The index of the batch to ask for next, when `size` bytes came from batch `index` on."""
        return bisect_right(self.ends, self.ends[index] + size) - 1


def fetch_and_discard(
    bootstrap: str,
    topic: str,
    *,
    partitions: int,
    seconds: float,
    fetch_bytes: int = FETCH_BYTES,
    into: memoryview | None = None,
    begin: Callable[[], None] = lambda: None,
) -> Rate:
    """Read all partitions again and again, one Fetch for all of them at a time, and let the records go by in the kernel, or copy them to `into`."""
    with RawConnection(bootstrap) as connection:
        maps = [
            BatchMap(connection, topic, number, connection.list_offset(topic, -1, partition=number))
            for number in range(partitions)
        ]
        places = [0] * partitions
        size = 0
        begin()
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            offsets = {number: maps[number].offsets[places[number]] for number in range(partitions)}
            connection.send(fetch_partitions_request(topic, offsets, max_bytes=fetch_bytes))
            for number, count in _discard_answer(connection, topic, into):
                place = maps[number].after(places[number], count)
                size += maps[number].ends[place] - maps[number].ends[places[number]]
                places[number] = place if place < len(maps[number].ends) - 1 else 0
        return Rate(size, elapsed)


def _discard_answer(connection: RawConnection, topic: str, into: memoryview | None) -> list[tuple[int, int]]:
    """The record bytes per partition of a Fetch 11 answer, unseen."""
    head = connection.receive_exactly(4 + 4 + 4 + 2 + 4 + 4 + 2 + len(topic.encode()) + 4)
    (error_code,) = struct.unpack_from(">h", head, 12)
    if error_code:
        raise LoadError(f"Fetch from {topic} answered error {error_code}")
    (partitions,) = struct.unpack_from(">i", head, len(head) - 4)
    found = []
    for _ in range(partitions):
        fixed = connection.receive_exactly(4 + 2 + 8 + 8 + 8 + 4 + 4 + 4)
        number, error_code, _high, _stable, _start, aborted, _replica, size = struct.unpack(
            ">ihqqqiii", fixed
        )
        if error_code or aborted > 0:
            raise LoadError(f"Fetch from {topic}-{number} answered error {error_code}")
        if into is None:
            connection.discard(max(0, size))
        else:
            connection.receive_into(into, max(0, size))
        found.append((number, max(0, size)))
    return found


def read_to_end(bootstrap: str, topic: str, *, start: int, end: int, ready: Event | None = None) -> Rate:
    """Follow one partition from an offset to another with Fetches that wait for data; batch headers are looked at."""
    size, offset = 0, start
    with RawConnection(bootstrap) as connection:
        if ready is not None:
            ready.set()
        began = latest = time.perf_counter()
        while offset < end:
            records = connection.fetch(topic, offset, max_bytes=FETCH_BYTES, max_wait_ms=TAIL_WAIT_MS)
            whole, following = whole_batches(records)
            now = time.perf_counter()
            if whole:
                if not size:
                    began = now  # the clock of a reader at the tail starts with the data
                size, offset, latest = size + whole, following, now
            elif len(records) or now - latest > STALL_SECONDS_MAX:
                raise LoadError(f"a fetch of {topic} from {offset} brought no whole batch")
        return Rate(size, time.perf_counter() - began)
