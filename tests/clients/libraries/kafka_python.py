"""kafka-python: the pure Python client."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from tests.clients.libraries.base import BATCH_BYTES, READ_SECONDS_MAX, Library
from tests.clients.rows import Row


class KafkaPythonLibrary(Library):
    name = "kafka-python"

    def rows(self, count: int, *, seed: int) -> list[Row]:
        """Null headers it can read but refuses to send."""
        return [
            row._replace(headers=tuple((name, value or b"") for name, value in row.headers))
            for row in super().rows(count, seed=seed)
        ]

    def create_topic(self, bootstrap: str, topic: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
        finally:
            admin.close()

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], *, codec: str, acks: str) -> None:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks=acks if acks == "all" else int(acks),
            compression_type=None if codec == "none" else codec,
            batch_size=BATCH_BYTES,
            linger_ms=5,
            max_in_flight_requests_per_connection=5 if acks == "all" else 1,
            enable_idempotence=acks == "all",
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=row.value,
                    key=row.key,
                    headers=list(row.headers),
                    partition=0,
                    timestamp_ms=row.timestamp_ms,
                )
                for row in rows
            ]
            producer.flush(READ_SECONDS_MAX)
            for future in futures:
                future.get(0)
        finally:
            producer.close()

    def read(self, bootstrap: str, topic: str, *, start: int, count: int) -> list[Row]:
        where = TopicPartition(topic, 0)
        with _Reader(bootstrap, where) as consumer:
            if start:
                consumer.seek(where, start)
            else:
                consumer.seek_to_beginning(where)
            return _collect(consumer, count)

    def read_from_time(self, bootstrap: str, topic: str, *, timestamp_ms: int, count: int) -> list[Row]:
        where = TopicPartition(topic, 0)
        with _Reader(bootstrap, where) as consumer:
            consumer.seek(where, consumer.offsets_for_times({where: timestamp_ms})[where].offset)
            return _collect(consumer, count)


class _Reader:
    def __init__(self, bootstrap: str, where: TopicPartition) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_poll_records=5000,
            max_partition_fetch_bytes=4 << 20,
        )
        self._consumer.assign([where])

    def __enter__(self) -> Any:
        return self._consumer

    def __exit__(self, *_exc: object) -> None:
        self._consumer.close()


def _collect(consumer: Any, count: int) -> list[Row]:
    rows: list[Row] = []
    deadline = time.monotonic() + READ_SECONDS_MAX
    while len(rows) < count and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=200).values():
            rows.extend(Row(r.key, r.value, tuple(r.headers), r.timestamp) for r in records)
    return rows
