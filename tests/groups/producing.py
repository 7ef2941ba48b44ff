"""A producer that goes on at a steady pace, through restarts too, and remembers when each record was acknowledged."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from confluent_kafka import KafkaError, Producer

from tests.groups.journal import Place

TICK_SECONDS = 0.05
FLUSH_SECONDS_MAX = 60.0


class Steady:
    """Numbered records, to all partitions in turn, by an idempotent producer that retries: each is stored once."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, per_second: int) -> None:
        self.topic = topic
        self.acknowledged: dict[Place, float] = {}
        self.values: set[str] = set()
        """Of all records that were sent. With `stop` behind it, all of them are stored."""
        self._failures: list[KafkaError] = []
        self._partitions = itertools.cycle(range(partitions))
        self._per_tick = max(1, round(per_second * TICK_SECONDS))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady")
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def start(self) -> None:
        self._thread.start()

    def send(self, count: int) -> None:
        """So many at once, and wait for them."""
        for _ in range(count):
            self._send_one()
        self._flush()

    def stop(self) -> None:
        """End, and wait until every record is stored."""
        self._end()
        self._flush()

    def abandon(self) -> None:
        self._end()
        self._producer.purge()

    def _end(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _flush(self) -> None:
        left = self._producer.flush(FLUSH_SECONDS_MAX)
        assert left == 0, f"{left} records are neither stored nor refused"
        assert not self._failures, self._failures[0]

    def _run(self) -> None:
        while not self._stopping.wait(TICK_SECONDS):
            for _ in range(self._per_tick):
                self._send_one()
            self._producer.poll(0)

    def _send_one(self) -> None:
        value = str(len(self.values))
        self._producer.produce(
            self.topic, value.encode(), partition=next(self._partitions), on_delivery=self._delivered
        )
        self.values.add(value)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failures.append(error)
        else:
            self.acknowledged[message.partition(), message.offset()] = time.monotonic()
