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


def test_an_answer_that_is_not_taken_costs_nobody_else_theirs() -> None:
    """Whoever asks is called while the connection reads: a bug there must not end it."""
    with Cluster() as cluster:

        async def run() -> None:
            reported: list[BaseException] = []
            asyncio.get_running_loop().set_exception_handler(
                lambda _loop, context: reported.append(context["exception"])
            )
            lost: list[int] = []
            address = parse_address(cluster.bootstrap_servers)
            peers = PeerConnections(lambda _: address, client_id="test", on_lost=lost.append)

            def stumble(_response: Any) -> None:
                raise ZeroDivisionError

            peers.ask(1, DescribeClusterRequest(), stumble, timeout_s=10.0)
            assert await ask(peers, DescribeClusterRequest()) is not None
            assert [type(error) for error in reported] == [ZeroDivisionError]
            assert lost == []
            peers.close()

        asyncio.run(run())


def test_all_who_wait_hear_of_the_end_of_the_connection_and_may_ask_again() -> None:
    async def run() -> None:
        async with Cluster() as cluster:
            address = parse_address(cluster.bootstrap_servers)
            peers = PeerConnections(lambda _: address, client_id="test")
            assert await ask(peers, DescribeClusterRequest()) is not None
            heard: list[Any] = []

            def again(response: Any) -> None:
                heard.append(response)
                if response is None and len(heard) < 4:
                    peers.ask(1, DescribeClusterRequest(), again, timeout_s=10.0)

            for _ in range(2):
                peers.ask(1, DescribeClusterRequest(), again, timeout_s=10.0)
            peers._peers[1]._connection.abort()  # type: ignore[union-attr]
            assert heard == [], "not from within the end of the connection"
            async with asyncio.timeout(30):
                while len(heard) < 4:
                    await asyncio.sleep(0.01)
            assert heard[:2] == [None, None] and None not in heard[2:]
            peers.close()

    asyncio.run(run())
