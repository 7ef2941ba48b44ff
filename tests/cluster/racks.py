"""Three brokers in three racks, and a count of who sent which consumer how many bytes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tidelog.broker.api import fetch
from tidelog.testing import Cluster
from tidelog.wire.types import Part

RACKS: Final = ("east", "north", "west")
TOPIC: Final = "orders"
SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Sent:
    """Bytes of records in answers to consumers, by broker and by the client id that asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: Counter[tuple[int, str]] = Counter()

    def note(self, node: int, client_id: str, count: int) -> None:
        with self._lock:
            self._bytes[node, client_id] += count

    def to(self, client_id: str) -> dict[int, int]:
        """By broker, those that sent anything."""
        with self._lock:
            return {
                node: count for (node, client), count in self._bytes.items() if client == client_id and count
            }

    def forget(self) -> None:
        with self._lock:
            self._bytes.clear()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Counted where answers leave the Fetch API: of consumers, not of followers."""
    counted = Sent()
    answer: Callable[..., list[Part]] = fetch._Fetch._answer

    def noted(self: Any, found: Any) -> list[Part]:
        if not self.of_replica:
            size = sum(len(fetched.records) for fetched, _ in found)
            counted.note(self.broker.node_id, self.context.client_id or "", size)
        return answer(self, found)

    monkeypatch.setattr(fetch._Fetch, "_answer", noted)
    return counted


@contextmanager
def three_racks(**config: Any) -> Iterator[Cluster]:
    """Broker 0 leads the topic's only partition."""
    settings = {"replica.selector.class": SELECTOR, **config}
    with Cluster(brokers=3, racks=RACKS, config=settings) as cluster:
        cluster.create_topic(TOPIC, replicas=[[0, 1, 2]])
        yield cluster
