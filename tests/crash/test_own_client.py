"""Our own producers and consumer while the broker is killed: acknowledged means stored, once, in order, where it was said; a group reads all of it."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tidelog.client import Consumer, NewTopic, Producer, RecordMetadata, TopicPartition, blocking
from tidelog.client.errors import ClientError, DeliveryTimedOutError
from tools.peers.process import Peer

CYCLES = int(os.environ.get("TIDELOG_CRASH_CYCLES", "5"))
TOPIC = "crash"
PARTITIONS = 4
QUICK: dict[str, Any] = {"linger_ms": 1, "batch_size": 2_000, "retry_backoff_max_ms": 200}
PATIENT: dict[str, Any] = {**QUICK, "request_timeout_ms": 5_000}
IMPATIENT: dict[str, Any] = {**QUICK, "request_timeout_ms": 300, "delivery_timeout_ms": 500}


class Writer:
    """Numbers its records, and notes what became of each."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent = 0
        self.places: dict[int, tuple[int, int]] = {}
        self.failed: dict[int, ClientError] = {}

    def next_value(self) -> tuple[int, bytes]:
        number, self.sent = self.sent, self.sent + 1
        return number, f"{self.name}:{number}".encode()

    def note(self, number: int, result: RecordMetadata | BaseException) -> None:
        if isinstance(result, ClientError):
            self.failed[number] = result
        else:
            assert isinstance(result, RecordMetadata), result
            self.places[number] = (result.partition, result.offset)


async def write(bootstrap: str, writer: Writer, stop: threading.Event, **options: Any) -> None:
    async with Producer(bootstrap, **options) as producer:
        waiting = set[asyncio.Task[None]]()

        async def note(number: int, delivery: Any) -> None:
            try:
                writer.note(number, await delivery)
            except ClientError as error:
                writer.note(number, error)

        while not stop.is_set():
            for _ in range(10):
                number, value = writer.next_value()
                delivery = await producer.send(TOPIC, value, partition=number % PARTITIONS)
                task = asyncio.create_task(note(number, delivery))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            await asyncio.sleep(0.01)
        await asyncio.gather(*waiting)


def write_blocking(bootstrap: str, writer: Writer, stop: threading.Event) -> None:
    with blocking.Producer(bootstrap, **PATIENT) as producer:
        deliveries = []
        while not stop.is_set():
            for _ in range(10):
                number, value = writer.next_value()
                deliveries.append((number, producer.send(TOPIC, value, partition=number % PARTITIONS)))
            time.sleep(0.01)
        for number, delivery in deliveries:
            writer.note(number, delivery.result(timeout=60))


async def read_in_a_group(
    bootstrap: str, protocol: str, seen: Counter[bytes], is_over: Callable[[], bool]
) -> None:
    """With commits by hand; one that fails is covered by the next."""
    async with Consumer(
        bootstrap,
        group_id=f"readers-{protocol}",
        group_protocol=protocol,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
    ) as consumer:
        consumer.subscribe([TOPIC])
        while not is_over():
            records = await consumer.poll(timeout_ms=200)
            seen.update(record.value or b"" for record in records)
            if records:
                with suppress(ClientError):
                    await consumer.commit()


async def stored(bootstrap: str) -> dict[int, list[tuple[int, bytes]]]:
    """(offset, value) of everything, by partition."""
    found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer, asyncio.timeout(30):
        tps = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        ends = await consumer.end_offsets(tps)
        consumer.assign(tps)
        while any([await consumer.position(tp) < ends[tp] for tp in tps]):
            for record in await consumer.poll():
                found[record.partition].append((record.offset, record.value or b""))
    return found


@pytest.mark.slow
@pytest.mark.timeout(CYCLES * 60 + 120)
def test_what_our_producers_acknowledge_survives_kill_9(make_broker: Callable[[str], Peer]) -> None:
    broker = make_broker("fsync")
    broker.start()
    with blocking.Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, {"segment.bytes": str(1 << 20)})])
    chance = random.Random(int(os.environ.get("TIDELOG_CRASH_SEED", random.randrange(1 << 32))))
    patient, plain, impatient = writers = [Writer("patient"), Writer("blocking"), Writer("impatient")]
    seen: dict[str, Counter[bytes]] = {"classic": Counter(), "consumer": Counter()}
    stop = threading.Event()
    expected: set[bytes] | None = None

    async def main() -> dict[int, list[tuple[int, bytes]]]:
        nonlocal expected
        writing = [
            asyncio.create_task(write(broker.bootstrap, patient, stop, **PATIENT)),
            asyncio.create_task(asyncio.to_thread(write_blocking, broker.bootstrap, plain, stop)),
            asyncio.create_task(write(broker.bootstrap, impatient, stop, **IMPATIENT)),
        ]
        reading = [
            asyncio.create_task(
                read_in_a_group(
                    broker.bootstrap,
                    protocol,
                    got,
                    lambda got=got: expected is not None and expected <= got.keys(),
                )
            )
            for protocol, got in seen.items()
        ]
        try:
            for _ in range(CYCLES):
                await asyncio.sleep(chance.uniform(0.1, 1.0))
                await asyncio.to_thread(broker.kill)
                await asyncio.sleep(0.7)  # too long for the impatient one
                await asyncio.to_thread(broker.start)
            await asyncio.sleep(0.3)
            stop.set()
            await asyncio.gather(*writing)
            found = await stored(broker.bootstrap)
            expected = {value for records in found.values() for _, value in records}
            async with asyncio.timeout(30):
                await asyncio.gather(*reading)
            return found
        finally:
            stop.set()
            for task in reading:
                task.cancel()

    found = asyncio.run(main())
    for writer in (patient, plain):
        assert not writer.failed and len(writer.places) == writer.sent > 20
    assert impatient.failed and impatient.places
    assert all(isinstance(error, DeliveryTimedOutError) for error in impatient.failed.values())

    place_of = {value: (number, offset) for number, records in found.items() for offset, value in records}
    assert len(place_of) == sum(map(len, found.values())), "nothing is stored twice, acknowledged or not"
    for writer in writers:
        for number, place in writer.places.items():
            assert place_of.get(f"{writer.name}:{number}".encode()) == place, "it is where it was said to be"
        for records in found.values():
            numbers = [int(v.split(b":")[1]) for _, v in records if v.startswith(writer.name.encode())]
            assert numbers == sorted(numbers), f"{writer.name}: in the order in which it was sent"
    for protocol, got in seen.items():
        assert got == Counter(place_of.keys()), (
            f"{protocol}: a group reads all of it, once, as it was never left"
        )
