"""SyncGroup: members ask for their assignment, and the leader brings those of all.

Owns the way from CompletingRebalance to Stable. The assignments are written as one record. Everybody who waits is answered when that record is committed,
so no member ever works on an assignment that a restart could take back (I34, I36). Who asks later is answered
from the group as it is, after everything that was written before. If the record cannot be written, all who wait are told the error, and the group rebalances.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.coordinator.group.classic import responses
from tidelog.coordinator.group.classic.group import NO_ASSIGNMENT, ClassicGroup, ClassicMember
from tidelog.coordinator.group.classic.rebalance import Rebalances
from tidelog.coordinator.group.classic.sessions import Sessions
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.classic.stored import record_of, value_of
from tidelog.coordinator.group.history import Event, GroupHistory
from tidelog.coordinator.group.records import GroupMetadataValue
from tidelog.coordinator.outcome import Now, Outcome, Waiter
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.sync_group import SyncGroupRequest


class _Waiting(NamedTuple):
    member: ClassicMember
    waiter: Waiter


class Syncs:
    __slots__ = ("_history", "_rebalances", "_sessions")

    def __init__(self, sessions: Sessions, rebalances: Rebalances, history: GroupHistory) -> None:
        self._sessions = sessions
        self._rebalances = rebalances
        self._history = history

    def sync(
        self, group: ClassicGroup, request: SyncGroupRequest, waiter: Waiter, now: Now, out: Outcome
    ) -> None:
        member = group.check_member(request.member_id, request.group_instance_id)
        _check_generation(group, request)
        if group.state is State.PREPARING_REBALANCE:
            raise RequestError(
                ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id} rebalances: join again"
            )
        self._rebalances.member_synced(group, member)
        if group.state is State.STABLE:
            out.answer(waiter, responses.synced(group, member.assignment))
            return
        if member.sync_waiter is not None:
            # As for joins: one that nobody reads, but no request is left without an answer.
            out.answer(member.sync_waiter, responses.sync_refused(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_waiter = waiter
        if group.leader == member.member_id:
            self._hand_out(group, {each.member_id: each.assignment for each in request.assignments}, now, out)

    def _hand_out(self, group: ClassicGroup, assignments: dict[str, bytes], now: Now, out: Outcome) -> None:
        waiting = self._release(group, now)

        def written(value: GroupMetadataValue) -> None:
            group.take_assignments(value)
            self._history.note(
                now,
                group.group_id,
                Event.REBALANCE_ENDED,
                generation=group.generation,
                member_id=group.leader or "",
                detail=f"{len(group.members)} members, assigned by {group.leader} with {group.protocol}",
            )

        def failed(error: ErrorCode, failed_at: Now) -> Outcome:
            group.on_written = None
            instead = Outcome()
            for _, waiter in waiting:
                instead.answer(waiter, responses.sync_refused(error))
            why = f"the assignment could not be stored: {error.name}"
            self._rebalances.begin(group, why, failed_at, instead)
            return instead

        group.on_written = written
        out.records.append(record_of(group.group_id, value_of(group, now.wall_ms, assignments)))
        out.on_failed = failed
        for member, waiter in waiting:
            out.answer(waiter, responses.synced(group, assignments.get(member.member_id, NO_ASSIGNMENT)))

    def _release(self, group: ClassicGroup, now: Now) -> list[_Waiting]:
        """Everybody who waits. Their sessions begin anew: a deadline that passed while they waited was ignored, and is gone."""
        waiting = [
            _Waiting(member, member.sync_waiter)
            for member in group.members.values()
            if member.sync_waiter is not None
        ]
        for member, _ in waiting:
            member.sync_waiter = None
            self._sessions.renew(group, member, now)
        return waiting


def _check_generation(group: ClassicGroup, request: SyncGroupRequest) -> None:
    if request.generation_id != group.generation:
        raise RequestError(
            ErrorCode.ILLEGAL_GENERATION,
            f"group {group.group_id} is at generation {group.generation}, not {request.generation_id}: join again",
        )
    for what, named, chosen in (
        ("type", request.protocol_type, group.protocol_type),
        ("protocol", request.protocol_name, group.protocol),
    ):
        if named is not None and chosen is not None and named != chosen:
            raise RequestError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {group.group_id} has {chosen} as {what}, not {named}: join again",
            )
