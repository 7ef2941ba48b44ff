"""Our own producer and consumer while the broker is killed: acknowledged means stored, once, in order; a group goes on where it was."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.crash.conftest import create_topic
from tidelog.client import Consumer, Producer, TopicPartition
from tidelog.client.errors import ClientError
from tools.peers.process import Peer

CYCLES = int(os.environ.get("TIDELOG_CRASH_CYCLES", "5"))
TOPIC = "crash"


@pytest.mark.slow
@pytest.mark.timeout(CYCLES * 60 + 120)
def test_what_our_producer_acknowledges_survives_kill_9(make_broker: Callable[[str], Peer]) -> None:
    broker = make_broker("fsync")
    broker.start()
    create_topic(broker, TOPIC)
    chance = random.Random(int(os.environ.get("TIDELOG_CRASH_SEED", random.randrange(1 << 32))))
    acknowledged: dict[int, list[tuple[int, int]]] = {}
    failed: list[ClientError] = []
    stop = asyncio.Event()

    async def produce() -> int:
        async with Producer(broker.bootstrap, linger_ms=1, batch_size=4_000) as producer:
            number, waiting = 0, set[asyncio.Task[None]]()

            async def note(number: int, delivery: object) -> None:
                try:
                    place = await delivery  # type: ignore[misc]
                    acknowledged.setdefault(place.partition, []).append((place.offset, number))
                except ClientError as error:
                    failed.append(error)

            while not stop.is_set():
                for _ in range(20):
                    task = asyncio.create_task(note(number, await producer.send(TOPIC, b"%d" % number)))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                    number += 1
                await asyncio.sleep(0.005)
            await producer.flush()
            await asyncio.gather(*waiting)
            return number

    async def consume(end: Callable[[], int | None]) -> list[int]:
        """In a group, with commits by hand; what was committed is never read again."""
        got: list[int] = []
        async with Consumer(
            broker.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        ) as consumer:
            consumer.subscribe([TOPIC])
            while (last := end()) is None or len(got) < last:
                records = await consumer.poll(timeout_ms=200)
                got += [int(record.value or b"") for record in records]
                if records:
                    with suppress(ClientError):  # the next one covers it
                        await consumer.commit()
        return got

    async def main() -> tuple[int, list[int]]:
        sent: int | None = None
        producing = asyncio.create_task(produce())
        consuming = asyncio.create_task(consume(lambda: sent))
        for _ in range(CYCLES):
            await asyncio.sleep(chance.uniform(0.05, 1.0))
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        stop.set()
        sent = await producing
        async with asyncio.timeout(60):
            return sent, await consuming

    sent, got = asyncio.run(main())
    assert not failed, failed[0]
    assert sent > 20 and sum(map(len, acknowledged.values())) == sent

    async def stored() -> dict[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        async with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign(TopicPartition(TOPIC, p) for p in await consumer.partitions_for(TOPIC))
            deadline = time.monotonic() + 30
            while sum(map(len, found.values())) < sent and time.monotonic() < deadline:
                for record in await consumer.poll():
                    found.setdefault(record.partition, []).append((record.offset, int(record.value or b"")))
            assert await consumer.poll(timeout_ms=200) == []
        return found

    found = asyncio.run(stored())
    assert {p: sorted(places) for p, places in acknowledged.items()} == found, (
        "acknowledged is stored, where it was said to be, once"
    )
    for places in found.values():
        assert [n for _, n in places] == sorted(n for _, n in places), "in order"
    assert sorted(got) == list(range(sent)), (
        "a group reads all of it, once: every commit was acknowledged or repeated"
    )
