"""Answers to members of classic groups that are kept back: "all is well" until it is no longer true.

A member hears of a rebalance in the answer to a heartbeat, and sends one every three seconds, so every rebalance waits for the member whose
heartbeat is furthest away. Two kinds of answers wait here for something to tell, and are given the moment it happens:

* to a heartbeat, until the member is about to send the next one;
* to a SyncGroup, for a moment, if the assignment changes nothing for this member but takes partitions from others: as soon as those have given
  them up, the next rebalance begins (`coordinator/group/follow_up.py`).

To the member it is a slow answer. It is given up at once when the client sends something else on the connection, because answers keep their order.
And it is only kept from clients that are known to go on with their work meanwhile: others read no records until their heartbeat is
answered (KafkaJS), and would stand still. Who closes the connection while it waits has less patience than expected, and is not made to wait again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from tidelog.broker.pending import Pending

JAVA: Final = "apache-kafka-java"
ASYNCHRONOUS: Final = (JAVA, "rdkafka")
"""Names that such clients give to their software, or to a part of its version: `confluent-kafka-python` says `2.16.1-rdkafka-2.16.0`."""
IMPATIENT_MAX: Final = 10_000
ASKED_AT_ONCE: Final = 100
"""In one turn of the loop: some milliseconds. A group may have thousands of members."""


def joins_again_at_once(software: tuple[str, str] | None) -> bool:
    """When it is told of a rebalance by the answer to a SyncGroup. librdkafka takes one to two seconds then; a newcomer of it, which sends its first
    heartbeat as soon as it has an assignment, hears of it sooner that way.
    """
    return software is not None and JAVA in software[0]


class _Held:
    __slots__ = ("answer", "ask_again", "timer")

    def __init__(
        self, answer: Callable[[], None], ask_again: Callable[[], None], timer: asyncio.TimerHandle
    ) -> None:
        self.answer = answer
        self.ask_again = ask_again
        self.timer = timer


class HeldAnswers:
    """Bounded by the connections: each request releases the answer before its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: dict[str, dict[Pending, _Held]] = {}  # by group
        self._disturbed: deque[Callable[[], None]] = deque()  # who is to ask again
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
        """Something happened to the group: its members are to be told, from the loop's next turn on. May be called while it still happens."""
        held = self._held.pop(group_id, None)
        if held is None:
            return
        if not self._disturbed:
            self._loop.call_soon(self._ask_again)
        for pending, each in held.items():
            self._disturbed.append(each.ask_again)
            each.timer.cancel()
            pending.on_next_request = pending.on_cancel = None

    def _ask_again(self) -> None:
        try:
            for _ in range(min(len(self._disturbed), ASKED_AT_ONCE)):
                self._disturbed.popleft()()
        finally:  # one that fails keeps nobody else waiting
            if self._disturbed:
                self._loop.call_soon(self._ask_again)

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
