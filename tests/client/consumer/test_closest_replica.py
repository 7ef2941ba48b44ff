"""`client.rack`: a leader may send a consumer to a replica nearer to it (KIP-392), and takes it back when that one cannot serve."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.client.consumer.scripted_cluster import TP, ScriptedCluster, until
from tidelog.client import Consumer
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import FetchResponse

RACKS = {"east": 0, "west": 1}
LEADER, NEAR = 0, 1


class RackedCluster(ScriptedCluster):
    """The leader serves whoever is in its own rack, or in none, and sends others to theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.served: list[tuple[int, int]] = []
        """(node, offset) of each fetch that got records."""
        self.near_end: int | None = None
        """Where the follower's log ends, if it is behind."""

    def _code(self, node: int, key: ApiKey) -> ErrorCode:
        return ErrorCode.NONE if key == ApiKey.FETCH and node == NEAR else super()._code(node, key)

    async def _fetch(self, node: int, body: Any, code: ErrorCode) -> FetchResponse:
        response = await super()._fetch(node, body, code)
        (data,) = response.responses[0].partitions
        offset = body.topics[0].partitions[0].fetch_offset if body.topics else -1
        if (
            node == LEADER
            and RACKS.get(body.rack_id) == NEAR
            and NEAR in self.ports
            and self._near_has(offset)
        ):
            data.records, data.preferred_read_replica = b"", NEAR
        elif node == NEAR and not self._near_has(offset):
            data.records, data.error_code = b"", ErrorCode.OFFSET_OUT_OF_RANGE
        if data.records:
            self.served.append((node, offset))
        return response

    def _near_has(self, offset: int) -> bool:
        return self.near_end is None or offset <= self.near_end


@pytest.fixture
async def cluster() -> AsyncIterator[RackedCluster]:
    async with RackedCluster() as cluster:
        yield cluster


def consumer_in(rack: str, cluster: RackedCluster, **options: Any) -> Consumer:
    return Consumer(
        cluster.bootstrap,
        client_rack=rack,
        auto_offset_reset="earliest",
        retry_backoff_ms=5,
        retry_backoff_max_ms=20,
        **options,
    )


async def read(consumer: Consumer) -> list[bytes | None]:
    return [record.value for record in await consumer.poll(timeout_ms=5_000)]


async def test_records_come_from_the_replica_in_the_same_rack(cluster: RackedCluster) -> None:
    cluster.write(b"0", b"1")
    async with consumer_in("west", cluster) as consumer:
        consumer.assign([TP])
        assert await read(consumer) == [b"0", b"1"]
        cluster.write(b"2")
        assert await read(consumer) == [b"2"]
    assert cluster.served == [(NEAR, 0), (NEAR, 2)]
    async with consumer_in("east", cluster) as consumer:
        consumer.assign([TP])
        assert len(await read(consumer)) == 3
    assert cluster.served[2:] == [(LEADER, 0)]


async def test_a_replica_that_is_behind_sends_nobody_back_to_the_beginning(cluster: RackedCluster) -> None:
    async with consumer_in("west", cluster) as consumer:
        consumer.assign([TP])
        cluster.write(b"0", b"1")
        assert await read(consumer) == [b"0", b"1"]
        cluster.near_end = 1
        cluster.write(b"2")
        assert await read(consumer) == [b"2"], "the leader has it"
        assert cluster.served[-1] == (LEADER, 2)


async def test_a_replica_that_is_gone_is_done_without(cluster: RackedCluster) -> None:
    async with consumer_in("west", cluster) as consumer:
        consumer.assign([TP])
        cluster.write(b"0")
        assert await read(consumer) == [b"0"]
        cluster.die(NEAR)
        del cluster.ports[NEAR]
        cluster.write(b"1")
        assert await read(consumer) == [b"1"]
        assert cluster.served[-1] == (LEADER, 1)


@pytest.mark.parametrize("trouble", ["dead", "silent"])
async def test_a_replica_that_its_leader_still_names_is_done_without(
    cluster: RackedCluster, trouble: str
) -> None:
    async with consumer_in("west", cluster, request_timeout_ms=200, fetch_max_wait_ms=50) as consumer:
        consumer.assign([TP])
        cluster.write(b"0")
        assert await read(consumer) == [b"0"]
        if trouble == "dead":
            cluster.die(NEAR)
        else:
            cluster.silent.add(NEAR)
        cluster.write(b"1")
        assert await read(consumer) == [b"1"]
        cluster.write(b"2")
        assert await read(consumer) == [b"2"]
        assert cluster.served[-2:] == [(LEADER, 1), (LEADER, 2)]


async def test_a_replica_that_is_back_is_read_from_again(cluster: RackedCluster) -> None:
    async with consumer_in("west", cluster, metadata_max_age_ms=200) as consumer:
        consumer.assign([TP])
        cluster.die(NEAR)
        cluster.write(b"0")
        assert await read(consumer) == [b"0"]
        assert cluster.served == [(LEADER, 0)]
        await cluster.revive(NEAR)
        await until(lambda: (NEAR, ApiKey.FETCH) in cluster.asked)
        cluster.write(b"1")
        assert await read(consumer) == [b"1"]
        assert cluster.served[-1] == (NEAR, 1)


async def test_after_a_while_the_leader_is_asked_whether_it_is_still_the_nearest(
    cluster: RackedCluster,
) -> None:
    async with consumer_in("west", cluster, metadata_max_age_ms=100) as consumer:
        consumer.assign([TP])
        cluster.write(b"0")
        assert await read(consumer) == [b"0"]
        asked = cluster.asked.count((LEADER, ApiKey.FETCH))
        await until(lambda: cluster.asked.count((LEADER, ApiKey.FETCH)) > asked)
