"""What the measurements of groups share: the two protocols, and a bare connection that asks one question at a time."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

from bench.load import LoadError
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode, error_name
from tidelog.wire.headers import RequestHeader, decode_response, encode_request
from tidelog.wire.messages.api_versions import ApiVersionsRequest
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tools.peers.process import Peer

CLASSIC, CONSUMER = "cooperative-sticky", "KIP-848"
HEARTBEAT_SECONDS = {CLASSIC: 3.0, CONSUMER: 5.0}
"""librdkafka's default for its classic members, the brokers' default for the others."""
PARTITIONS = 200
REBALANCE_SECONDS_MAX = 90.0


def accept(code: int, *accepted: ErrorCode) -> None:
    if code not in accepted:
        raise LoadError(f"a member was answered {error_name(code)}")


class Asker:
    """One connection; one question at a time."""

    def __init__(self, bootstrap: str) -> None:
        self._host, _, port = bootstrap.rpartition(":")
        self._port = int(port)

    async def connect(self) -> None:
        """As librdkafka introduces itself: brokers may serve it otherwise than a client that nobody knows."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        await self.ask(
            ApiKey.API_VERSIONS,
            3,
            ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.16.0"),
        )

    async def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        self._writer.write(encode_request(RequestHeader(int(key), version, 1, "idle"), request))
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return decode_response(int(key), version, await self._reader.readexactly(size))[1]

    def close(self) -> None:
        self._writer.close()


def await_coordinator(peer: Peer) -> None:
    """The first question makes the topic that groups are kept in; the last of its partitions serves a moment later."""

    async def ask() -> None:
        asker = Asker(peer.bootstrap)
        await asker.connect()
        deadline = time.monotonic() + REBALANCE_SECONDS_MAX
        while time.monotonic() < deadline:
            found = await asker.ask(
                ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=["bench"])
            )
            if not found.coordinators[0].error_code:
                names = [f"nobody-{number}" for number in range(500)]
                told = await asker.ask(ApiKey.DELETE_GROUPS, 1, DeleteGroupsRequest(groups_names=names))
                if {each.error_code for each in told.results} == {ErrorCode.GROUP_ID_NOT_FOUND}:
                    asker.close()
                    return
            await asyncio.sleep(0.1)
        raise LoadError(f"{peer.name} coordinates no groups after {REBALANCE_SECONDS_MAX:.0f} s")

    asyncio.run(ask())
