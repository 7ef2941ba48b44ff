"""Brokers that take connections and say nothing, or that are gone before anybody knows who leads in their place."""

from __future__ import annotations

import asyncio
import time

from tests.client.consumer.scripted_cluster import TP, ScriptedCluster
from tidelog.client import Consumer
from tidelog.client.cluster import NEXT_ADDRESS_SECONDS, ClusterClient
from tidelog.client.settings import ClientSettings

QUICK = ClientSettings(retry_backoff_ms=5, retry_backoff_max_ms=20, request_timeout_ms=300)


def leader(cluster: ClusterClient) -> int | None:
    found = cluster.metadata.leader_of(TP)
    return found.leader if found is not None else None


async def test_a_silent_broker_is_passed_over_and_asked_last_from_then_on() -> None:
    async with ScriptedCluster() as brokers:
        brokers.silent.add(0)
        async with ClusterClient(brokers.bootstrap, QUICK) as cluster:
            assert len(cluster.metadata.brokers) == 3
            brokers.die(1)
            await asyncio.sleep(0.05)
            began = time.monotonic()
            await cluster.refresh_metadata([])
            assert time.monotonic() - began < 0.2, "the first one is not waited for again"


async def test_brokers_that_stand_still_are_not_waited_for_until_they_fail() -> None:
    """With everybody's default of half a minute for a request."""
    async with ScriptedCluster() as brokers:
        brokers.silent.update((0, 1))
        began = time.monotonic()
        async with ClusterClient(brokers.bootstrap) as cluster:
            assert time.monotonic() - began < 2 * NEXT_ADDRESS_SECONDS + 1
            began = time.monotonic()
            await cluster.refresh_metadata([])
            assert time.monotonic() - began < 0.5, "they are known by now"
            assert {node for node, _ in brokers.asked} == {0, 1, 2}


async def test_a_broker_that_fell_silent_is_not_tried_first() -> None:
    async with ScriptedCluster() as brokers:
        brokers.silent.update((1, 2))
        async with ClusterClient(brokers.bootstrap, QUICK) as cluster:
            brokers.silent = {0}
            for _ in range(6):
                await cluster.retrying(lambda: cluster.refresh_metadata([]), timeout_ms=2_000)
            assert [node for node, _ in brokers.asked].count(0) == 3, "its connection, and two questions"


async def test_a_broker_that_has_heard_of_no_election_is_not_asked_alone() -> None:
    """Cut off from its controller it answers as readily as the others, with itself as the leader."""
    async with ScriptedCluster() as brokers, ClusterClient(brokers.bootstrap, QUICK) as cluster:
        await cluster.refresh_metadata([TP.topic])
        assert leader(cluster) == 0
        brokers.outdated[0] = (0, 0)
        brokers.elect(1)
        for _ in range(2):
            await cluster.refresh_metadata([TP.topic])
        assert leader(cluster) == 1
        for _ in range(4):
            await cluster.refresh_metadata([TP.topic])
            assert leader(cluster) == 1, "an older epoch is not believed"


async def test_a_new_leader_is_found_while_the_old_one_cannot_be_reached() -> None:
    """The cluster still lists the old one: nobody but a look at the topic tells that it leads no more."""
    async with ScriptedCluster() as brokers:
        brokers.write(b"one")
        async with Consumer(
            brokers.bootstrap, auto_offset_reset="earliest", retry_backoff_ms=5, retry_backoff_max_ms=20
        ) as consumer:
            consumer.assign([TP])
            assert [record.value for record in await consumer.poll(timeout_ms=5_000)] == [b"one"]
            brokers.die(0)
            await asyncio.sleep(0.2)
            brokers.elect(1)
            brokers.write(b"two")
            assert [record.value for record in await consumer.poll(timeout_ms=5_000)] == [b"two"]
