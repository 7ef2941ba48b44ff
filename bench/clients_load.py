"""One client, one kind of load, in a process of its own: prints records, seconds and processor seconds as JSON.

    python -m bench.clients_load CLIENT produce|consume SERVERS TOPIC COUNT BYTES

All with the same settings: acks=all, idempotent where the client can, batches of 256 KiB and 5 ms at most, no compression; consumers read one
partition from its beginning, record by record, and touch each value.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

BATCH_BYTES = 256 * 1024
LINGER_MS = 5
FETCH_BYTES = 4 << 20
"""Of one partition in one answer, for the two that read in bulk; the others have their defaults, which are 1 MiB."""
RECEIVING_SECONDS = 2.0


def measured(work: Callable[[Callable[[], None]], int]) -> None:
    """`work` calls back when it has connected and begins; it returns how many records it moved."""
    begun = [0.0, 0.0]

    def begin() -> None:
        begun[:] = [time.perf_counter(), time.process_time()]

    count = work(begin)
    print(
        json.dumps(
            {
                "records": count,
                "seconds": time.perf_counter() - begun[0],
                "cpu_seconds": time.process_time() - begun[1],
            }
        )
    )


# ---- tidelog


def tidelog_produce(servers: str, topic: str, count: int, size: int) -> Callable[[Callable[[], None]], int]:
    from tidelog.client import Producer

    async def run(begin: Callable[[], None]) -> int:
        value = bytes(size)
        async with Producer(servers, batch_size=BATCH_BYTES, linger_ms=LINGER_MS) as producer:
            await producer.send_and_wait(topic, value)
            begin()
            for _ in range(count):
                await producer.send(topic, value)
            await producer.flush()
            return count

    return lambda begin: asyncio.run(run(begin))


def tidelog_consume(servers: str, topic: str, count: int, size: int) -> Callable[[Callable[[], None]], int]:
    from tidelog.client import Consumer, TopicPartition

    async def run(begin: Callable[[], None]) -> int:
        async with Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            begin()
            seen = total = 0
            async for record in consumer:
                total += len(record.value or b"")
                seen += 1
                if seen == count:
                    return seen
        return seen

    return lambda begin: asyncio.run(run(begin))


def blocking_produce(servers: str, topic: str, count: int, size: int) -> Callable[[Callable[[], None]], int]:
    from tidelog.client.blocking import Producer

    def run(begin: Callable[[], None]) -> int:
        value = bytes(size)
        with Producer(servers, batch_size=BATCH_BYTES, linger_ms=LINGER_MS) as producer:
            producer.send_and_wait(topic, value)
            begin()
            for _ in range(count):
                producer.send(topic, value)
            producer.flush()
            return count

    return run


def blocking_consume(servers: str, topic: str, count: int, size: int) -> Callable[[Callable[[], None]], int]:
    from tidelog.client import TopicPartition
    from tidelog.client.blocking import Consumer

    def run(begin: Callable[[], None]) -> int:
        with Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            begin()
            seen = total = 0
            for record in consumer:
                total += len(record.value or b"")
                seen += 1
                if seen == count:
                    break
            return seen

    return run


def arrow_produce(servers: str, topic: str, count: int, size: int) -> Callable[[Callable[[], None]], int]:
    import numpy as np
    import pyarrow as pa

    from tidelog.client import Producer

    async def run(begin: Callable[[], None]) -> int:
        ends = np.arange(count + 1, dtype=np.int32) * size
        data = np.full(
            count * size, ord("x"), np.uint8
        )  # written, as a table is: zeroes come when they are first read
        values = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
        batch = pa.RecordBatch.from_arrays([values], names=["value"])
        async with Producer(servers, linger_ms=LINGER_MS) as producer:
            await (await producer.send_arrow(topic, batch.slice(0, 10)))  # the kernels are loaded
            begin()
            await (await producer.send_arrow(topic, batch))
            return count

    return lambda begin: asyncio.run(run(begin))


def arrow_consume(servers: str, topic: str, count: int, size: int) -> Callable[[Callable[[], None]], int]:
    import pyarrow.compute as pc

    from tidelog.client import Consumer, TopicPartition

    async def run(begin: Callable[[], None]) -> int:
        tp = TopicPartition(topic, 0)
        async with Consumer(
            servers, auto_offset_reset="earliest", max_partition_fetch_bytes=FETCH_BYTES
        ) as consumer:
            consumer.assign([tp])
            while not (await consumer.poll_arrow(columns=("offset", "value"))).num_rows:
                pass  # the kernels are loaded
            consumer.seek_to_beginning()
            begin()
            seen = 0
            while seen < count:
                batch = await consumer.poll_arrow(columns=("offset", "value"))
                pc.sum(pc.binary_length(batch.column(1)))
                seen += batch.num_rows
            return seen

    return lambda begin: asyncio.run(run(begin))


# ---- the others


def confluent_produce(servers: str, topic: str, count: int, size: int) -> Callable[[Callable[[], None]], int]:
    import confluent_kafka

    def run(begin: Callable[[], None]) -> int:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "batch.size": BATCH_BYTES,
                "linger.ms": LINGER_MS,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
            }
        )
        value = bytes(size)
        producer.produce(topic, value)
        producer.flush()
        begin()
        for _ in range(count):
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.flush()
        return count

    return run


def confluent_consume(servers: str, topic: str, count: int, size: int) -> Callable[[Callable[[], None]], int]:
    import confluent_kafka

    def run(begin: Callable[[], None]) -> int:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": FETCH_BYTES,
                # With its defaults it stands still for a second whenever its queue is full.
                "queued.min.messages": 1_000_000,
                "queued.max.messages.kbytes": 1 << 20,
                "fetch.queue.backoff.ms": 1,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        while not consumer.consume(1, 1.0):
            pass  # it has connected, as the one with tables has when it begins
        begin()
        seen = total = 0
        while seen < count - 1:
            for message in consumer.consume(10_000, 1.0):
                total += len(message.value() or b"")
                seen += 1
        consumer.close()
        return seen

    return run


def aiokafka_produce(servers: str, topic: str, count: int, size: int) -> Callable[[Callable[[], None]], int]:
    import aiokafka

    async def run(begin: Callable[[], None]) -> int:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers,
            enable_idempotence=True,
            max_batch_size=BATCH_BYTES,
            linger_ms=LINGER_MS,
        )
        await producer.start()
        value = bytes(size)
        await producer.send_and_wait(topic, value)
        begin()
        for _ in range(count):
            await producer.send(topic, value)
        await producer.flush()
        await producer.stop()
        return count

    return lambda begin: asyncio.run(run(begin))


def aiokafka_consume(servers: str, topic: str, count: int, size: int) -> Callable[[Callable[[], None]], int]:
    import aiokafka

    async def run(begin: Callable[[], None]) -> int:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(topic, 0)])
        begin()
        seen = total = 0
        async for record in consumer:
            total += len(record.value)
            seen += 1
            if seen == count:
                break
        await consumer.stop()
        return seen

    return lambda begin: asyncio.run(run(begin))


def kafka_python_produce(
    servers: str, topic: str, count: int, size: int
) -> Callable[[Callable[[], None]], int]:
    import kafka

    def run(begin: Callable[[], None]) -> int:
        producer = kafka.KafkaProducer(
            bootstrap_servers=servers, acks="all", batch_size=BATCH_BYTES, linger_ms=LINGER_MS
        )
        value = bytes(size)
        producer.send(topic, value).get()
        begin()
        for _ in range(count):
            producer.send(topic, value)
        producer.flush()
        return count

    return run


def kafka_python_consume(
    servers: str, topic: str, count: int, size: int
) -> Callable[[Callable[[], None]], int]:
    import kafka

    def run(begin: Callable[[], None]) -> int:
        consumer = kafka.KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
        consumer.assign([kafka.TopicPartition(topic, 0)])
        begin()
        seen = total = 0
        for record in consumer:
            total += len(record.value)
            seen += 1
            if seen == count:
                break
        consumer.close()
        return seen

    return run


# ---- nobody


def receiving_consume(servers: str, topic: str, count: int, size: int) -> Callable[[Callable[[], None]], int]:
    """Answers are received and nobody looks at them, not even at their checksums: no client can be faster than this."""
    from bench.raw_load import fetch_and_discard

    def run(begin: Callable[[], None]) -> int:
        rate = fetch_and_discard(
            servers,
            topic,
            partitions=1,
            seconds=RECEIVING_SECONDS,
            fetch_bytes=FETCH_BYTES,
            into=memoryview(bytearray(FETCH_BYTES)),
            begin=begin,
        )
        return rate.size // size

    return run


CLIENTS: dict[str, tuple[Any, Any]] = {
    "tidelog": (tidelog_produce, tidelog_consume),
    "tidelog-blocking": (blocking_produce, blocking_consume),
    "tidelog-arrow": (arrow_produce, arrow_consume),
    "confluent-kafka": (confluent_produce, confluent_consume),
    "aiokafka": (aiokafka_produce, aiokafka_consume),
    "kafka-python": (kafka_python_produce, kafka_python_consume),
}
CEILING = "received"


def main() -> None:
    client, direction, servers, topic, count, size = sys.argv[1:]
    work = receiving_consume if client == CEILING else CLIENTS[client][direction == "consume"]
    measured(work(servers, topic, int(count), int(size)))


if __name__ == "__main__":
    main()
