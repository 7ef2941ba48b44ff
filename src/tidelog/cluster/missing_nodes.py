"""Which other nodes have just gone: their connections broke, and nobody listens at their addresses any more.

A killed process closes its connections at once, long before its session ends, but so does a live one that had waited too long for an answer. The difference is whether its port still
takes connections: the kernel takes them for a process that lives, however busy it is, and refuses them for one that does not. So a lost connection is followed by an attempt to make
another one (`Listens`). Refused: the node is gone, and the active controller fences it without waiting for its session. Taken: nothing has happened. No answer: nobody can tell, and the
session decides. The question is repeated for a while, because the sockets of a dying process are closed one after the other.

Clients may notice a death before this broker does, which may even have no connection to the dead. So before it names others as leaders it looks whether their ports are open (`look`), as often as it can afford
(`LOOKS_PER_S`): a process that dies closes its listening socket before the connections that it took.

Meanwhile (`is_missing`) this broker does not send clients to a leader that has just gone: they ask within milliseconds of its death, before anybody else can lead, and would believe the old
answer for seconds. For `HOLD_S` only: who stays missing while the controller keeps it as a leader may be within reach of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from tidelog.ports import Clock, Scheduler

HOLD_S: Final = 1.0
LOOK_AGAIN_S: Final = 0.05
LOOK_FOR_S: Final = 1.0
"""So long a node that is reached is looked at again. Twice as long each time, from `LOOK_AGAIN_S` on."""
FORGET_S: Final = 3.0
"""A node whose connections have not failed for so long is well again."""
LOOK_WITHIN_S: Final = 0.05
"""Longer nobody waits for what `look` finds."""
LOOKS_PER_S: Final = 100
LOOKS_AT_ONCE: Final = 20
"""Of all nodes together, so that a crowd of clients costs the others few connections: beyond that nobody looks."""


class Listens(Protocol):
    def __call__(self, node_id: int, answered: Callable[[bool | None], None], /) -> None:
        """Whether the node's broker takes connections. False: refused; None: cannot be told. `answered` in a later turn of the loop."""
        ...


def cannot_tell(_node_id: int, answered: Callable[[bool | None], None], /) -> None:
    """`Listens` of a world in which ports are not to be asked: sessions decide."""
    answered(None)


class _Missing:
    """Since when, and when that was last noticed. `is_there`: it takes connections, after all. `is_open`: it took the last one that was tried, or did not refuse it."""

    __slots__ = ("is_asked", "is_open", "is_there", "noticed_at", "since")

    def __init__(self, now: float) -> None:
        self.since = self.noticed_at = now
        self.is_there = False
        self.is_open = False
        self.is_asked = False


class MissingNodes:
    def __init__(
        self, listens: Listens, *, clock: Clock, scheduler: Scheduler, gone: Callable[[int], None]
    ) -> None:
        self._listens = listens
        self._clock = clock
        self._scheduler = scheduler
        self._gone = gone
        self._missing: dict[int, _Missing] = {}
        self._looked_at: dict[int, float] = {}
        self._looking: dict[int, list[Callable[[int], None]]] = {}
        self._looks_left = float(LOOKS_AT_ONCE)
        self._looks_counted_at = clock.monotonic()

    def lost(self, node_id: int) -> None:
        """A connection to or from this node broke, or none could be made."""
        now = self._clock.monotonic()
        missing = self._missing.get(node_id)
        if missing is None or missing.is_there or now - missing.noticed_at > FORGET_S:
            before, missing = missing, _Missing(now)
            self._missing[node_id] = missing
            if before is not None:
                missing.is_asked = before.is_asked
                missing.is_open = before.is_open and now - before.noticed_at <= FORGET_S
        missing.noticed_at = now
        if not missing.is_asked:
            self._ask(node_id, LOOK_AGAIN_S)

    def fenced(self, node_id: int) -> None:
        """The controller has given it up. What was found of its port was before that."""
        self.lost(node_id)
        self._missing[node_id].is_open = False

    def heard(self, node_id: int) -> None:
        """It has spoken: whatever broke, it lives."""
        self._missing.pop(node_id, None)

    def is_missing(self, node_id: int) -> bool:
        missing = self._missing.get(node_id)
        return (
            missing is not None and not missing.is_there and self._clock.monotonic() - missing.since < HOLD_S
        )

    def may_be_closed(self, node_id: int) -> bool:
        """A connection broke, and the last attempt to make another one, if there was any, was refused."""
        missing = self._missing.get(node_id)
        return missing is not None and not missing.is_open

    def any_missing(self) -> bool:
        return bool(self._missing) and any(map(self.is_missing, self._missing))

    def look(self, node_ids: Iterable[int], done: Callable[[], None], *, since: float) -> None:
        """Call `done` when it is known of each of these nodes whether it took connections after `since`, or cannot be known soon. Who refuses them is `lost`."""
        waiting = {node_id for node_id in node_ids if self._is_looked_at(node_id, since)}
        if not waiting:
            done()
            return

        def answered(node_id: int) -> None:
            if node_id not in waiting:
                return
            if self._is_looked_at(node_id, since):  # that look had begun before
                self._looking[node_id].append(answered)
                return
            waiting.discard(node_id)
            if not waiting:
                timer.cancel()
                done()

        def late() -> None:
            waiting.clear()
            done()

        timer = self._scheduler.call_later(LOOK_WITHIN_S, late)
        for node_id in tuple(waiting):
            self._looking[node_id].append(answered)

    def _is_looked_at(self, node_id: int, since: float) -> bool:
        """Whether an answer is to come. Begins to look, if that was not done since then."""
        if self.is_missing(node_id):
            return False
        if node_id in self._looking:
            return True
        now = self._clock.monotonic()
        if self._looked_at.get(node_id, -1.0) >= since:
            return False
        passed_s = now - self._looks_counted_at
        self._looks_left = min(LOOKS_AT_ONCE, self._looks_left + passed_s * LOOKS_PER_S)
        self._looks_counted_at = now
        if self._looks_left < 1:
            return False
        self._looks_left -= 1
        self._looked_at[node_id] = now
        self._looking[node_id] = []
        self._listens(node_id, lambda answer: self._looked(node_id, answer))
        return node_id in self._looking  # unless it was answered at once

    def _looked(self, node_id: int, answer: bool | None) -> None:
        if answer is False:
            self.lost(node_id)
        for told in self._looking.pop(node_id, ()):
            told(node_id)

    def _ask(self, node_id: int, next_s: float) -> None:
        missing = self._missing.get(node_id)
        if missing is None:
            return
        missing.is_asked = True
        self._listens(node_id, lambda answer: self._answered(node_id, answer, next_s))

    def _answered(self, node_id: int, answer: bool | None, next_s: float) -> None:
        missing = self._missing.get(node_id)
        if missing is None:
            return
        missing.is_asked = False
        missing.is_there = answer is True
        missing.is_open = answer is not False
        if answer is False:
            self._gone(node_id)
        elif next_s <= LOOK_FOR_S:
            missing.is_asked = True
            self._scheduler.call_later(next_s, lambda: self._ask(node_id, 2 * next_s))
