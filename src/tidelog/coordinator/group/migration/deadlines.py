"""The deadlines of members that speak the classic protocol in a consumer group: three of them, where members of the other protocol have two.

* Its session, as long as it asked for, renewed by each Heartbeat, JoinGroup and SyncGroup: the same timer that all members have.
* From the answer that tells it to join again, it has its rebalance timeout to do so.
* From its JoinGroup on, it has its rebalance timeout to ask for its assignment.

Whoever misses one is taken out of the group. All are soft: a new coordinator gives every member a full session again, and tells it again
to join. A deadline that comes up looks at the group as it is then, and is set anew before it takes a member out, so that it comes up again if that
could not be written.

Also here: the member ids that were given out and not used yet. Nobody is in the group for them, so they are forgotten, not fenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from tidelog.coordinator.group.consumer.groups import Parts
from tidelog.coordinator.group.consumer.member import Member
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.records import ClassicMemberMetadata
from tidelog.coordinator.outcome import Now, Outcome

_JOIN: Final = "hosted join"
_SYNC: Final = "hosted sync"
_GIVEN_ID: Final = "hosted member id"
_MISSED: Final = {
    _JOIN: "did not join again",
    _SYNC: "did not ask for its assignment",
}


class Deadlines:
    __slots__ = ("_parts",)

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def heard_from(self, group_id: str, member: Member, classic: ClassicMemberMetadata, now: Now) -> None:
        self._parts.liveness.heard_from(group_id, member.id, classic.session_timeout_ms, now)

    def loaded(self, now: Now) -> None:
        """The session that each of them asked for, instead of the one that consumer groups have."""
        for group in self._parts.environment.groups.values():
            for member in group.members.values():
                if member.classic is not None:
                    self.heard_from(group.id, member, member.classic, now)

    def must_join(self, group_id: str, member: Member, now: Now) -> None:
        """Counted from the first time that it is told."""
        if (_JOIN, group_id, member.id) not in self._parts.environment.timers:
            self._expect(_JOIN, group_id, member.id, member.rebalance_timeout_ms, now)

    def may_stay(self, group_id: str, member: Member) -> None:
        """It was told to join, perhaps, and did not hear it; now there is no reason any more."""
        self._parts.environment.timers.cancel((_JOIN, group_id, member.id))

    def joined(self, group_id: str, member: Member, classic: ClassicMemberMetadata, now: Now) -> None:
        timers = self._parts.environment.timers
        timers.cancel((_GIVEN_ID, group_id, member.id))
        timers.cancel((_JOIN, group_id, member.id))
        self._expect(_SYNC, group_id, member.id, member.rebalance_timeout_ms, now)
        self.heard_from(group_id, member, classic, now)

    def synced(self, group_id: str, member: Member, classic: ClassicMemberMetadata, now: Now) -> None:
        self._parts.environment.timers.cancel((_SYNC, group_id, member.id))
        self.heard_from(group_id, member, classic, now)

    def forget(self, group_id: str, member_ids: Iterable[str]) -> None:
        """The group is no consumer group any more: what these members owe, they owe to another one."""
        for member_id in member_ids:
            self._parts.environment.timers.cancel((_JOIN, group_id, member_id))
            self._parts.environment.timers.cancel((_SYNC, group_id, member_id))

    # ---- ids that were given out

    def give(self, group_id: str, member_id: str, session_timeout_ms: int, now: Now) -> None:
        self._parts.environment.timers.schedule(
            (_GIVEN_ID, group_id, member_id), now.ms + session_timeout_ms, lambda _now: Outcome()
        )

    def was_given(self, group_id: str, member_id: str) -> bool:
        return (_GIVEN_ID, group_id, member_id) in self._parts.environment.timers

    # ---- inside

    def _expect(self, what: str, group_id: str, member_id: str, timeout_ms: int, now: Now) -> None:
        self._parts.environment.timers.schedule(
            (what, group_id, member_id),
            now.ms + max(0, timeout_ms),
            partial(self._over, what, group_id, member_id, timeout_ms),
        )

    def _over(self, what: str, group_id: str, member_id: str, timeout_ms: int, now: Now) -> Outcome:
        group = self._parts.environment.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None or member.classic is None:
            return Outcome()
        self._expect(what, group_id, member_id, timeout_ms, now)
        detail = f"{_MISSED[what]} within its rebalance timeout of {timeout_ms} ms"
        return self._parts.departures.fence(group, member, Event.MISSED_REBALANCE, detail, now).or_nothing()
