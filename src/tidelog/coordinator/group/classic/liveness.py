"""Signs of life and their absence: Heartbeat, LeaveGroup, commits as a sign of life, and sessions that end.

Owns the ways out of a group but one (to miss a rebalance: `rebalance.py`). A heartbeat looks at its own member and nothing else, so that it costs the
same in a group of ten thousand.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.coordinator.group.classic.group import ClassicGroup, ClassicMember
from tidelog.coordinator.group.classic.rebalance import Rebalances
from tidelog.coordinator.group.classic.sessions import NEW_MEMBER_JOIN_TIMEOUT_MS, Sessions
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.outcome import Now, Outcome, Waiter
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.leave_group import MemberIdentity, MemberResponse


class Liveness:
    __slots__ = ("_rebalances", "_sessions")

    def __init__(self, sessions: Sessions, rebalances: Rebalances) -> None:
        self._sessions = sessions
        self._rebalances = rebalances
        sessions.on_expired = self._expired

    # ---- signs of life

    def heartbeat(
        self, group: ClassicGroup, request: HeartbeatRequest, waiter: Waiter, now: Now, out: Outcome
    ) -> None:
        member = group.check_member(request.member_id, request.group_instance_id)
        _check_generation(group, request.generation_id)
        self._sessions.renew(group, member, now)
        rebalances = group.state is State.PREPARING_REBALANCE
        code = ErrorCode.REBALANCE_IN_PROGRESS if rebalances else ErrorCode.NONE
        out.answer(waiter, HeartbeatResponse(error_code=code))

    def check_commit(
        self,
        group: ClassicGroup,
        member_id: str,
        instance_id: str | None,
        generation: int,
        is_transactional: bool,
        now: Now,
    ) -> None:
        if generation < 0 and group.state is State.EMPTY:
            return  # an admin, or a consumer that assigns its partitions itself
        if generation < 0 and not member_id and instance_id is None:
            # Old versions of TxnOffsetCommit do not say who commits.
            if not is_transactional:
                raise RequestError(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"group {group.group_id} has members: only they may commit; stop them first, or use another group id",
                )
            return
        member = group.check_member(member_id, instance_id)
        _check_generation(group, generation)
        if is_transactional:
            return
        if group.state is State.COMPLETING_REBALANCE:
            raise RequestError(
                ErrorCode.REBALANCE_IN_PROGRESS,
                f"group {group.group_id} is between two generations: commit again after the next SyncGroup",
            )
        self._sessions.renew(group, member, now)

    # ---- leaving

    def leave(
        self, group: ClassicGroup, who: Sequence[MemberIdentity], now: Now, out: Outcome
    ) -> list[MemberResponse]:
        """An error of one does not keep the others; all who leave cause one rebalance."""
        told: list[MemberResponse] = []
        left: list[str] = []
        for identity in who:
            code = ErrorCode.NONE
            try:
                member = self._leave(group, identity, now, out)
                if member is not None:
                    left.append(member.member_id)
            except RequestError as error:
                code = error.code
            told.append(
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=code,
                )
            )
        if left:
            why = f"member {left[0]} left" if len(left) == 1 else f"{len(left)} members left"
            self._rebalances.begin_or_go_on(group, why, now, out)
        else:
            self._rebalances.go_on(group, now, out)
        return told

    def _leave(
        self, group: ClassicGroup, identity: MemberIdentity, now: Now, out: Outcome
    ) -> ClassicMember | None:
        """None: an id that was given out and never used. No generation has it, so none ends because of it."""
        if identity.member_id in group.pending_joins:
            group.pending_joins.remove(identity.member_id)
            self._sessions.end(group, identity.member_id)
            return None
        member_id = identity.member_id
        if not member_id and identity.group_instance_id is not None:
            # An administrator removes a static member without knowing its member id.
            member_id = group.instances.get(identity.group_instance_id, "")
        member = group.check_member(member_id, identity.group_instance_id)
        self._rebalances.note(group, Event.LEFT, member, identity.reason or "", now)
        self._rebalances.dismiss(group, member, out)
        return member

    # ---- silence

    def _expired(self, group: ClassicGroup, member_id: str, now: Now) -> Outcome:
        out = Outcome()
        if member_id in group.pending_joins:
            group.pending_joins.remove(member_id)
            self._rebalances.go_on(group, now, out)
            return out
        member = group.members[member_id]
        if member.waits and not member.is_new:
            return out  # it waits for us, not we for it: its session begins anew with the answer
        how_long_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self._rebalances.note(group, Event.TIMED_OUT, member, f"silent for {how_long_ms} ms", now)
        self._rebalances.dismiss(group, member, out)
        self._rebalances.begin_or_go_on(group, f"member {member_id} timed out", now, out)
        return out


def _check_generation(group: ClassicGroup, generation: int) -> None:
    if generation != group.generation:
        raise RequestError(
            ErrorCode.ILLEGAL_GENERATION,
            f"group {group.group_id} is at generation {group.generation}, not {generation}: join again",
        )
