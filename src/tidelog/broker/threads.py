"""Work that waits for the disk, in threads: `tidelog.ports.Offload` on an executor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from tidelog.replication.group_commit import GroupCommit

T = TypeVar("T")


class Threads:
    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        self._loop = loop
        self._executor = executor

    def run(self, work: Callable[[], T], done: Callable[[T | Exception], None], /) -> None:
        self._executor.submit(self._work, work, done)

    def _work(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """In a thread. What came of it goes to the loop directly: through futures it would take three turns of a busy loop."""
        result: T | Exception
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whoever asked for it knows what it means
            result = error
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            self._loop.call_soon_threadsafe(done, result)


async def called_back(call: Callable[[Callable[[], None]], None]) -> None:
    """Wait until `call` calls what it is given."""
    done = asyncio.Event()
    call(done.set)
    await done.wait()


async def drained(group_commit: GroupCommit) -> None:
    """Wait until nothing is left to sync."""
    await called_back(group_commit.when_drained)
