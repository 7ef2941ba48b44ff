"""How long a member may be silent. Renewing costs one dictionary entry, whatever the size of the group.

Owns the deadlines of members, and of member ids that were given out and not used yet. Does not know what a silence means: that is told in
`liveness.py`, which sets `on_expired`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tidelog.coordinator.group.classic.group import ClassicGroup, ClassicMember
from tidelog.coordinator.outcome import Now, Outcome
from tidelog.coordinator.timers import Timers

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long the first JoinGroup of a member is held. Such a member sends no heartbeats, and a client that gave up and asked again has
left one behind that nobody needs: without an end, they would pile up in a long rebalance."""


class Sessions:
    __slots__ = ("_timers", "on_expired")

    on_expired: Callable[[ClassicGroup, str, Now], Outcome]

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def renew(self, group: ClassicGroup, member: ClassicMember, now: Now) -> None:
        self.expect(group, member.member_id, member.session_timeout_ms, now)

    def expect_first_generation(self, group: ClassicGroup, member: ClassicMember, now: Now) -> None:
        self.expect(group, member.member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, now)

    def expect(self, group: ClassicGroup, member_id: str, timeout_ms: int, now: Now) -> None:
        """A sign of life within this time, counted from now, instead of whenever it was expected before."""
        self._timers.schedule(
            _name(group, member_id), now.ms + timeout_ms, partial(self.on_expired, group, member_id)
        )

    def end(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel(_name(group, member_id))

    def end_all(self, group: ClassicGroup) -> None:
        for member_id in (*group.members, *group.pending_joins):
            self.end(group, member_id)


def _name(group: ClassicGroup, member_id: str) -> tuple[str, str, str]:
    return "classic session", group.group_id, member_id
