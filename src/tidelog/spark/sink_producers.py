"""Producers that outlive a task: Spark uses its Python workers again, and a new producer costs a connection, a look at the metadata and a producer id.

A task borrows one and gives it back when everything it sent is acknowledged. One that failed is never given back: what it had on the way ends with it. A few at most are kept,
each with an event loop in a thread of its own; a forked process begins without any, because threads and sockets are its parent's.
"""

from __future__ import annotations

import gc
import logging
import os
from collections import OrderedDict
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from tidelog.client.errors import ClientError
from tidelog.client.loop_thread import LoopThread
from tidelog.client.producer.producer import Producer

T = TypeVar("T")
KEPT_MAX: Final = 2
logger = logging.getLogger(__name__)

_Key = tuple[str, tuple[tuple[str, str], ...]]


class WarmProducer:
    """A producer and the thread that it lives on."""

    def __init__(self, servers: str, settings: Mapping[str, str]) -> None:
        self._thread = LoopThread("tidelog-sink")
        try:
            self.producer = self._thread.run(_started(servers, settings))
        except BaseException:
            self._thread.stop()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        import asyncio

        return asyncio.run_coroutine_threadsafe(work, self._thread.loop)

    def end(self) -> None:
        """Without waiting for what is on its way."""
        try:
            self._thread.run(self.producer.close(timeout_ms=0))
        except ClientError as error:
            logger.debug("a producer that is not used any more: %s", error)
        finally:
            self._thread.stop()


async def _started(servers: str, settings: Mapping[str, str]) -> Producer:
    producer = Producer.configured({"bootstrap.servers": servers, **settings})
    await producer.start()
    return producer


_kept: OrderedDict[_Key, WarmProducer] = OrderedDict()
os.register_at_fork(after_in_child=_kept.clear)


@contextmanager
def warm_producer(servers: str, settings: Mapping[str, str]) -> Iterator[WarmProducer]:
    """Borrow one. It is kept for the next task if the block ends without an error."""
    key = (servers, tuple(sorted(settings.items())))
    found = _kept.pop(key, None)
    warm = found or WarmProducer(servers, settings)
    try:
        yield warm
    except BaseException:
        warm.end()
        raise
    if found is None:
        # pyspark's worker collects garbage after each task, all of it: tens of milliseconds for modules that stay, unless they are left out.
        gc.collect()
        gc.freeze()
    _kept[key] = warm
    while len(_kept) > KEPT_MAX:
        _kept.popitem(last=False)[1].end()
