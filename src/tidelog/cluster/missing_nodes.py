"""Which other nodes have just gone: their connections broke, and nobody listens at their addresses any more.

A killed process closes its connections at once, long before its session ends, but so does a live one that had waited too long for an answer. The difference is whether its port still
takes connections: the kernel takes them for a process that lives, however busy it is, and refuses them for one that does not. So a lost connection is followed by an attempt to make
another one (`Listens`). Refused: the node is gone, and the active controller fences it without waiting for its session. Taken: nothing has happened. No answer: nobody can tell, and the
session decides. The question is repeated for a while, because the sockets of a dying process are closed one after the other.

Meanwhile (`is_missing`) this broker does not send clients to a leader that has just gone: they ask within milliseconds of its death, before anybody else can lead, and would believe the old
answer for seconds. For `HOLD_S` only: who stays missing while the controller keeps it as a leader may be within reach of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tidelog.ports import Clock, Scheduler

HOLD_S: Final = 1.0
LOOK_AGAIN_S: Final = 0.05
LOOK_FOR_S: Final = 1.0
"""So long a node that is reached is looked at again. Twice as long each time, from `LOOK_AGAIN_S` on."""
FORGET_S: Final = 3.0
"""A node whose connections have not failed for so long is well again."""


class Listens(Protocol):
    def __call__(self, node_id: int, answered: Callable[[bool | None], None], /) -> None:
        """Whether the node's broker takes connections. False: refused; None: cannot be told. `answered` in a later turn of the loop."""
        ...


def cannot_tell(_node_id: int, answered: Callable[[bool | None], None], /) -> None:
    """`Listens` of a world in which ports are not to be asked: sessions decide."""
    answered(None)


class _Missing:
    """Since when, and when that was last noticed. `is_there`: it takes connections, after all."""

    __slots__ = ("is_asked", "is_there", "noticed_at", "since")

    def __init__(self, now: float) -> None:
        self.since = self.noticed_at = now
        self.is_there = False
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

    def lost(self, node_id: int) -> None:
        """A connection to or from this node broke, or none could be made."""
        now = self._clock.monotonic()
        missing = self._missing.get(node_id)
        if missing is None or missing.is_there or now - missing.noticed_at > FORGET_S:
            was_asked = missing is not None and missing.is_asked
            missing = self._missing[node_id] = _Missing(now)
            missing.is_asked = was_asked
        missing.noticed_at = now
        if not missing.is_asked:
            self._ask(node_id, LOOK_AGAIN_S)

    def heard(self, node_id: int) -> None:
        """It has spoken: whatever broke, it lives."""
        self._missing.pop(node_id, None)

    def is_missing(self, node_id: int) -> bool:
        missing = self._missing.get(node_id)
        return (
            missing is not None and not missing.is_there and self._clock.monotonic() - missing.since < HOLD_S
        )

    def any_missing(self) -> bool:
        return bool(self._missing) and any(map(self.is_missing, self._missing))

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
        if answer is False:
            self._gone(node_id)
        elif next_s <= LOOK_FOR_S:
            missing.is_asked = True
            self._scheduler.call_later(next_s, lambda: self._ask(node_id, 2 * next_s))
