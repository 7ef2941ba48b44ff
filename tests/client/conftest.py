"""A broker to talk to: ours in-process, or any Kafka named by TIDELOG_TEST_BOOTSTRAP."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.client.broker_settings import BROKER_SETTINGS
from tests.client.wire import Wire, through
from tidelog.client.connection import Connection
from tidelog.wire.api import ApiKey, spec
from tidelog.wire.codec import decode
from tidelog.wire.headers import RequestHeader, decode_request_header, encode_response
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse

Answer = Callable[[RequestHeader, Any], Any]


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    named = os.environ.get("TIDELOG_TEST_BOOTSTRAP")
    if named:
        yield named
        return
    from tidelog.testing import Cluster

    with Cluster(config=BROKER_SETTINGS) as cluster:
        yield cluster.bootstrap_servers


@pytest.fixture
def topic_name() -> str:
    """New in every test, so that any number of runs can share a broker."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def wire(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wire]:
    """Between the broker and every client whose id is `wire.CLIENT_ID`."""
    async with Wire(bootstrap) as wire:
        monkeypatch.setattr(Connection, "open", through(wire))
        yield wire


def versions_answer(**ranges: tuple[int, int]) -> ApiVersionsResponse:
    keys = [
        ApiVersion(api_key=ApiKey[name], min_version=low, max_version=high)
        for name, (low, high) in ranges.items()
    ]
    return ApiVersionsResponse(api_keys=keys)


@dataclass
class FakeBroker:
    """Answers frames as a script says: a message, raw bytes (sent as they are; a list of them one after the other), None for silence, or `Hang up`."""

    answer: Answer
    port: int = 0
    seen: list[RequestHeader] = field(default_factory=list)
    hold: asyncio.Event | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = memoryview(await reader.readexactly(size))
                header, position = decode_request_header(frame, 0)
                self.seen.append(header)
                body = decode(spec(header.api_key).request_class, header.api_version, frame[position:])
                reply = self.answer(header, body)
                if self.hold is not None and header.api_key != ApiKey.API_VERSIONS:
                    await self.hold.wait()
                if reply is HANG_UP:
                    return
                if isinstance(reply, list):
                    for piece in reply:
                        if piece is HANG_UP:
                            return
                        writer.write(piece)
                        await writer.drain()
                        await asyncio.sleep(0.005)
                elif isinstance(reply, bytes):
                    writer.write(reply)
                elif isinstance(reply, tuple):
                    version, message = reply
                    writer.write(
                        b"".join(
                            map(
                                bytes,
                                encode_response(header.api_key, version, header.correlation_id, message),
                            )
                        )
                    )
                elif reply is not None:
                    parts = encode_response(header.api_key, header.api_version, header.correlation_id, reply)
                    writer.write(b"".join(map(bytes, parts)))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


HANG_UP = object()


@pytest.fixture
def fake_broker() -> Callable[[Answer, Callable[[FakeBroker], Awaitable[None]]], FakeBroker]:
    """Run a scenario against a scripted broker, on a loop of its own."""

    def run(answer: Answer, scenario: Callable[[FakeBroker], Awaitable[None]]) -> FakeBroker:
        async def main() -> FakeBroker:
            broker = FakeBroker(answer)
            server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
            broker.port = server.sockets[0].getsockname()[1]
            try:
                async with asyncio.timeout(10):
                    await scenario(broker)
            finally:
                server.close()
            return broker

        return asyncio.run(main())

    return run


@pytest.fixture
def versions() -> Callable[..., ApiVersionsResponse]:
    return versions_answer


@pytest.fixture
def hang_up() -> object:
    return HANG_UP
