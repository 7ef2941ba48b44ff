"""Requests to other nodes: whoever asks is answered once, with a response or with None, and in time."""

from __future__ import annotations

import asyncio
from typing import Any

from tidelog.broker.peers import PeerConnections
from tidelog.client.addresses import parse_address
from tidelog.testing import Cluster
from tidelog.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tidelog.wire.messages.vote import VoteRequest
from tools.peers.process import free_port


async def ask(peers: PeerConnections, request: Any, *, timeout_s: float = 10.0) -> Any:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    peers.ask(1, request, answer.set_result, timeout_s=timeout_s)
    return await asyncio.wait_for(answer, 30)


def test_a_request_is_answered_and_so_is_one_that_the_other_does_not_know() -> None:
    with Cluster() as cluster:

        async def run() -> None:
            peers = PeerConnections(lambda _: parse_address(cluster.bootstrap_servers), client_id="test")
            response = await ask(peers, DescribeClusterRequest())
            assert isinstance(response, DescribeClusterResponse)
            assert await ask(peers, VoteRequest()) is None  # no client's business
            peers.close()

        asyncio.run(run())


def test_a_node_that_is_not_there_is_told_of_and_found_when_it_comes() -> None:
    port = free_port()

    async def run() -> None:
        lost: list[int] = []
        peers = PeerConnections(
            lambda _: parse_address(f"127.0.0.1:{port}"), client_id="test", on_lost=lost.append
        )
        assert await ask(peers, DescribeClusterRequest()) is None
        assert lost == [1]
        async with Cluster(port=port):
            assert await ask(peers, DescribeClusterRequest()) is not None
        assert await ask(peers, DescribeClusterRequest()) is None
        peers.close()

    asyncio.run(run())


def test_the_end_of_a_connection_is_told_although_nobody_waits_for_an_answer() -> None:
    async def run() -> None:
        lost: list[int] = []
        async with Cluster() as cluster:
            address = parse_address(cluster.bootstrap_servers)
            peers = PeerConnections(lambda _: address, client_id="test", on_lost=lost.append)
            await ask(peers, DescribeClusterRequest())
            assert lost == []
        async with asyncio.timeout(30):
            while not lost:
                await asyncio.sleep(0.01)
        peers.close()
        assert lost == [1]

    asyncio.run(run())


def test_a_node_that_accepts_and_says_nothing_costs_no_more_than_the_time_of_a_request() -> None:
    async def run() -> None:
        silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        peers = PeerConnections(lambda _: parse_address(f"127.0.0.1:{port}"), client_id="test")
        began = asyncio.get_running_loop().time()
        assert await ask(peers, DescribeClusterRequest(), timeout_s=0.3) is None
        assert asyncio.get_running_loop().time() - began < 2.5
        peers.close()
        silent.close()

    asyncio.run(run())


def test_nobody_knows_where_it_is() -> None:
    async def run() -> None:
        peers = PeerConnections(lambda _: None, client_id="test")
        assert await ask(peers, DescribeClusterRequest()) is None

    asyncio.run(run())
