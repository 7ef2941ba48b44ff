"""The broker's event loop: asyncio's own, which takes ready sockets in short turns.

asyncio asks for every socket that is ready and serves them all before it looks at anything else. When ten thousand clients speak at
once that is a third of a second in which no finished sync is answered and no waiting reader is woken, and it is paid again for each
step of a request. In turns of `READY_MAX` sockets such steps wait for milliseconds; the kernel hands out ready sockets in turn, so
nobody is passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import selectors
import sys
from collections.abc import Coroutine, Mapping
from selectors import EVENT_READ, EVENT_WRITE, SelectorKey
from typing import Any, TypeVar

READY_MAX = 128
"""Sockets served before the loop looks again: 4 ms at some 30 µs for each."""

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` on the broker's loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def new_event_loop() -> asyncio.AbstractEventLoop:
    if sys.platform != "linux":
        return asyncio.SelectorEventLoop()
    return asyncio.SelectorEventLoop(ShortTurns())


if sys.platform == "linux":

    class ShortTurns(selectors.BaseSelector):
        """What `selectors.EpollSelector` does, in turns of at most `READY_MAX` sockets."""

        def __init__(self) -> None:
            self._epoll = select.epoll()
            self._keys: dict[int, SelectorKey] = {}

        def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
            key = SelectorKey(fileobj, _descriptor(fileobj), events, data)
            if key.fd in self._keys:
                raise KeyError(f"descriptor {key.fd} is already registered")
            self._epoll.register(key.fd, _epoll_events(events))
            self._keys[key.fd] = key
            return key

        def unregister(self, fileobj: Any) -> SelectorKey:
            key = self._keys.pop(self.get_key(fileobj).fd)
            with contextlib.suppress(OSError):  # closed already: the kernel has forgotten it
                self._epoll.unregister(key.fd)
            return key

        def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
            old = self.get_key(fileobj)
            key = SelectorKey(fileobj, old.fd, events, data)
            if events != old.events:
                self._epoll.modify(key.fd, _epoll_events(events))
            self._keys[key.fd] = key
            return key

        def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
            if timeout is None:
                timeout = -1
            elif timeout > 0:
                timeout = (
                    math.ceil(timeout * 1000) / 1000
                )  # epoll counts milliseconds, and early is too early
            else:
                timeout = 0
            keys = self._keys
            ready = []
            for descriptor, seen in self._epoll.poll(timeout, READY_MAX):
                key = keys.get(descriptor)
                if key is not None:  # errors and hang-ups wake whoever waits, for whatever he waits
                    events = (EVENT_WRITE if seen & ~select.EPOLLIN else 0) | (
                        EVENT_READ if seen & ~select.EPOLLOUT else 0
                    )
                    ready.append((key, events & key.events))
            return ready

        def get_key(self, fileobj: Any) -> SelectorKey:
            return self._keys[_descriptor(fileobj)]

        def get_map(self) -> Mapping[Any, SelectorKey]:
            return self._keys

        def close(self) -> None:
            self._epoll.close()
            self._keys.clear()


def _descriptor(fileobj: Any) -> int:
    descriptor: int = fileobj if isinstance(fileobj, int) else fileobj.fileno()
    if descriptor < 0:
        raise ValueError(f"{fileobj!r} is closed")
    return descriptor


def _epoll_events(events: int) -> int:
    return (select.EPOLLIN if events & EVENT_READ else 0) | (select.EPOLLOUT if events & EVENT_WRITE else 0)
