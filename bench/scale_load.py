"""Requests that name many partitions at once, and a watcher of the broker's process: what `bench.scale` measures with.

Owns three more hand-written encodings (Produce 7, Fetch 11 and ListOffsets 1 over many partitions) beside those of `tools.peers.raw`,
and the sampling of descriptors, memory and answer times while something else goes on. Knows a bootstrap address and a
process id, and nothing of the broker behind them.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from bench.load import LoadError
from tools.peers.raw import FETCH, LIST_OFFSETS, PRODUCE, RawConnection

PARTITIONS_PER_REQUEST = 100
PROBE_SECONDS = 0.002
SAMPLE_SECONDS = 0.05


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih", api_key, version, 1, 5) + b"scale" + body
    return struct.pack(">i", len(request)) + request


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _groups(partitions: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(partitions), PARTITIONS_PER_REQUEST):
        yield partitions[first : first + PARTITIONS_PER_REQUEST]


def produce_to_each(connection: RawConnection, topic: str, partitions: Sequence[int], batch: bytes) -> None:
    """The same batch to every partition, a hundred of them in each request, one request at a time."""
    for group in _groups(partitions):
        body = struct.pack(">hhii", -1, -1, 30_000, 1) + _string(topic) + struct.pack(">i", len(group))
        body += b"".join(struct.pack(">ii", number, len(batch)) + batch for number in group)
        connection.send(_frame(PRODUCE, 7, body))
        answer = connection.receive()
        position = 4 + 4 + 2 + len(topic.encode()) + 4
        for _ in group:
            number, error_code = struct.unpack_from(">ih", answer, position)
            if error_code:
                raise LoadError(f"Produce to {topic}-{number} answered error {error_code}")
            position += 4 + 2 + 8 + 8 + 8


def fetch_from_each(
    connection: RawConnection, topic: str, partitions: Sequence[int], *, offset: int = 0
) -> int:
    """Fetch every partition from an offset on, a hundred of them in each request; returns the record bytes received."""
    received = 0
    for group in _groups(partitions):
        body = struct.pack(">iiiibii", -1, 0, 1, 50 << 20, 0, 0, -1) + struct.pack(">i", 1) + _string(topic)
        body += struct.pack(">i", len(group))
        body += b"".join(struct.pack(">iiqqi", number, -1, offset, -1, 1 << 20) for number in group)
        connection.send(_frame(FETCH, 11, body + struct.pack(">i", 0) + _string("")))
        received += _fetched_bytes(memoryview(connection.receive()), topic, len(group))
    return received


def _fetched_bytes(answer: memoryview, topic: str, count: int) -> int:
    position = 4 + 4 + 2 + 4 + 4 + 2 + len(topic.encode()) + 4
    received = 0
    for _ in range(count):
        number, error_code = struct.unpack_from(">ih", answer, position)
        if error_code:
            raise LoadError(f"Fetch from {topic}-{number} answered error {error_code}")
        position += 4 + 2 + 24
        (aborted,) = struct.unpack_from(">i", answer, position)
        position += 4 + 16 * max(aborted, 0) + 4
        (size,) = struct.unpack_from(">i", answer, position)
        position += 4 + max(size, 0)
        if size <= 0:
            raise LoadError(f"Fetch from {topic}-{number} returned no records")
        received += size
    return received


def end_offsets(connection: RawConnection, topic: str, partitions: Sequence[int]) -> list[int]:
    """The end of every partition; -1 where it is not served yet."""
    ends: list[int] = []
    for group in _groups(partitions):
        body = struct.pack(">ii", -1, 1) + _string(topic) + struct.pack(">i", len(group))
        body += b"".join(struct.pack(">iq", number, -1) for number in group)
        connection.send(_frame(LIST_OFFSETS, 1, body))
        answer = connection.receive()
        position = 4 + 4 + 2 + len(topic.encode()) + 4
        for _ in group:
            _, error_code, _, offset = struct.unpack_from(">ihqq", answer, position)
            ends.append(-1 if error_code else offset)
            position += 4 + 2 + 8 + 8
    return ends


def wait_until_served(
    connection: RawConnection, topic: str, partitions: Sequence[int], *, seconds_max: float = 120.0
) -> None:
    """Kafka says that a topic is created a moment before it serves it."""
    deadline = time.monotonic() + seconds_max
    left = list(partitions)
    while left:
        ends = end_offsets(connection, topic, left)
        left = [number for number, end in zip(left, ends, strict=True) if end < 0]
        if left:
            if time.monotonic() > deadline:
                raise LoadError(f"{len(left)} partitions of {topic} are not served after {seconds_max} s")
            time.sleep(0.01)  # asking must not be what keeps it busy


class Watch:
    """While it is open: the most descriptors and memory that a process held, and the longest that it let a small request wait."""

    def __init__(self, pid: int, bootstrap: str | None = None) -> None:
        self._pid = pid
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.descriptors_max = 0
        self.rss_max = 0
        self.wait_max = 0.0

    def __enter__(self) -> Watch:
        self._threads = [threading.Thread(target=self._sample, daemon=True)]
        if self._bootstrap is not None:
            self._threads.append(threading.Thread(target=self._probe, daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _sample(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while True:
            try:
                self.descriptors_max = max(self.descriptors_max, len(os.listdir(f"/proc/{self._pid}/fd")))
                resident = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * page
                self.rss_max = max(self.rss_max, resident)
            except (OSError, ValueError, IndexError):
                return  # the process has ended
            if self._stop.wait(SAMPLE_SECONDS):
                return

    def _probe(self) -> None:
        """One ApiVersions request after another: as late as the answer is, as long the loop was busy with something else."""
        assert self._bootstrap is not None
        request = _frame(18, 0, b"")
        try:
            with RawConnection(self._bootstrap) as connection:
                while not self._stop.wait(PROBE_SECONDS):
                    began = time.perf_counter()
                    connection.send(request)
                    connection.receive()
                    self.wait_max = max(self.wait_max, time.perf_counter() - began)
        except OSError:
            return  # killed or stopped on purpose while we were asking


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
