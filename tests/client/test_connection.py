"""One connection, against a scripted broker: order, negotiation, and what every kind of failure says."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tidelog.client.addresses import Address
from tidelog.client.connection import WOKEN_AFTER_BYTES, Connection
from tidelog.client.errors import (
    BrokerError,
    BrokerUnreachableError,
    ConnectionLostError,
    MalformedResponseError,
    RequestTimedOutError,
    UnsupportedRequestError,
)
from tidelog.wire.api import ApiKey, spec
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.headers import encode_response
from tidelog.wire.messages.api_versions import ApiVersionsResponse
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from tidelog.wire.messages.produce import ProduceRequest


async def connect(broker: Any, **options: Any) -> Connection:
    return await Connection.open(Address("127.0.0.1", broker.port), **options)


def test_pipelined_requests_get_their_own_answers(fake_broker: Any, versions: Any) -> None:
    count = 0

    def answer(header: Any, body: Any) -> Any:
        nonlocal count
        if header.api_key == ApiKey.API_VERSIONS:
            return versions(METADATA=(0, 12))
        count += 1
        return MetadataResponse(controller_id=count)

    async def scenario(broker: Any) -> None:
        connection = await connect(broker)
        futures = [connection.send(ApiKey.METADATA, MetadataRequest()) for _ in range(50)]
        assert connection.in_flight == 50
        assert [(await f).controller_id for f in futures] == list(range(1, 51))
        await connection.close()

    broker = fake_broker(answer, scenario)
    ids = [header.correlation_id for header in broker.seen]
    assert ids == sorted(set(ids))
    assert {header.api_version for header in broker.seen[1:]} == {12}


def test_the_highest_common_version_is_spoken(fake_broker: Any, versions: Any) -> None:
    def answer(header: Any, body: Any) -> Any:
        return versions(METADATA=(0, 99), FETCH=(0, 6), PRODUCE=(90, 99), LIST_OFFSETS=(1, 3))

    async def scenario(broker: Any) -> None:
        connection = await connect(broker)
        assert connection.version_for(ApiKey.METADATA) == spec(ApiKey.METADATA).max_version
        assert connection.version_for(ApiKey.FETCH) == 6
        assert connection.version_for(ApiKey.METADATA, at_most=5) == 5
        with pytest.raises(UnsupportedRequestError, match=r"PRODUCE.*90 to 99"):
            connection.version_for(ApiKey.PRODUCE)
        with pytest.raises(UnsupportedRequestError, match="LIST_GROUPS"):
            await connection.request(ApiKey.LIST_GROUPS, ListGroupsRequest())
        with pytest.raises(UnsupportedRequestError, match="LIST_OFFSETS"):
            connection.version_for(ApiKey.LIST_OFFSETS, at_most=0)
        await connection.close()

    fake_broker(answer, scenario)


@pytest.mark.parametrize("lists_itself", [True, False])
def test_a_broker_that_refuses_our_api_versions_is_asked_again_in_its_own(
    fake_broker: Any, versions: Any, lists_itself: bool
) -> None:
    def answer(header: Any, body: Any) -> Any:
        if header.api_version > 2:
            ranges = {"API_VERSIONS": (0, 2)} if lists_itself else {}
            refusal: ApiVersionsResponse = versions(**ranges)
            refusal.error_code = ErrorCode.UNSUPPORTED_VERSION
            return 0, refusal
        return versions(API_VERSIONS=(0, 2), METADATA=(0, 1))

    async def scenario(broker: Any) -> None:
        connection = await connect(broker)
        assert connection.version_for(ApiKey.METADATA) == 1
        await connection.close()

    broker = fake_broker(answer, scenario)
    assert [header.api_version for header in broker.seen] == [
        spec(ApiKey.API_VERSIONS).max_version,
        2 if lists_itself else 0,
    ]


def test_negotiation_error_is_raised(fake_broker: Any, versions: Any) -> None:
    def answer(header: Any, body: Any) -> Any:
        refusal = versions()
        refusal.error_code = ErrorCode.INVALID_REQUEST
        return refusal

    async def scenario(broker: Any) -> None:
        with pytest.raises(BrokerError, match=rf"127.0.0.1:{broker.port}.*INVALID_REQUEST"):
            await connect(broker)

    fake_broker(answer, scenario)


def test_a_silent_broker_times_out_and_the_connection_is_over(fake_broker: Any, versions: Any) -> None:
    def answer(header: Any, body: Any) -> Any:
        return versions(METADATA=(0, 12)) if header.api_key == ApiKey.API_VERSIONS else None

    async def scenario(broker: Any) -> None:
        connection = await connect(broker)
        slow = connection.send(ApiKey.METADATA, MetadataRequest(), timeout_ms=50)
        behind = connection.send(ApiKey.METADATA, MetadataRequest(), timeout_ms=60_000)
        with pytest.raises(RequestTimedOutError, match=rf"127.0.0.1:{broker.port}.*METADATA.*50 ms"):
            await slow
        with pytest.raises(RequestTimedOutError):
            await behind
        assert not connection.is_open
        with pytest.raises(RequestTimedOutError):
            await connection.request(ApiKey.METADATA, MetadataRequest())

    fake_broker(answer, scenario)


def test_a_broker_that_hangs_up_fails_what_is_in_flight(
    fake_broker: Any, versions: Any, hang_up: object
) -> None:
    def answer(header: Any, body: Any) -> Any:
        return versions(METADATA=(0, 12)) if header.api_key == ApiKey.API_VERSIONS else hang_up

    async def scenario(broker: Any) -> None:
        connection = await connect(broker)
        with pytest.raises(ConnectionLostError, match=rf"127.0.0.1:{broker.port}.*METADATA") as raised:
            await connection.request(ApiKey.METADATA, MetadataRequest())
        assert raised.value.retriable

    fake_broker(answer, scenario)


def large_answer(correlation_id: int) -> tuple[bytes, int]:
    """Twice as large as what the kernel collects before it wakes the client, and a bit; and how many topics it names."""
    topics = [MetadataResponseTopic(name="x" * 200 + str(n)) for n in range(2 * WOKEN_AFTER_BYTES // 200)]
    parts = encode_response(ApiKey.METADATA, 12, correlation_id, MetadataResponse(topics=topics))
    return b"".join(map(bytes, parts)), len(topics)


@pytest.mark.parametrize("piece_bytes", [9_000, WOKEN_AFTER_BYTES, WOKEN_AFTER_BYTES + 1, 1 << 20])
def test_a_large_answer_comes_whole_in_pieces_of_any_size_and_small_ones_at_once_after_it(
    fake_broker: Any, versions: Any, piece_bytes: int
) -> None:
    names = 0

    def answer(header: Any, body: Any) -> Any:
        nonlocal names
        if header.api_key == ApiKey.API_VERSIONS:
            return versions(METADATA=(0, 12))
        if names:
            return MetadataResponse(controller_id=7)
        whole, names = large_answer(header.correlation_id)
        return [whole[at : at + piece_bytes] for at in range(0, len(whole), piece_bytes)]

    async def scenario(broker: Any) -> None:
        connection = await connect(broker)
        assert len((await connection.request(ApiKey.METADATA, MetadataRequest())).topics) == names
        assert (await connection.request(ApiKey.METADATA, MetadataRequest())).controller_id == 7
        await connection.close()

    fake_broker(answer, scenario)


def test_a_broker_that_hangs_up_within_a_large_answer_is_noticed_at_once(
    fake_broker: Any, versions: Any, hang_up: object
) -> None:
    def answer(header: Any, body: Any) -> Any:
        if header.api_key == ApiKey.API_VERSIONS:
            return versions(METADATA=(0, 12))
        whole, _ = large_answer(header.correlation_id)
        return [whole[:70_000], whole[70_000:70_001], hang_up]

    async def scenario(broker: Any) -> None:
        connection = await connect(broker)
        with pytest.raises(ConnectionLostError, match="the broker closed it"):
            await connection.request(ApiKey.METADATA, MetadataRequest())

    fake_broker(answer, scenario)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ((8).to_bytes(4, "big") + (999).to_bytes(4, "big") + b"....", "answer 999 came where"),
        ((6).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"\x00\xff", "makes no sense"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP server"),
        (b"\x7f\xff\xff\xff", "at most"),
    ],
)
def test_garbage_is_a_typed_error_that_names_the_broker(
    fake_broker: Any, versions: Any, raw: bytes, says: str
) -> None:
    def answer(header: Any, body: Any) -> Any:
        return versions(METADATA=(0, 12)) if header.api_key == ApiKey.API_VERSIONS else raw

    async def scenario(broker: Any) -> None:
        connection = await connect(broker)
        with pytest.raises(MalformedResponseError, match=says) as raised:
            await connection.request(ApiKey.METADATA, MetadataRequest())
        assert f"127.0.0.1:{broker.port}" in str(raised.value)
        assert not raised.value.retriable

    fake_broker(answer, scenario)


def test_a_wait_that_is_cancelled_does_not_disturb_the_next_answer(fake_broker: Any, versions: Any) -> None:
    count = 0

    def answer(header: Any, body: Any) -> Any:
        nonlocal count
        if header.api_key == ApiKey.API_VERSIONS:
            return versions(METADATA=(0, 12))
        count += 1
        return MetadataResponse(controller_id=count)

    async def scenario(broker: Any) -> None:
        connection = await connect(broker)
        broker.hold = asyncio.Event()
        first = asyncio.create_task(connection.request(ApiKey.METADATA, MetadataRequest()))
        await asyncio.sleep(0)
        first.cancel()
        second = connection.send(ApiKey.METADATA, MetadataRequest())
        broker.hold.set()
        assert (await second).controller_id == 2
        await connection.close()

    fake_broker(answer, scenario)


def test_nothing_is_held_back_for_a_broker_on_this_machine(fake_broker: Any, versions: Any) -> None:
    async def scenario(broker: Any) -> None:
        connection = await connect(broker)
        algorithm = connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert algorithm.rstrip(b"\0") == b"reno"
        await connection.close()

    fake_broker(lambda header, body: versions(), scenario)


def test_unanswered_requests_leave_before_the_connection_closes(fake_broker: Any, versions: Any) -> None:
    received = 0

    def answer(header: Any, body: Any) -> Any:
        nonlocal received
        if header.api_key == ApiKey.API_VERSIONS:
            return versions(PRODUCE=(0, 9))
        received += 1
        return None

    async def scenario(broker: Any) -> None:
        connection = await connect(broker)
        broker.hold = asyncio.Event()
        request = ProduceRequest(acks=0, transactional_id="x" * 30_000)
        sent = 0
        while connection.is_writable:  # until the kernel and our buffer are full, since nobody reads
            connection.post(ApiKey.PRODUCE, request)
            sent += 1
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(broker.hold.set)
        await connection.close()
        while received < sent:
            await asyncio.sleep(0.01)

    fake_broker(answer, scenario)


def test_nobody_listening_says_where(unused_port: int) -> None:
    async def scenario() -> None:
        with pytest.raises(BrokerUnreachableError, match=rf"127.0.0.1:{unused_port}: connection refused"):
            await Connection.open(Address("127.0.0.1", unused_port))

    asyncio.run(scenario())


def test_a_name_that_does_not_resolve_says_so() -> None:
    async def scenario() -> None:
        with pytest.raises(BrokerUnreachableError, match=r"no-such-host\.invalid:9092"):
            await Connection.open(Address("no-such-host.invalid", 9092))

    asyncio.run(scenario())


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
