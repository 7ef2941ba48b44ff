"""A rebalance of a classic group, from its reason to the new generation: who is waited for, for how long, and what ends it.

Owns every change of a group's state but one (to Stable: `sync.py`), and the deadlines of a rebalance. Keeps I38: whoever waits in a JoinGroup
or SyncGroup is answered within the group's rebalance timeout, with a generation, an assignment or an error.

Functions take the outcome that they add to. Only a group that becomes Empty is written here, and then nothing else is written with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tidelog.coordinator.group.classic import responses
from tidelog.coordinator.group.classic.group import NO_ASSIGNMENT, ClassicGroup, ClassicMember
from tidelog.coordinator.group.classic.sessions import Sessions
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.classic.stored import record_of, value_of_emptied
from tidelog.coordinator.group.history import Event, GroupHistory
from tidelog.coordinator.group.records import GroupMetadataValue
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.outcome import Now, Outcome
from tidelog.coordinator.timers import Timers
from tidelog.wire.error_codes import ErrorCode

GATHER_TIMES_MAX: Final = 10
"""A crowd that does not end is waited for so many times as long as a gap in it."""


class Rebalances:
    __slots__ = ("_history", "_sessions", "_settings", "_timers", "on_disturbed")

    def __init__(
        self, settings: GroupSettings, timers: Timers, sessions: Sessions, history: GroupHistory
    ) -> None:
        self._settings = settings
        self._timers = timers
        self._sessions = sessions
        self._history = history
        self.on_disturbed: Callable[[str], None] = lambda group_id: None

    def begin_or_go_on(self, group: ClassicGroup, reason: str, now: Now, out: Outcome) -> None:
        """A change that needs a new generation: the rebalance that goes on takes it in, or one begins."""
        if group.state is State.PREPARING_REBALANCE:
            self.go_on(group, now, out)
        else:
            self.begin(group, reason, now, out)

    def begin(self, group: ClassicGroup, reason: str, now: Now, out: Outcome) -> None:
        if group.state is State.COMPLETING_REBALANCE:
            self._call_off_syncs(group, now, out)
        self._end_sync_time(group)
        group.waits_for_first_members = group.state is State.EMPTY
        group.joined_in_delay = False
        group.rebalance_began_ms = now.ms
        group.enter(State.PREPARING_REBALANCE, now.wall_ms)
        self.on_disturbed(group.group_id)
        self._history.note(
            now, group.group_id, Event.REBALANCE_BEGAN, generation=group.generation, detail=reason
        )
        if group.waits_for_first_members:
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._wait_for_first_members(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0), now)
        else:
            self._wait_for_joins(group, now)
            self.go_on(group, now, out)

    def go_on(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """Somebody joined or is no longer waited for: perhaps that was the last one."""
        if (
            group.state is State.PREPARING_REBALANCE
            and not group.waits_for_first_members
            and group.all_joined
        ):
            self._end_joining_unless_more_come(group, now, out)

    def dismiss(self, group: ClassicGroup, member: ClassicMember, out: Outcome) -> None:
        """Take a member out. If it waits, it is told so, and joins anew if it is still there."""
        waiter = group.release_join(member)
        if waiter is not None:
            out.answer(waiter, responses.join_refused(ErrorCode.UNKNOWN_MEMBER_ID, responses.NO_MEMBER_ID))
        if member.sync_waiter is not None:
            out.answer(member.sync_waiter, responses.sync_refused(ErrorCode.UNKNOWN_MEMBER_ID))
            member.sync_waiter = None
        self._sessions.end(group, member.member_id)
        group.remove(member)
        self.on_disturbed(group.group_id)

    def member_synced(self, group: ClassicGroup, member: ClassicMember) -> None:
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self._end_sync_time(group)

    def end_all(self, group: ClassicGroup) -> None:
        """The group goes: no deadline of it is left behind."""
        self._timers.cancel(_joining(group))
        self._timers.cancel(_gathering(group))
        self._end_sync_time(group)
        self._sessions.end_all(group)
        self.on_disturbed(group.group_id)

    # ---- waiting for joins

    def _wait_for_joins(self, group: ClassicGroup, now: Now) -> None:
        self._timers.schedule(
            _joining(group), now.ms + group.rebalance_timeout_ms, partial(self._join_time_over, group)
        )

    def _end_joining_unless_more_come(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        ends_ms = self._gathered_at_ms(group)
        if now.ms < ends_ms:
            self._timers.schedule(_gathering(group), ends_ms, partial(self._gathered, group))
        else:
            self._end_joining(group, now, out)

    def _gathered_at_ms(self, group: ClassicGroup) -> int:
        """Newcomers come in crowds, as when a service is deployed. Whoever comes a moment too late would send back all those who by
        then wait for an assignment, and clients take a second or two to come again.
        """
        gather_ms = self._settings.join_gather_ms
        if not group.members:
            return 0
        return min(
            group.latest_newcomer_ms + gather_ms, group.rebalance_began_ms + GATHER_TIMES_MAX * gather_ms
        )

    def _gathered(self, group: ClassicGroup, now: Now) -> Outcome:
        out = Outcome()
        self.go_on(group, now, out)
        return out

    def _join_time_over(self, group: ClassicGroup, now: Now) -> Outcome:
        out = Outcome()
        self._end_joining(group, now, out)
        return out

    def _wait_for_first_members(self, group: ClassicGroup, delay_ms: int, left_ms: int, now: Now) -> None:
        self._timers.schedule(
            _joining(group), now.ms + delay_ms, partial(self._delay_over, group, delay_ms, left_ms)
        )

    def _delay_over(self, group: ClassicGroup, delay_ms: int, left_ms: int, now: Now) -> Outcome:
        """Once more, if somebody came and the members' patience allows it."""
        if not (group.joined_in_delay and left_ms):
            ends_ms = self._gathered_at_ms(group)
            if now.ms < ends_ms:
                self._wait_for_first_members(group, ends_ms - now.ms, 0, now)
                return Outcome()
            return self._join_time_over(group, now)
        group.joined_in_delay = False
        next_delay_ms = min(self._settings.initial_rebalance_delay_ms, left_ms)
        self._wait_for_first_members(group, next_delay_ms, max(left_ms - delay_ms, 0), now)
        return Outcome()

    def _end_joining(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        self._timers.cancel(_joining(group))
        self._timers.cancel(_gathering(group))
        group.waits_for_first_members = False
        if not group.all_joined:
            self._remove_absent(group, now, out)
        if not group.members:
            self._become_empty(group, now, out)
        elif group.elect_joined_leader():
            self._begin_generation(group, now, out)
        else:
            # Only static members are left, and none of them came. They keep their place until their sessions end.
            self._wait_for_joins(group, now)

    def _remove_absent(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """Static members stay: being away for a while is what they are for. Their session says for how long."""
        not_joined = [member for member in group.members.values() if member.join_waiter is None]
        timeout_ms = group.rebalance_timeout_ms
        for member in not_joined:
            if member.instance_id is not None:
                continue
            self._missed(group, member, "did not join again", timeout_ms, now)
            self.dismiss(group, member, out)

    def _begin_generation(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        group.next_generation(now.wall_ms)
        for member in group.members.values():
            waiter = group.release_join(member)
            if waiter is not None:
                is_leader = member.member_id == group.leader
                out.answer(waiter, responses.joined(group, member, with_members=is_leader))
            member.is_new = False
            self._sessions.renew(group, member, now)
        group.pending_syncs = set(group.members)
        self._timers.schedule(
            _syncing(group), now.ms + group.rebalance_timeout_ms, partial(self._sync_time_over, group)
        )

    # ---- waiting for syncs

    def _end_sync_time(self, group: ClassicGroup) -> None:
        group.pending_syncs.clear()
        self._timers.cancel(_syncing(group))

    def _sync_time_over(self, group: ClassicGroup, now: Now) -> Outcome:
        out = Outcome()
        absent = [group.members[member_id] for member_id in sorted(group.pending_syncs)]
        timeout_ms = group.rebalance_timeout_ms
        for member in absent:
            self._missed(group, member, "did not ask for its assignment", timeout_ms, now)
            self.dismiss(group, member, out)
        self.begin(group, f"{_names(absent)} did not ask for an assignment in time", now, out)
        return out

    def _call_off_syncs(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        for member in group.members.values():
            member.assignment = NO_ASSIGNMENT
            if member.sync_waiter is not None:
                out.answer(member.sync_waiter, responses.sync_refused(ErrorCode.REBALANCE_IN_PROGRESS))
                member.sync_waiter = None
                self._sessions.renew(group, member, now)

    # ---- nobody left

    def _become_empty(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        value = value_of_emptied(group, now.wall_ms)
        assert not out.records
        out.records.append(record_of(group.group_id, value))

        def emptied(stored: GroupMetadataValue) -> None:
            group.become_empty(stored)
            self._history.note(
                now,
                group.group_id,
                Event.REBALANCE_ENDED,
                generation=group.generation,
                detail="no member is left",
            )

        def failed(_error: ErrorCode, _now: Now) -> Outcome:
            # Nobody is in this generation, so it does not matter who knows of it. If the coordinator moves before the next record,
            # the generation before comes back, and its members time out once more.
            group.on_written = None
            emptied(value)
            return Outcome(answers=out.answers)

        group.on_written = emptied
        out.on_failed = failed

    # ---- the history

    def note(self, group: ClassicGroup, event: Event, member: ClassicMember, detail: str, now: Now) -> None:
        """What happened to a member, for `tidelog explain group`."""
        self._history.note(
            now,
            group.group_id,
            event,
            generation=group.generation,
            member_id=member.member_id,
            client=member.client,
            detail=detail,
        )

    def _missed(
        self, group: ClassicGroup, member: ClassicMember, how: str, timeout_ms: int, now: Now
    ) -> None:
        detail = f"{how} within the rebalance timeout of {timeout_ms} ms"
        self.note(group, Event.MISSED_REBALANCE, member, detail, now)


def _names(members: list[ClassicMember]) -> str:
    return f"member {members[0].member_id}" if len(members) == 1 else f"{len(members)} members"


def _joining(group: ClassicGroup) -> tuple[str, str]:
    return "classic join", group.group_id


def _gathering(group: ClassicGroup) -> tuple[str, str]:
    return "classic gathering", group.group_id


def _syncing(group: ClassicGroup) -> tuple[str, str]:
    return "classic sync", group.group_id
