"""Recording what real clients do, from any thread, into a history and into a file.

Owns the time (the machine's monotonic clock) and the order of events: both are taken under one lock. Each event is written by one call to the operating system when it happens, so that a process
that is killed leaves all of its file but, at worst, half a line. Several processes write a file each; `files.read_histories` makes one history of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history import files
from tidelog.testing.history.history import History
from tidelog.testing.history.operations import (
    UNKNOWN_OFFSET,
    Ending,
    Operation,
    Poll,
    Send,
    Transaction,
    Trim,
    Value,
)

O = TypeVar("O", bound=Operation | Transaction)  # noqa: E741 (an operation)


class Recorder:
    """As `History`, without times, and safe for threads. An operation that has ended already is left as it is."""

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.history = History()
        self._clock = clock
        self._lock = threading.Lock()
        self._file = path.open("xb", buffering=0) if path is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """No more is written; callbacks that come later are still recorded in memory."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, event: files.Event) -> None:
        if self._file is not None:
            self._file.write(files.line(event).encode("ascii"))

    def _begin(self, begin: Callable[..., O], *arguments: Any, **more: Any) -> O:
        who, *rest = arguments
        with self._lock:
            operation = begin(who, self._clock(), *rest, **more)
            self._write(files.began(operation))
            return operation

    def _end(self, end: Callable[..., None], operation: Operation, *arguments: Any, **more: Any) -> None:
        with self._lock:
            if not operation.ended:
                end(operation, self._clock(), *arguments, **more)
                self._write(files.ended(operation))

    # ---- producers

    def send(self, process: str, topic: str, partition: int | None, value: Value, **more: Any) -> Send:
        return self._begin(self.history.send, process, topic, partition, value, **more)

    def sent(self, send: Send, offset: int = UNKNOWN_OFFSET, *, partition: int | None = None) -> None:
        # Clients have their own ways to say that they do not know the offset, all of them negative.
        self._end(self.history.sent, send, max(offset, UNKNOWN_OFFSET), partition=partition)

    def begin(self, process: str) -> Transaction:
        return self._begin(self.history.begin, process)

    def end(self, transaction: Transaction, *, commit: bool) -> Ending:
        return self._begin(self.history.end, transaction, commit=commit)

    # ---- consumers

    def poll(self, process: str, *, final: bool = False, committed: bool = True) -> Poll:
        return self._begin(self.history.poll, process, final=final, committed=committed)

    def polled(self, poll: Poll, records: Iterable[tuple[TopicPartition, int, Value]]) -> None:
        self._end(self.history.polled, poll, records)

    def assign(self, process: str, positions: Mapping[TopicPartition, int | None]) -> None:
        self._begin(self.history.assign, process, positions)

    def subscribe(self, process: str, topics: Iterable[str]) -> None:
        self._begin(self.history.subscribe, process, topics)

    def rebalance(
        self,
        process: str,
        *,
        assigned: Sequence[TopicPartition] = (),
        revoked: Sequence[TopicPartition] = (),
    ) -> None:
        self._begin(self.history.rebalance, process, assigned=assigned, revoked=revoked)

    def seek(self, process: str, tp: TopicPartition, offset: int | None) -> None:
        self._begin(self.history.seek, process, tp, offset)

    # ---- anybody

    def trim(self, process: str, tp: TopicPartition, offset: int) -> Trim:
        return self._begin(self.history.trim, process, tp, offset)

    def done(self, operation: Ending | Trim) -> None:
        self._end(self.history.done, operation)

    def failed(self, operation: Operation, why: str = "") -> None:
        self._end(self.history.failed, operation, why)

    def unknown(self, operation: Operation, why: str = "") -> None:
        self._end(self.history.unknown, operation, why)
