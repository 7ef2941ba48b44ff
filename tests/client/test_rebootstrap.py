"""Every broker that a client has heard of is gone, and the bootstrap address leads to new ones: it begins there again (KIP-899)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.client.wire import Wire
from tidelog.client import Consumer, Producer
from tidelog.client.cluster import ClusterClient
from tidelog.client.errors import BrokerUnreachableError
from tidelog.client.settings import ClientSettings
from tidelog.testing import Cluster


async def test_when_all_known_brokers_are_gone_the_bootstrap_servers_are_asked_again(tmp_path: Path) -> None:
    def cluster() -> Cluster:
        """The same data at another address."""
        return Cluster(data_dir=tmp_path, config={"group.initial.rebalance.delay.ms": 0})

    async with cluster() as before, Wire(before.bootstrap_servers) as wire, asyncio.timeout(30):
        servers = str(wire.address)
        async with (
            Producer(servers, linger_ms=0) as producer,
            Consumer(servers, group_id="g", auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer,
        ):
            consumer.subscribe(["t"])
            await producer.send_and_wait("t", b"before")
            assert [record.value for record in await consumer.poll(timeout_ms=10_000)] == [b"before"]
            await asyncio.to_thread(before.stop)
            async with cluster() as after:
                assert after.bootstrap_servers != before_address(consumer)
                wire.lead_to(after.bootstrap_servers)
                assert (await producer.send_and_wait("t", b"after")).offset == 1
                assert [record.value for record in await consumer.poll(timeout_ms=10_000)] == [b"after"]
                await consumer.commit()


def before_address(consumer: Consumer) -> str:
    (broker,) = consumer._cluster.metadata.brokers.values()
    return str(broker.address)


@pytest.mark.parametrize("strategy", ["rebootstrap", "none"])
async def test_the_strategy_says_whether(strategy: str) -> None:
    settings = ClientSettings(
        metadata_recovery_strategy=strategy, retry_backoff_ms=5, retry_backoff_max_ms=20
    )
    async with (
        asyncio.timeout(10),
        Cluster() as before,
        Cluster() as after,
        Wire(before.bootstrap_servers) as wire,
        ClusterClient(str(wire.address), settings) as cluster,
    ):
        gone = before.bootstrap_servers
        await asyncio.to_thread(before.stop)
        wire.lead_to(after.bootstrap_servers)
        ask = cluster.retrying(lambda: cluster.refresh_metadata([]), timeout_ms=300)
        if strategy == "none":
            with pytest.raises(BrokerUnreachableError, match=gone):
                await ask
        else:
            (broker,) = (await ask).brokers.values()
            assert str(broker.address) == after.bootstrap_servers
