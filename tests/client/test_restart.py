"""A broker that goes away and comes back: nothing lost, nothing twice, and readers go on where they were."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from tidelog.client.admin import Admin, NewTopic
from tidelog.client.cluster import ClusterClient
from tidelog.client.fetch import Fetcher, FetchSettings, records_of
from tidelog.client.metadata import TopicPartition
from tidelog.client.produce import BatchProducer, OutgoingRecord
from tidelog.testing import Cluster

COUNT = 1500


def test_producer_and_reader_outlive_a_restart() -> None:
    tp = TopicPartition("t", 0)
    got: list[bytes | None] = []

    async def follow(bootstrap: str) -> None:
        async with ClusterClient(bootstrap) as cluster:
            fetcher = Fetcher(cluster, {tp: 0}, FetchSettings(fetch_max_wait_ms=100), end_offsets={tp: COUNT})
            async with aclosing(fetcher.runs()) as runs:
                async for run in runs:
                    got.extend(record.value for record in records_of(run))

    async def main(broker: Cluster) -> None:
        async with asyncio.timeout(60), ClusterClient(broker.bootstrap_servers) as cluster:
            await Admin(cluster).create_topics([NewTopic("t", 1)])
            reader = asyncio.create_task(follow(broker.bootstrap_servers))
            producer = BatchProducer(cluster, await cluster.topic("t", expected=True), batch_bytes=2_000)
            await producer.start()
            restart: asyncio.Future[None] | None = None
            for number in range(COUNT):
                await producer.append(OutgoingRecord(1, None, b"%d" % number))
                if number == COUNT // 3:
                    restart = asyncio.get_running_loop().run_in_executor(None, broker.restart)
            await producer.flush()
            assert restart is not None
            await restart
            await reader

    with Cluster() as broker:
        asyncio.run(main(broker))
    assert got == [b"%d" % number for number in range(COUNT)]
