"""An event loop in a thread of its own, for callers who have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self.loop.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Wait for it. Interrupted (Ctrl-C, a timeout), the work is cancelled."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a blocking client was called from its own event loop: use the asyncio one there"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except CancelledError:
            raise RuntimeError("the client was closed while it was used") from None
        except BaseException:
            if self._thread.is_alive():
                future.cancel()
            raise

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
