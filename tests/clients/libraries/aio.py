"""aiokafka: the asyncio client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.clients.libraries.base import BATCH_BYTES, READ_SECONDS_MAX, Library
from tests.clients.rows import Row


class AiokafkaLibrary(Library):
    name = "aiokafka"

    def create_topic(self, bootstrap: str, topic: str) -> None:
        asyncio.run(_create_topic(bootstrap, topic))

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], *, codec: str, acks: str) -> None:
        asyncio.run(_write(bootstrap, topic, rows, codec, acks))

    def read(self, bootstrap: str, topic: str, *, start: int, count: int) -> list[Row]:
        return asyncio.run(_read(bootstrap, topic, start, None, count))

    def read_from_time(self, bootstrap: str, topic: str, *, timestamp_ms: int, count: int) -> list[Row]:
        return asyncio.run(_read(bootstrap, topic, 0, timestamp_ms, count))


async def _create_topic(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
        assert [error[1] for error in answer.topic_errors] == [0], answer
    finally:
        await admin.close()


async def _write(bootstrap: str, topic: str, rows: Sequence[Row], codec: str, acks: str) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks=acks if acks == "all" else int(acks),
        compression_type=None if codec == "none" else codec,
        max_batch_size=BATCH_BYTES,
        linger_ms=5,
        enable_idempotence=acks == "all",
    )
    await producer.start()
    try:
        sent = [
            await producer.send(
                topic,
                value=row.value,
                key=row.key,
                headers=list(row.headers),
                partition=0,
                timestamp_ms=row.timestamp_ms,
            )
            for row in rows
        ]
        await asyncio.wait_for(producer.flush(), READ_SECONDS_MAX)
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


async def _read(bootstrap: str, topic: str, start: int, timestamp_ms: int | None, count: int) -> list[Row]:
    where = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        max_partition_fetch_bytes=4 << 20,
    )
    consumer.assign([where])
    await consumer.start()
    try:
        if timestamp_ms is not None:
            start = (await consumer.offsets_for_times({where: timestamp_ms}))[where].offset
        if start:
            consumer.seek(where, start)
        else:
            await consumer.seek_to_beginning(where)
        rows: list[Row] = []
        deadline = time.monotonic() + READ_SECONDS_MAX
        while len(rows) < count and time.monotonic() < deadline:
            for records in (await consumer.getmany(where, timeout_ms=200)).values():
                rows.extend(Row(r.key, r.value, tuple(r.headers), r.timestamp) for r in records)
        return rows
    finally:
        await consumer.stop()
