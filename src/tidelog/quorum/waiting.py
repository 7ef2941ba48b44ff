"""Who waits for a commit: the leader's callers, in the order of their offsets.

Owns when they are told. Yes means committed. No means that this node stopped leading before it knew: the records may be committed yet.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class CommitWaiters:
    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Callable[[bool], None]]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, end_offset: int, done: Callable[[bool], None]) -> None:
        self._number += 1
        heappush(self._waiting, (end_offset, self._number, done))

    def committed(self, high_watermark: int) -> None:
        while self._waiting and self._waiting[0][0] <= high_watermark:
            heappop(self._waiting)[2](True)

    def gave_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, done in sorted(waiting, key=lambda entry: entry[:2]):
            done(False)
