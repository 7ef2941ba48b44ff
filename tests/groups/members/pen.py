"""What a member writes down: one line of JSON per event, with the time, in a file of its own.

The file is opened for appending and every line is one write, so that a member that is killed leaves whole lines behind (the
last may be torn). The clock is the machine's monotonic one: times of different members can be compared. `journal.py` reads it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping


class Pen:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, **fields: object) -> None:
        line = json.dumps({"at": time.monotonic(), "event": event, **fields}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")

    def partitions(self, event: str, partitions: Iterable[int]) -> None:
        """assigned, revoked or lost; an empty set is no event."""
        numbers = sorted(partitions)
        if numbers:
            self.write(event, partitions=numbers)


class Progress:
    """What was received, what is done with, and what of it is to be committed.

    Records count as done when they are received, or with `work_seconds` when a slow worker behind a queue has finished
    them, one after the other: that is what a program does that polls on while it works.
    """

    def __init__(self, pen: Pen, *, work_seconds: float, commit_every: int, commit_seconds: float) -> None:
        self._pen = pen
        self._work_seconds = work_seconds
        self._commit_every = commit_every
        self._commit_seconds = commit_seconds
        self._commits = 0
        self._lock = threading.Lock()
        self._done: dict[int, int] = {}
        self._done_count = 0
        self._committed_count = 0
        self._committed_at = time.monotonic()
        self._waiting: list[tuple[int, int]] = []
        self._work_left = threading.Condition(self._lock)
        if work_seconds:
            threading.Thread(target=self._work, daemon=True).start()

    def received(self, partition: int, offset: int, value: bytes) -> None:
        self._pen.write("record", partition=partition, offset=offset, value=value.decode())
        with self._lock:
            if self._work_seconds:
                self._waiting.append((partition, offset))
                self._work_left.notify()
            else:
                self._finish(partition, offset)

    def _finish(self, partition: int, offset: int) -> None:
        self._done[partition] = offset + 1
        self._done_count += 1

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    self._work_left.wait()
                partition, offset = self._waiting.pop(0)
            time.sleep(self._work_seconds)
            self._pen.write("processed", partition=partition, offset=offset)
            with self._lock:
                self._finish(partition, offset)

    def commit_is_due(self) -> bool:
        done = self._done_count - self._committed_count
        late = time.monotonic() - self._committed_at >= self._commit_seconds
        return done >= self._commit_every or (done > 0 and late)

    def begin_commit(self, partitions: Iterable[int] | None = None) -> tuple[int, dict[int, int]]:
        """The number of the commit and the positions to send; of these partitions only, if some are named.

        The positions are all that is known, not only what is new: a commit that failed is made good by the next.
        """
        with self._lock:
            if partitions is None:
                self._committed_count = self._done_count
                self._committed_at = time.monotonic()
            wanted = set(self._done) if partitions is None else set(partitions)
            positions = {number: offset for number, offset in self._done.items() if number in wanted}
        self._commits += 1
        if positions:
            self._pen.write("committing", commit=self._commits, positions=_texts(positions))
        return self._commits, positions

    def committed(self, commit: int, positions: Mapping[int, int]) -> None:
        self._pen.write("committed", commit=commit, positions=_texts(positions))

    def refused(self, commit: int, error: str) -> None:
        self._pen.write("refused", commit=commit, error=error)

    def forget(self, partitions: Iterable[int]) -> None:
        """They are somebody else's now: nothing is committed for them any more."""
        with self._lock:
            for number in partitions:
                self._done.pop(number, None)


def _texts(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(number): offset for number, offset in sorted(positions.items())}
