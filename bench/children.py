"""Clients as processes of their own: each measurement begins with a fresh heap, and several clients run side by side.

Owns starting them, handing their result or their failure back, and ending them when a measurement is given up. A server
process that has imported everything forks them, so that a client costs milliseconds; nothing that uses librdkafka ever forks.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from types import TracebackType
from typing import Any, Generic, TypeVar

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ("bench.load", "bench.raw_load", "bench.machine", "bench.soak_load")
Result = TypeVar("Result")

_spent: list[float] = []


class ChildFailedError(Exception):
    """A client process raised, died or took too long; carries what it said."""


def new_event() -> Event:
    """Something that one process sets and another waits for."""
    return CONTEXT.Event()


class Child(Generic[Result]):
    """One function running in a process of its own; `result()` waits for what it returns."""

    def __init__(self, work: Callable[..., Result], *arguments: object, **named: object) -> None:
        CONTEXT.set_forkserver_preload(list(PRELOADED))
        self._name = work.__name__
        self._results, sender = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=_run, args=(sender, work, arguments, named), daemon=True)
        self._process.start()
        sender.close()

    @property
    def is_running(self) -> bool:
        return self._process.is_alive()

    def result(self, timeout_seconds: float) -> Result:
        try:
            if not self._results.poll(timeout_seconds):
                raise ChildFailedError(f"{self._name} did not end within {timeout_seconds:.0f} s")
            failure, value, spent = self._results.recv()
            _spent.append(spent)
        except EOFError:
            raise ChildFailedError(f"{self._name} died without a word") from None
        finally:
            self.end()
        if failure:
            raise ChildFailedError(f"{self._name} failed:\n{failure}")
        result: Result = value
        return result

    def end(self) -> None:
        """Make sure that the process is gone."""
        self._process.join(0.5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(10)
        self._results.close()

    def __enter__(self) -> Child[Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def run(
    work: Callable[..., Result], *arguments: object, timeout_seconds: float = 180.0, **named: object
) -> Result:
    """Run one function in a fresh process and return what it returns."""
    return Child(work, *arguments, **named).result(timeout_seconds)


def cpu_seconds() -> float:
    """Processor time of all clients that have ended, librdkafka's threads included."""
    return sum(_spent)


def _run(
    sender: Connection, work: Callable[..., Any], arguments: tuple[object, ...], named: dict[str, object]
) -> None:
    gc.disable()  # a pause of the client's collector is none of the broker's doing
    try:
        sender.send(("", work(*arguments, **named), time.process_time()))
    except BaseException:  # noqa: BLE001 (handed to the parent, whatever it is)
        sender.send((traceback.format_exc(), None, 0.0))
    sender.close()
    os._exit(0)  # librdkafka's threads are not waited for: the result is on its way
