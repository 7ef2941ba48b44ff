"""The broker's event loop: short turns, and everything else as asyncio has it."""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from tidelog.broker import event_loop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's")


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    pairs = [socket.socketpair() for _ in range(300)]
    yield pairs
    for here, there in pairs:
        here.close()
        there.close()


def test_a_turn_is_short_and_everybody_has_his(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    selector = event_loop.ShortTurns()
    for here, there in pairs:
        selector.register(here, selectors.EVENT_READ)
        there.send(b"x")
    served: set[object] = set()
    for _ in range(3):  # nobody reads: all stay ready
        ready = selector.select(0)
        assert len(ready) <= event_loop.READY_MAX
        served.update(key.fileobj for key, _ in ready)
    assert len(served) == len(pairs)
    selector.close()


def test_what_a_thread_hands_over_waits_for_one_turn_only(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    served_before = []

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        served = 0

        def hand_over() -> None:
            loop.call_soon_threadsafe(lambda: (served_before.append(served), done.set_result(None)))

        def on_readable(here: socket.socket) -> None:
            nonlocal served
            here.recv(10)
            served += 1
            if served == 1:
                thread = threading.Thread(target=hand_over)
                thread.start()
                thread.join()

        for here, there in pairs:
            there.send(b"x")
            loop.add_reader(here, on_readable, here)
        await done
        for here, _ in pairs:
            loop.remove_reader(here)

    event_loop.run(scene())
    assert 0 < served_before[0] <= event_loop.READY_MAX


def test_it_serves_streams_timers_and_closed_peers() -> None:
    async def scene() -> bytes:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        payload = bytes(3_000_000)  # more than the socket takes at once: waits for it to be writable
        writer.write(payload)
        writer.write_eof()
        await asyncio.sleep(0.01)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        server.close()
        return answer

    assert len(event_loop.run(scene())) == 3_000_000


def test_a_socket_is_registered_once_and_may_be_closed_first() -> None:
    selector = event_loop.ShortTurns()
    here, there = socket.socketpair()
    key = selector.register(here, selectors.EVENT_READ, "data")
    with pytest.raises(KeyError):
        selector.register(here, selectors.EVENT_READ)
    assert selector.get_key(here) == key == selector.get_map()[here.fileno()]
    assert selector.select(0) == []
    changed = selector.modify(here, selectors.EVENT_READ | selectors.EVENT_WRITE, "more")
    assert selector.select(0) == [(changed, selectors.EVENT_WRITE)]
    descriptor = here.fileno()
    here.close()
    assert selector.unregister(descriptor) == changed
    with pytest.raises(KeyError):
        selector.unregister(descriptor)
    with pytest.raises(ValueError, match="closed"):
        selector.register(here, selectors.EVENT_READ)
    there.close()
    selector.close()
