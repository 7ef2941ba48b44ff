"""What is asked in the background, one task of each kind at a time; its error, if it has one, is for the application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidelog.client.errors import ClientError


class Errands:
    def __init__(self, *, tell: Callable[[ClientError], None], done: Callable[[], None]) -> None:
        """`tell` hears of errors, `done` when one has ended, either way."""
        self._tell = tell
        self._done = done
        self._tasks: dict[object, asyncio.Task[None]] = {}

    def __contains__(self, kind: object) -> bool:
        return kind in self._tasks

    def begin(self, kind: object, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            except ClientError as error:
                self._tell(error)
            finally:
                del self._tasks[kind]
                self._done()

        self._tasks[kind] = asyncio.create_task(run())

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
