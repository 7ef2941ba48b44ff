"""What the tests ask of a client library, so that each combination is one line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tests.clients.rows import Row, binary_rows

READ_SECONDS_MAX = 60.0
BATCH_BYTES = 64 * 1024


class Library(ABC):
    """A Kafka client library. Everything happens on partition 0 unless a test says otherwise."""

    name: str

    def available(self) -> str | None:
        """None, or why this library cannot be used here."""
        return None

    def rows(self, count: int, *, seed: int) -> list[Row]:
        """Records of every shape that this library can write."""
        return binary_rows(count, seed=seed)

    @abstractmethod
    def create_topic(self, bootstrap: str, topic: str) -> None: ...

    @abstractmethod
    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], *, codec: str, acks: str) -> None:
        """Send every row in order and wait for what the acks setting waits for."""

    @abstractmethod
    def read(self, bootstrap: str, topic: str, *, start: int, count: int) -> list[Row]:
        """Read that many records from an offset on; 0 means from the beginning."""

    @abstractmethod
    def read_from_time(self, bootstrap: str, topic: str, *, timestamp_ms: int, count: int) -> list[Row]:
        """Read that many records from the first one at or after a time."""
