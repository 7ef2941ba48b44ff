"""Deadlines by name. Moving one later costs a dictionary entry, which is what every heartbeat does.

Owns no clock: whoever owns the timers asks for `next_deadline_ms` and calls `expire` when that moment has come. The heap may hold an
entry for a deadline that moved or went; it is dropped or put back when it comes up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple, TypeAlias

from tidelog.coordinator.outcome import Now, Outcome

Expired: TypeAlias = Callable[[Now], Outcome]


class _Deadline(NamedTuple):
    ms: int
    expired: Expired


class Timers:
    __slots__ = ("_deadlines", "_heap", "_queued", "_sequence")

    def __init__(self) -> None:
        self._deadlines: dict[Hashable, _Deadline] = {}
        self._heap: list[tuple[int, int, Hashable]] = []
        self._queued: dict[Hashable, int] = {}  # the earliest moment at which the heap brings a name up
        self._sequence = 0

    def __contains__(self, name: Hashable) -> bool:
        return name in self._deadlines

    def __len__(self) -> int:
        return len(self._deadlines)

    def schedule(self, name: Hashable, deadline_ms: int, expired: Expired) -> None:
        """Call `expired` at `deadline_ms`, instead of whatever was scheduled under this name."""
        self._deadlines[name] = _Deadline(deadline_ms, expired)
        queued = self._queued.get(name)
        if queued is None or deadline_ms < queued:
            self._push(name, deadline_ms)

    def cancel(self, name: Hashable) -> None:
        self._deadlines.pop(name, None)

    def clear(self) -> None:
        self._deadlines.clear()
        self._heap.clear()
        self._queued.clear()

    def deadline_ms(self, name: Hashable) -> int | None:
        found = self._deadlines.get(name)
        return None if found is None else found.ms

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next; perhaps nothing is due then."""
        return self._heap[0][0] if self._heap else None

    def expire(self, now: Now) -> Iterator[Outcome]:
        """What comes of each deadline that is over, earliest first. Callbacks may schedule and cancel; an outcome must be acted on
        before the next one is taken, since it may change what the next one finds.
        """
        while self._heap and self._heap[0][0] <= now.ms:
            queued_ms, _, name = heapq.heappop(self._heap)
            if self._queued.get(name) != queued_ms:
                continue  # another entry, which is earlier, has taken its place
            del self._queued[name]
            deadline = self._deadlines.get(name)
            if deadline is None:
                continue
            if deadline.ms > queued_ms:  # it moved; even if it is due by now, others may come before it
                self._push(name, deadline.ms)
                continue
            del self._deadlines[name]
            yield deadline.expired(now)

    def _push(self, name: Hashable, deadline_ms: int) -> None:
        self._sequence += 1
        self._queued[name] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, self._sequence, name))
