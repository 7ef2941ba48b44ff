"""A wire between a client and a broker that a test can cut: bytes wait until it is mended, or it is severed for good, as when a process is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from tidelog.client.addresses import Address, parse_address
from tidelog.client.connection import Connection

CLIENT_ID = "on-the-wire"
"""Clients of this name speak through the wire, others directly: brokers tell clients their own address, so a proxy alone is soon passed by."""


class Wire:
    def __init__(self, bootstrap: str) -> None:
        self._broker = parse_address(bootstrap)
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address("127.0.0.1", self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sever()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Nothing comes through any more, in either direction; nobody is told."""
        self._whole.clear()

    def mend(self) -> None:
        """What waited comes through late."""
        self._whole.set()

    def lead_to(self, bootstrap: str) -> None:
        """New connections end at another broker."""
        self._broker = parse_address(bootstrap)

    def sever(self) -> None:
        """Both ends see that it is over; nobody can connect again."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._broker)
        self._writers |= {writer, back}
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._carry(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                await self._whole.wait()
                target.write(data)
                await target.drain()
        target.close()


def through(wire: Wire) -> Callable[..., Awaitable[Connection]]:
    """In the place of `Connection.open`."""
    real = Connection.open

    async def open_connection(address: Address, **options: Any) -> Connection:
        return await real(wire.address if options.get("client_id") == CLIENT_ID else address, **options)

    return open_connection
