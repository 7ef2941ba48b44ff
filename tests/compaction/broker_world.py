"""A real broker with one compacted topic of small segments, and what it must still hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.broker.conftest import OwnBroker, Topic, Wire, code
from tidelog.records.batch import iter_headers
from tidelog.records.builder import BatchBuilder
from tidelog.records.record import iter_records

PATIENCE_SECONDS = 150.0  # the first worker of a machine compiles
KEYS = 50
SMALL: dict[str, Any] = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": "20000",
    "min_cleanable_dirty_ratio": "0.01",
    "file_delete_delay_ms": "0",
}
SETTINGS = {"log_cleaner_backoff_ms": 100}
Launch = Callable[..., OwnBroker]


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def keyed(*pairs: tuple[bytes, bytes | None]) -> bytes:
    builder = BatchBuilder()
    for key, value in pairs:
        builder.append(time.time_ns() // 1_000_000, key, value)
    return bytes(builder.build())


class World:
    """A broker with one compacted topic, and what was last sent for each key."""

    def __init__(self, broker: OwnBroker, **config: str) -> None:
        self.broker = broker
        self.wire = broker.connect()
        self.config: dict[str, Any] = SMALL | config
        self.topic = self.wire.create("states", **self.config)
        self.latest: dict[bytes, bytes | None] = {}
        self._number = 0

    @property
    def log(self) -> Any:
        return self.broker.broker.partitions.leader_of("states", 0).log

    @property
    def summary(self) -> Any:
        return self.broker.broker.cleaner.summary

    @property
    def directory(self) -> Path:
        return Path(self.log.directory)

    def put(self, *pairs: tuple[bytes, bytes | None]) -> None:
        assert code(self.wire.produce(self.topic, keyed(*pairs))) == "NONE"
        self.latest.update(pairs)

    def fill(self, batches: int = 200) -> None:
        for _ in range(batches):
            pairs: list[tuple[bytes, bytes | None]] = []
            for _ in range(10):
                self._number += 1
                pairs.append((b"key %d" % (self._number * 7 % KEYS), b"value %d " % self._number * 10))
            self.put(*pairs)

    def cleaned(self) -> bool:
        """Everything that is sealed is clean."""
        return bool(self.log.cleaned_to == self.log.active.base_offset and self.log.swap is None)

    def wait_until_clean(self) -> None:
        wait_until(self.cleaned, "the log is clean")

    def records(self, wire: Wire | None = None) -> list[tuple[int, bytes | None, bytes | None]]:
        return read(wire or self.wire, self.topic)

    def check(self) -> None:
        assert {key: value for _, key, value in self.records()} == self.latest


def read(wire: Wire, topic: Topic) -> list[tuple[int, bytes | None, bytes | None]]:
    """From the log's start, as a consumer that is sent back there when retention overtakes it."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offset = wire.offset_at(topic, -2).offset
    while True:
        answer = wire.fetch(topic, offset, partition_max_bytes=100_000)
        if code(answer) == "OFFSET_OUT_OF_RANGE":
            return read(wire, topic)
        assert code(answer) == "NONE"
        data = bytes(answer.records or b"")
        before = offset
        for position, header in iter_headers(data):
            if header.last_offset >= offset:
                records = iter_records(data, position, header)
                found += [
                    (record.offset, record.key, record.value) for record in records if record.offset >= offset
                ]
                offset = header.next_offset
        if offset == before:
            return found


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.endswith((".cleaned", ".swap"))]
