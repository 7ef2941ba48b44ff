"""The example's generator against a real broker: all of it arrives, where its key belongs and with the time it happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from examples.food_delivery.events import Event, events
from examples.food_delivery.generate import AHEAD_MS, send
from examples.food_delivery.topics import TOPICS, create_topics
from tidelog.client import Consumer, TopicPartition
from tidelog.testing import Cluster


async def test_every_record_arrives_once_and_those_of_a_key_in_order(cluster: Cluster) -> None:
    brokers = cluster.bootstrap_servers
    assert await create_topics(brokers) == [name for name, _, _ in TOPICS]
    assert await create_topics(brokers) == []
    happened = list(events(3, 20.0, int(time.time() * 1000) - 600_000, orders=300))
    assert await send(brokers, happened) == len(happened)
    found = await read(brokers, len(happened))
    assert sorted(found, key=str) == sorted(happened, key=str)
    assert by_key(found) == by_key(happened)


async def test_paced_ones_wait_for_their_time_and_end_when_told(cluster: Cluster) -> None:
    stop = asyncio.Event()
    taken: list[Event] = []
    early: list[Event] = []

    def watched() -> Iterator[Event]:
        for event in events(1, 50.0, int(time.time() * 1000)):
            if len(taken) == 50:
                stop.set()
            yield event
            # It was sent when the next one is asked for.
            taken.append(event)
            if time.time() * 1000 < event.at_ms - AHEAD_MS:
                early.append(event)

    sent = await send(cluster.bootstrap_servers, watched(), stop=stop, is_paced=True)
    assert sent == len(taken) == 50 and not early


def by_key(records: list[Event]) -> dict[tuple[str, bytes], list[Event]]:
    found: dict[tuple[str, bytes], list[Event]] = {}
    for each in records:
        found.setdefault((each.topic, each.key), []).append(each)
    return found


async def read(brokers: str, count: int) -> list[Event]:
    found: list[Event] = []
    async with Consumer(brokers, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign(
            [TopicPartition(name, number) for name, partitions, _ in TOPICS for number in range(partitions)]
        )
        while len(found) < count:
            for record in await consumer.poll(timeout_ms=5_000):
                assert record.key is not None
                found.append(Event(record.timestamp_ms, record.topic, record.key, record.value))
    return found
