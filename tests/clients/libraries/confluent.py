"""confluent-kafka: librdkafka, the C client under most languages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.libraries.base import BATCH_BYTES, READ_SECONDS_MAX, Library
from tests.clients.rows import Row


class ConfluentLibrary(Library):
    name = "confluent-kafka"

    def create_topic(self, bootstrap: str, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], *, codec: str, acks: str) -> None:
        failures: list[KafkaError] = []
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": acks,
                "compression.type": codec,
                "batch.size": BATCH_BYTES,
                "linger.ms": 5,
                # One at a time unless the broker must deduplicate: a retry may otherwise change the order.
                "max.in.flight": 5 if acks == "all" else 1,
                "enable.idempotence": acks == "all",
            }
        )

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error)

        for row in rows:
            while True:
                try:
                    producer.produce(
                        topic,
                        value=row.value,
                        key=row.key,
                        partition=0,
                        headers=list(row.headers),
                        timestamp=row.timestamp_ms,
                        on_delivery=delivered,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(READ_SECONDS_MAX) == 0, "records left in the queue"
        assert not failures, failures[0]

    def read(self, bootstrap: str, topic: str, *, start: int, count: int) -> list[Row]:
        where = TopicPartition(topic, 0, start if start else OFFSET_BEGINNING)
        with _Reader(bootstrap) as consumer:
            return _collect(consumer, where, count)

    def read_from_time(self, bootstrap: str, topic: str, *, timestamp_ms: int, count: int) -> list[Row]:
        with _Reader(bootstrap) as consumer:
            (where,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], timeout=30)
            return _collect(consumer, where, count)


class _Reader:
    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "assigned-by-hand",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
            }
        )

    def __enter__(self) -> Any:
        return self._consumer

    def __exit__(self, *_exc: object) -> None:
        self._consumer.close()


def _collect(consumer: Any, where: TopicPartition, count: int) -> list[Row]:
    consumer.assign([where])
    rows: list[Row] = []
    deadline = time.monotonic() + READ_SECONDS_MAX
    while len(rows) < count and time.monotonic() < deadline:
        for message in consumer.consume(5000, timeout=0.2):
            if message.error():
                raise KafkaException(message.error())
            rows.append(
                Row(message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1])
            )
    return rows
