"""Heartbeats answered late: "all is well" is kept back until it is no longer true, or until the member is about to send the next one.

A member of a classic group hears of a rebalance in the answer to a heartbeat, and sends one every three seconds, so every rebalance waits for
the member whose heartbeat is furthest away. A heartbeat that waits here is answered the moment a rebalance begins. To the member it is a slow answer.

An answer is given up at once when the client sends something else on the connection, because answers keep their order. And it is only kept from
clients that are known to go on with their work meanwhile: others read no records until their heartbeat is answered (KafkaJS), and
would stand still. Who closes the connection while it waits has less patience than expected, and is not made to wait again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidelog.broker.pending import Pending

ASYNCHRONOUS: Final = ("apache-kafka-java", "rdkafka")
"""Names that such clients give to their software, or to a part of its version: `confluent-kafka-python` says `2.16.1-rdkafka-2.16.0`."""
IMPATIENT_MAX: Final = 10_000


class _Held:
    __slots__ = ("answer", "ask_again", "timer")

    def __init__(
        self, answer: Callable[[], None], ask_again: Callable[[], None], timer: asyncio.TimerHandle
    ) -> None:
        self.answer = answer
        self.ask_again = ask_again
        self.timer = timer


class HeldHeartbeats:
    """Bounded by the members of groups: a heartbeat behind another one on its connection releases that one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: dict[str, dict[Pending, _Held]] = {}  # by group
        self._impatient: dict[str, None] = {}

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())

    def may_wait(self, software: tuple[str, str] | None, member_id: str) -> bool:
        """`software`: name and version, as the client told them in its first request."""
        return (
            software is not None
            and any(name in part for name in ASYNCHRONOUS for part in software)
            and member_id not in self._impatient
        )

    def hold(
        self,
        group_id: str,
        member_id: str,
        pending: Pending,
        seconds: float,
        answer: Callable[[], None],
        ask_again: Callable[[], None],
    ) -> None:
        """Call one of the two, once: `answer` when nothing has happened, `ask_again` when something has; none if the client has gone."""

        def release() -> None:
            held = self._take(group_id, pending)
            if held is not None:
                held.answer()

        def gone() -> None:
            if self._take(group_id, pending) is not None:
                self._impatient[member_id] = None
                if len(self._impatient) > IMPATIENT_MAX:
                    del self._impatient[next(iter(self._impatient))]

        timer = self._loop.call_later(seconds, release)
        self._held.setdefault(group_id, {})[pending] = _Held(answer, ask_again, timer)
        pending.on_next_request = release
        pending.on_cancel = gone

    def disturbed(self, group_id: str) -> None:
        """Something happened to the group: its members are to be told, in the loop's next turn. May be called while it still happens."""
        held = self._held.pop(group_id, None)
        if held is not None:
            self._loop.call_soon(_ask_again, list(held.values()))
            for pending, each in held.items():
                each.timer.cancel()
                pending.on_next_request = pending.on_cancel = None

    def disturb_all(self) -> None:
        for group_id in list(self._held):
            self.disturbed(group_id)

    def _take(self, group_id: str, pending: Pending) -> _Held | None:
        group = self._held.get(group_id)
        held = None if group is None else group.pop(pending, None)
        if held is None:
            return None
        assert group is not None
        if not group:
            del self._held[group_id]
        held.timer.cancel()
        pending.on_next_request = pending.on_cancel = None
        return held


def _ask_again(held: list[_Held]) -> None:
    for each in held:
        each.ask_again()
