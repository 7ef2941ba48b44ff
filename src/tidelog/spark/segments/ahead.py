"""One thread reads ahead of another, by a bounded number of steps: files are read and decoded while Spark takes what was decoded before."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")
STEPS_AHEAD: Final = 2
_WAIT_SECONDS: Final = 0.2


class _End(NamedTuple):
    error: BaseException | None


def ahead(source: Iterator[T], steps: int = STEPS_AHEAD) -> Generator[T, None, None]:
    """What `source` gives, in order, with its error at the end if there is one. Whoever stops early closes it, and `source` with it."""
    waiting: queue.Queue[T | _End] = queue.Queue(steps)
    is_over = threading.Event()

    def put(item: T | _End) -> bool:
        while not is_over.is_set():
            try:
                waiting.put(item, timeout=_WAIT_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    def run() -> None:
        error: BaseException | None = None
        try:
            for item in source:
                if not put(item):
                    break
        except BaseException as caught:  # noqa: BLE001 - raised again by the thread that asked
            error = caught
        finally:
            if isinstance(source, Generator):
                source.close()
        put(_End(error))

    thread = threading.Thread(target=run, name="tidelog-read-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        is_over.set()
        thread.join()
