"""Who is still there: the session of each member, and the time it has to give up partitions.

Owns the deadlines, which are soft: a new coordinator gives every member a full session again. A deadline that comes up looks at the group
as it is then, so none is cancelled when a member has moved on or is gone: that may never have been written. And one that takes a member
out is set anew first, so that it comes up again if that could not be written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from tidelog.coordinator.group.consumer.environment import Environment
from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.member import Member, MemberState
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.outcome import Now, Outcome

Fence: TypeAlias = Callable[[ConsumerGroup, Member, Event, str, Now], Outcome]
"""Take a member out of its group: why, for the history, and in words."""

_SESSION: Final = "consumer group session"
_REBALANCE: Final = "consumer group rebalance"
_DISPUTE: Final = "consumer group dispute"


class Liveness:
    __slots__ = ("_environment", "_fence")

    def __init__(self, environment: Environment, fence: Fence) -> None:
        self._environment = environment
        self._fence = fence

    def heard_from(self, group_id: str, member_id: str, session_timeout_ms: int, now: Now) -> None:
        self._environment.timers.schedule(
            (_SESSION, group_id, member_id),
            now.ms + session_timeout_ms,
            partial(self._session_over, group_id, member_id, session_timeout_ms),
        )

    def must_revoke(self, group_id: str, member: Member, now: Now) -> None:
        """It has the time that it asked for, counted from the last partition that it was told to give up."""
        timeout_ms = max(0, member.rebalance_timeout_ms)
        self._environment.timers.schedule(
            (_REBALANCE, group_id, member.id),
            now.ms + timeout_ms,
            partial(self._rebalance_over, group_id, member.id, member.epoch, timeout_ms),
        )

    def loaded(self, now: Now) -> None:
        """A log that gives one partition to two members was not written by us: the newer claim counts, the other must begin anew."""
        for group in self._environment.groups.values():
            session_timeout_ms = self._environment.times(group.id).session_timeout_ms
            for member in group.members.values():
                self.heard_from(group.id, member.id, session_timeout_ms, now)
                if member.state is MemberState.UNREVOKED_PARTITIONS:
                    self.must_revoke(group.id, member, now)
            for member in group.with_disputed_partitions():
                self._environment.timers.schedule(
                    (_DISPUTE, group.id, member.id), now.ms, partial(self._dispute_over, group.id, member.id)
                )

    def _session_over(self, group_id: str, member_id: str, timeout_ms: int, now: Now) -> Outcome:
        found = self._find(group_id, member_id)
        if found is None:
            return Outcome()
        group, member = found
        self.heard_from(group_id, member_id, timeout_ms, now)
        return self._fence(group, member, Event.TIMED_OUT, f"silent for {timeout_ms} ms", now).or_nothing()

    def _rebalance_over(
        self, group_id: str, member_id: str, epoch: int, timeout_ms: int, now: Now
    ) -> Outcome:
        found = self._find(group_id, member_id)
        if found is None:
            return Outcome()
        group, member = found
        if member.epoch != epoch or member.state is not MemberState.UNREVOKED_PARTITIONS:
            return Outcome()  # it has moved on
        self.must_revoke(group_id, member, now)
        detail = f"did not give up its partitions within {timeout_ms} ms"
        return self._fence(group, member, Event.MISSED_REBALANCE, detail, now).or_nothing()

    def _dispute_over(self, group_id: str, member_id: str, now: Now) -> Outcome:
        found = self._find(group_id, member_id)
        if found is None or found[1] not in found[0].with_disputed_partitions():
            return Outcome()
        group, member = found
        return self._fence(group, member, Event.FENCED, "the log gave its partitions to two members", now)

    def _find(self, group_id: str, member_id: str) -> tuple[ConsumerGroup, Member] | None:
        group = self._environment.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        return None if group is None or member is None else (group, member)
