"""A broker that goes away and comes back: nothing lost, nothing twice, and readers go on where they were."""

from __future__ import annotations

import asyncio

from tidelog.client import Consumer, Producer, TopicPartition
from tidelog.testing import Cluster

COUNT = 1500


def test_producer_and_reader_outlive_a_restart() -> None:
    got: list[bytes | None] = []

    async def follow(bootstrap: str) -> None:
        async with Consumer(bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=100) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            while len(got) < COUNT:
                got.extend(record.value for record in await consumer.poll())

    async def main(broker: Cluster) -> None:
        async with asyncio.timeout(60), Producer(broker.bootstrap_servers, batch_size=2_000) as producer:
            reader = asyncio.create_task(follow(broker.bootstrap_servers))
            restart: asyncio.Future[None] | None = None
            for number in range(COUNT):
                delivery = await producer.send("t", b"%d" % number)
                if number % 100 == 0:
                    await delivery  # so that there is something to send before, while and after it is away
                if number == COUNT // 3:
                    restart = asyncio.get_running_loop().run_in_executor(None, broker.restart)
            await producer.flush()
            assert restart is not None
            await restart
            await reader

    with Cluster(topics={"t": 1}) as broker:
        asyncio.run(main(broker))
    assert got == [b"%d" % number for number in range(COUNT)]
