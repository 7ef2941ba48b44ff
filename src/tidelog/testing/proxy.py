"""A network that fails on demand, for real processes: TCP proxies on loopback, told at run time what to do to the bytes between two ports.

    with Proxy(broker_port) as proxy:
        client = connect(proxy.port)
        proxy.stall()                       # as a partition: connections stay, nothing arrives
        proxy.heal()                        # and now it does

Faults are as TCP has them: inside a connection no byte vanishes. A stall keeps bytes back (and ends, resets and the connecting to the other side, which a partition keeps back too); a cut refuses and
resets; a delay lets everything come later, in order. `ProxyMesh` has a proxy for each ordered pair of nodes.

Owns its sockets, tasks and one thread with an event loop: all are gone when it is closed. What it holds of a connection is bounded (`HELD_CHUNKS` × `CHUNK_BYTES` in each direction); beyond that the
sender waits. Every call may come from any thread, and what it asks for is so when it returns. Listens and connects on 127.0.0.1 only.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Hashable, Mapping
from enum import Flag, auto
from types import TracebackType
from typing import Final, Self

from tidelog.client.loop_thread import LoopThread

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 64 * 1024
HELD_CHUNKS: Final = 16
BACKLOG: Final = 128
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Direction(Flag):
    FORWARD = auto()
    """From whoever connects to the port behind the proxy."""
    BACKWARD = auto()
    BOTH = FORWARD | BACKWARD


class _ResetError(Exception):
    """The connection is to be torn, on both sides."""


class _Way:
    """What happens to bytes that go in one direction, of all connections."""

    def __init__(self) -> None:
        self.is_stalled = False
        self.delay_s = 0.0
        self.bytes_left: int | None = None
        """How many the next one may carry before it is torn; None: as many as it likes."""
        self._changed = asyncio.Event()

    def change(self, *, is_stalled: bool | None = None, delay_s: float | None = None) -> None:
        self.is_stalled = self.is_stalled if is_stalled is None else is_stalled
        self.delay_s = self.delay_s if delay_s is None else delay_s
        self._changed.set()
        self._changed = asyncio.Event()

    async def turn(self, arrived: float) -> None:
        """Wait until bytes that arrived at this time may go on."""
        loop = asyncio.get_running_loop()
        while True:
            left = arrived + self.delay_s - loop.time() if self.delay_s else 0.0
            if left <= 0 and not self.is_stalled:
                return
            try:
                async with asyncio.timeout(None if self.is_stalled else left):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def allowed(self, count: int) -> int:
        """How many of so many bytes may go before the connection is torn."""
        if self.bytes_left is None:
            return count
        allowed = min(count, self.bytes_left)
        self.bytes_left -= allowed
        return allowed

    def is_used_up(self) -> bool:
        if self.bytes_left == 0:
            self.bytes_left = None  # one connection, not all that come after it
            return True
        return False


class Proxy:
    """A port on loopback that leads to another one. Use it as a context manager, or call `close`."""

    def __init__(self, target_port: int, *, port: int = 0, thread: LoopThread | None = None) -> None:
        """`port` 0 takes a free one. Proxies may share a thread, which then is its owner's to stop."""
        self._target = (HOST, target_port)
        self._forward, self._backward = _Way(), _Way()
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._is_closed = False
        # Bound and never listening: it keeps the port while nobody listens there, and connecting is refused.
        self._anchor = _bound(port)
        self.port: int = self._anchor.getsockname()[1]
        self._owns_thread = thread is None
        self._thread = thread or LoopThread("tidelog-proxy")
        try:
            self._thread.run(self._listen())
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._thread.run(self._cut())
        finally:
            self._anchor.close()
            if self._owns_thread:
                self._thread.stop()

    # ---- faults

    def cut(self) -> None:
        """Reset every connection and refuse new ones, until `heal`."""
        self._thread.run(self._cut())

    def reset(self) -> None:
        """Reset every connection; new ones are welcome."""
        self._thread.run(self._reset())

    def stall(self, direction: Direction = Direction.BOTH) -> None:
        """Bytes stay where they are, until `heal`. New connections are taken, and lead nowhere yet."""
        self._thread.run(self._change(direction, is_stalled=True))

    def delay(self, seconds: float, direction: Direction = Direction.BOTH) -> None:
        """Bytes come so much later; 0 for no delay."""
        self._thread.run(self._change(direction, delay_s=seconds))

    def drop_after(self, count: int, direction: Direction = Direction.FORWARD) -> None:
        """Tear a connection in the middle: the one that carries the last of the next `count` bytes is reset right behind it."""
        if count < 1:
            raise ValueError(f"a connection can be dropped after 1 byte at the earliest, not {count}")
        self._thread.run(self._arm(count, direction))

    def heal(self) -> None:
        """Everything goes through again, what was kept back first."""
        self._thread.run(self._heal())

    # ---- on the loop

    def _ways(self, direction: Direction) -> list[_Way]:
        ways = [(Direction.FORWARD, self._forward), (Direction.BACKWARD, self._backward)]
        return [way for flag, way in ways if flag in direction]

    async def _change(
        self, direction: Direction, *, is_stalled: bool | None = None, delay_s: float | None = None
    ) -> None:
        for way in self._ways(direction):
            way.change(is_stalled=is_stalled, delay_s=delay_s)

    async def _arm(self, count: int, direction: Direction) -> None:
        for way in self._ways(direction):
            way.bytes_left = count

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = _bound(self.port)
            self._listener.listen(BACKLOG)
            self._accepting = asyncio.create_task(self._accept(self._listener))

    async def _cut(self) -> None:
        listener, accepting = self._listener, self._accepting
        self._listener = self._accepting = None
        if accepting is not None:
            accepting.cancel()
            await asyncio.wait([accepting])
        if listener is not None:
            listener.close()  # the kernel resets whoever was not accepted yet
        await self._reset()

    async def _reset(self) -> None:
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        if connections:
            await asyncio.wait(connections)

    async def _heal(self) -> None:
        for way in (self._forward, self._backward):
            way.bytes_left = None
            way.change(is_stalled=False, delay_s=0.0)
        await self._listen()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:  # it went away again, or there are no descriptors left
                await asyncio.sleep(0.01)
                continue
            connection = asyncio.create_task(self._connect(client))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

    async def _connect(self, client: socket.socket) -> None:
        server = socket.socket()
        both_ended = False
        try:
            for side in (client, server):
                side.setblocking(False)
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loop = asyncio.get_running_loop()
            await self._forward.turn(loop.time())
            await loop.sock_connect(server, self._target)
            both_ended = await _join(client, server, self._forward, self._backward)
        except OSError:
            pass  # nobody listens behind it
        finally:
            for side in (client, server):
                if not both_ended:
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                side.close()


async def _join(client: socket.socket, server: socket.socket, forward: _Way, backward: _Way) -> bool:
    """Whether both sides have ended it; if not, one has torn it, or a fault has."""
    try:
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(_pump(client, server, forward))
            pumps.create_task(_pump(server, client, backward))
    except* _ResetError:
        is_torn = True
    else:
        is_torn = False
    return not is_torn


async def _pump(source: socket.socket, sink: socket.socket, way: _Way) -> None:
    """One direction of one connection, until its end has been passed on."""
    held: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(HELD_CHUNKS)
    async with asyncio.TaskGroup() as both:
        both.create_task(_receive(source, held))
        both.create_task(_pass_on(held, sink, way))


async def _receive(source: socket.socket, held: asyncio.Queue[tuple[float, bytes | None]]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        data: bytes | None
        try:
            data = await loop.sock_recv(source, CHUNK_BYTES)
        except OSError:
            data = None  # a reset is news, too, and takes its turn
        await held.put((loop.time(), data))
        if not data:
            return


async def _pass_on(held: asyncio.Queue[tuple[float, bytes | None]], sink: socket.socket, way: _Way) -> None:
    loop = asyncio.get_running_loop()
    is_deaf = False  # the other side takes no more, which it says itself, in its own direction
    while True:
        arrived, data = await held.get()
        await way.turn(arrived)
        if data is None:
            raise _ResetError
        try:
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            allowed = way.allowed(len(data))
            if not is_deaf:
                await loop.sock_sendall(sink, data[:allowed])
        except OSError:
            if not data:
                return
            is_deaf = True
        if way.is_used_up():
            raise _ResetError


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    try:
        bound.setblocking(False)
        # Two of them on one port: the one that listens, and the one that keeps the port.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
    except BaseException:
        bound.close()
        raise
    return bound


class ProxyMesh:
    """A proxy for each ordered pair of nodes: `port(a, b)` is where `a` finds `b`.

    Nodes are named by anything, with the port that each listens on; one that only connects, such as a client, has None.
    """

    def __init__(self, nodes: Mapping[Hashable, int | None]) -> None:
        self._nodes = list(nodes)
        self._thread = LoopThread("tidelog-proxies")
        self._proxies: dict[tuple[Hashable, Hashable], Proxy] = {}
        try:
            for source in nodes:
                for sink, port in nodes.items():
                    if source != sink and port is not None:
                        self._proxies[source, sink] = Proxy(port, thread=self._thread)
        except BaseException:
            self.close()
            raise

    def port(self, source: Hashable, sink: Hashable) -> int:
        return self._proxies[source, sink].port

    def proxy(self, source: Hashable, sink: Hashable) -> Proxy:
        """The connections that `source` makes to `sink`."""
        return self._proxies[source, sink]

    def partition(self, a: Hashable, b: Hashable, *, one_way: bool = False) -> None:
        """Nothing gets from one to the other; with `one_way` nothing that `a` says, also in answer to `b`, reaches `b`, and the rest goes on."""
        self._known(a, b)
        if (a, b) in self._proxies:
            self._proxies[a, b].stall(Direction.FORWARD if one_way else Direction.BOTH)
        if (b, a) in self._proxies:
            self._proxies[b, a].stall(Direction.BACKWARD if one_way else Direction.BOTH)

    def isolate(self, node: Hashable) -> None:
        """A partition between this one and all others."""
        self._known(node)
        for other in self._nodes:
            if other != node:
                self.partition(node, other)

    def cut(self, a: Hashable, b: Hashable) -> None:
        """Connections between the two are reset and refused."""
        self._known(a, b)
        for pair in ((a, b), (b, a)):
            if pair in self._proxies:
                self._proxies[pair].cut()

    def heal(self, a: Hashable | None = None, b: Hashable | None = None) -> None:
        """Everything between two nodes; between one and all others; or everywhere."""
        self._known(*(node for node in (a, b) if node is not None))
        for pair, proxy in self._proxies.items():
            if all(node is None or node in pair for node in (a, b)):
                proxy.heal()

    def _known(self, *nodes: Hashable) -> None:
        for node in nodes:
            if node not in self._nodes:
                raise KeyError(f"{node!r} is no node of this mesh: {self._nodes}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            for proxy in self._proxies.values():
                proxy.close()
        finally:
            self._thread.stop()
