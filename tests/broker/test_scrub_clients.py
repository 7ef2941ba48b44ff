"""What real consumers do where a batch is damaged: none of them skips it in silence, and each can be told to go on behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from tidelog.broker import scrubber
from tidelog.records.batch import iter_headers
from tidelog.testing import Cluster

BATCHES = 30
DAMAGED = 4
STUCK_SECONDS = 1.5
PATIENCE_SECONDS = 20.0

# Offsets that a consumer got from 0 on, its position then, and what it got after a seek behind the damage.
Outcome = tuple[list[int], int, list[int]]


@pytest.fixture(scope="module")
def damaged() -> Iterator[str]:
    """The bootstrap servers of a broker that has found a damaged batch in `rotten`."""
    settings = {
        "log.scrub.interval.ms": 50,
        "log.scrub.bytes.per.second": 1 << 30,
        "log.initial.task.delay.ms": 0,
        "durability": "fsync",
    }
    with pytest.MonkeyPatch.context() as patch, Cluster(config=settings) as cluster:
        patch.setattr(scrubber, "LOOK_SECONDS", 0.05)
        cluster.create_topic("rotten", config={"internal.segment.bytes": 4500})
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        for number in range(BATCHES):
            producer.produce("rotten", b"%d " % number * 100)
            assert producer.flush(10) == 0
        path = cluster.data_dir / "rotten-0" / "00000000000000000000.log"
        position, _ = list(iter_headers(path.read_bytes()))[DAMAGED]
        with path.open("r+b") as file:
            file.seek(position + 5)
            file.write(b"\x01")  # its base offset: the CRC stays right, no client could tell
        broker: Any = cluster._running.broker
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not broker.scrubber.summary().damages:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield cluster.bootstrap_servers


def confluent(servers: str) -> Outcome:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "any", "enable.auto.commit": False, "log_level": 0}
    )
    here = confluent_kafka.TopicPartition("rotten", 0, 0)
    consumer.assign([here])
    errors: list[int] = []

    def poll() -> list[int]:
        message = consumer.poll(0.1)
        if message is None:
            return []
        error, offset = message.error(), message.offset()
        if error is not None:
            errors.append(error.code())
            return []
        assert offset is not None
        return [offset]

    before = _collect(poll, STUCK_SECONDS)
    position = consumer.position([here])[0].offset
    consumer.seek(confluent_kafka.TopicPartition("rotten", 0, DAMAGED + 1))
    behind = _collect(poll, PATIENCE_SECONDS, until=BATCHES - 1)
    consumer.close()
    assert 2 in errors, "CORRUPT_MESSAGE reaches the application"
    return before, position, behind


def kafka_python(servers: str) -> Outcome:
    import kafka

    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    here = kafka.TopicPartition("rotten", 0)
    consumer.assign([here])
    consumer.seek(here, 0)
    errors: list[str] = []

    def poll() -> list[int]:
        try:
            return [m.offset for messages in consumer.poll(timeout_ms=100).values() for m in messages]
        except kafka.errors.KafkaError as error:
            errors.append(type(error).__name__)
            return []

    before = _collect(poll, STUCK_SECONDS)
    position = consumer.position(here)
    consumer.seek(here, DAMAGED + 1)
    behind = _collect(poll, PATIENCE_SECONDS, until=BATCHES - 1)
    consumer.close()
    assert "CorruptRecordError" in errors, "it reaches the application"
    return before, position, behind


def aiokafka_(servers: str) -> Outcome:
    """This one tells its log, not the application; it stays where it is."""
    import aiokafka

    async def consume() -> Outcome:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
        await consumer.start()
        here = aiokafka.TopicPartition("rotten", 0)
        consumer.assign([here])
        consumer.seek(here, 0)

        async def collect(seconds: float, until: int | None = None) -> list[int]:
            got: list[int] = []
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and (until is None or until not in got):
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    got += [message.offset for message in messages]
            return got

        before = await collect(STUCK_SECONDS)
        position = await consumer.position(here)
        consumer.seek(here, DAMAGED + 1)
        behind = await collect(PATIENCE_SECONDS, until=BATCHES - 1)
        await consumer.stop()
        return before, position, behind

    return asyncio.run(consume())


def _collect(poll: Callable[[], list[int]], seconds: float, until: int | None = None) -> list[int]:
    got: list[int] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (until is None or until not in got):
        got += poll()
    return got


@pytest.mark.parametrize("client", [confluent, kafka_python, aiokafka_], ids=lambda client: client.__name__)
def test_a_consumer_stops_at_damage_and_goes_on_behind_it_when_told(
    damaged: str, client: Callable[[str], Outcome]
) -> None:
    before, position, behind = client(damaged)
    assert (before, position) == (list(range(DAMAGED)), DAMAGED)
    assert behind == list(range(DAMAGED + 1, BATCHES))
