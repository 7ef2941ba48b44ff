"""Producers that go on through crashes and remember what was acknowledged, and the reader that holds them to it."""

from __future__ import annotations

import itertools
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tools.peers.raw import RawConnection

QUEUE_MAX = 2000  # records on their way at any time; bounds what a crash can leave undecided
READ_SECONDS_MAX = 60.0
BURST = 20
PAUSE_SECONDS = 0.004
PADDING_BYTES = 200


@dataclass(slots=True)
class Acknowledged:
    """What one producer was told: number of the record to the offset it got (-1: acknowledged without one)."""

    offsets: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)


class Load:
    """One producer thread: numbered records to one partition until stopped.

    With `acks="all"` it is idempotent and retries for ever: every record ends up once. With `acks="1"` it never
    retries, so that a record may be missing only if its delivery was reported as failed.
    """

    def __init__(
        self, bootstrap: str, topic: str, *, name: str, acks: str, padding: int = PADDING_BYTES
    ) -> None:
        self.name = name
        self._padding = os.urandom(padding)
        self.topic = topic
        self.acknowledged = Acknowledged()
        self.sent = 0
        self.fatal: KafkaError | None = None
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "linger.ms": 1,
            "batch.num.messages": 100,
            "queue.buffering.max.messages": QUEUE_MAX,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "message.timeout.ms": 120_000,
            "error_cb": self._on_error,
            "log_level": 0,
        }
        settings |= {"enable.idempotence": True} if acks == "all" else {"retries": 0}
        self._producer = Producer(settings)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load-{name}")

    def start(self) -> None:
        self._thread.start()

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal = error

    def _run(self) -> None:
        while not self._stopping.is_set():
            number = self.sent
            try:
                self._producer.produce(
                    self.topic,
                    b"%s %d %s" % (self.name.encode(), number, self._padding),
                    partition=0,
                    on_delivery=lambda error, message, number=number: self._delivered(number, error, message),
                )
                self.sent += 1
            except BufferError:
                self._producer.poll(0.01)
            self._producer.poll(0)
            # Some 5,000 records a second: the log stays short enough to be read again and again.
            if number % BURST == 0:
                self._stopping.wait(PAUSE_SECONDS)

    def _delivered(self, number: int, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged.offsets[number] = message.offset()
        else:
            self.acknowledged.failed.add(number)

    def stop(self) -> None:
        """Stop sending and wait until every record is acknowledged or has failed."""
        self._stopping.set()
        self._thread.join()
        left = self._producer.flush(READ_SECONDS_MAX)
        assert left == 0, f"{self.name}: {left} records neither acknowledged nor failed"

    def abandon(self) -> None:
        """Stop sending; whatever is on its way is forgotten."""
        self._stopping.set()
        self._thread.join()
        self._producer.purge()


def wait_for_leader(bootstrap: str, topic: str, seconds: float = 30.0) -> None:
    """A restarted broker may answer that it does not lead yet: a client retries that, and so do we."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with RawConnection(bootstrap) as connection:
                connection.list_offset(topic, -1)
                return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def read_everything(bootstrap: str, topic: str) -> list[tuple[int, str, int]]:
    """Every record of the partition: (offset, producer, number)."""
    wait_for_leader(bootstrap, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "crash-check",
            "enable.auto.commit": False,
            "check.crcs": True,
            "auto.offset.reset": "error",
        }
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        assert low == 0, f"the log of {topic} starts at {low}: records at its beginning are gone"
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[tuple[int, str, int]] = []
        deadline = time.monotonic() + READ_SECONDS_MAX
        while (found[-1][0] + 1 if found else 0) < high:
            assert time.monotonic() < deadline, (
                f"{topic}: read {len(found)} records of {high} in {READ_SECONDS_MAX} s"
            )
            for message in consumer.consume(5000, timeout=0.2):
                if message.error():
                    raise KafkaException(message.error())
                name, number, _padding = message.value().split(b" ", 2)
                found.append((message.offset(), name.decode(), int(number)))
        return found
    finally:
        consumer.close()


def check(loads: list[Load], found: list[tuple[int, str, int]]) -> None:
    """Every acknowledged record is there, once, in order, and at the offset its acknowledgement named."""
    assert [offset for offset, _, _ in found] == list(range(len(found))), "offsets have gaps or repeat"
    for load in loads:
        own = [(number, offset) for offset, name, number in found if name == load.name]
        numbers = [number for number, _ in own]
        out_of_order = [(a, b) for a, b in itertools.pairwise(numbers) if a >= b]
        assert not out_of_order, f"{load.name}: repeated or out of order: {out_of_order[:5]}"
        stored = dict(own)
        acknowledged = dict(load.acknowledged.offsets)
        missing = sorted(acknowledged.keys() - stored.keys())
        assert not missing, f"{load.name}: {len(missing)} acknowledged records are gone, first {missing[:5]}"
        moved = [
            (number, offset, stored[number])
            for number, offset in acknowledged.items()
            if offset >= 0 and stored[number] != offset
        ]
        assert not moved, f"{load.name}: acknowledged at one offset, found at another: {moved[:5]}"
