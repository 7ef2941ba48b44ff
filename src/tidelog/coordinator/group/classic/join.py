"""JoinGroup: somebody wants to be a member, or to be one again.

Owns what a join means in each state of the group. A join that needs a new generation is held, and `rebalance.py` says when it is answered; one that
needs none is answered with the generation there is. Refusals leave the group as it was, but for one: who finds the group full is no
longer waited for.

What the versions differ in: from 4 on a dynamic member is first given an id and asked to come back with it (MEMBER_ID_REQUIRED, KIP-394), so that a
client that gives up and asks again does not leave a member behind. From 5 on there are static members (KIP-345), from 8 on reasons (KIP-800). From 9 on
a leader that comes back to a generation that stays is told so, with SkipAssignment (KIP-814).
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from tidelog.coordinator.group.classic import responses
from tidelog.coordinator.group.classic.group import ClassicGroup, ClassicMember, SupportedProtocol
from tidelog.coordinator.group.classic.rebalance import Rebalances
from tidelog.coordinator.group.classic.sessions import Sessions
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.classic.stored import nothing_else, record_of, value_as_it_is
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import Now, Outcome, Waiter, answered
from tidelog.errors import RequestError
from tidelog.ports import Rng
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.join_group import JoinGroupRequest

FIRST_WITH_REQUIRED_MEMBER_ID: Final = 4
FIRST_WITH_SKIP_ASSIGNMENT: Final = 9


class Joining(NamedTuple):
    """One JoinGroup request, as the rules see it."""

    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[SupportedProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    reason: str
    client: Client
    waiter: Waiter


def joining(request: JoinGroupRequest, client: Client, waiter: Waiter) -> Joining:
    first_of_each = {each.name: each.metadata for each in reversed(request.protocols)}
    names = dict.fromkeys(each.name for each in request.protocols)
    return Joining(
        request.member_id,
        request.group_instance_id,
        request.protocol_type,
        tuple(SupportedProtocol(name, first_of_each[name]) for name in names),
        request.session_timeout_ms,
        # Version 0 has none.
        request.rebalance_timeout_ms if request.rebalance_timeout_ms > 0 else request.session_timeout_ms,
        request.reason or "",
        client,
        waiter,
    )


def new_member_id(rng: Rng, prefix: str) -> str:
    """Kafka's form: the client id or instance id, and a random UUID."""
    return f"{prefix}-{uuid.UUID(bytes=rng.randbytes(16), version=4)}"


class Joins:
    __slots__ = ("_rebalances", "_rng", "_sessions", "_settings")

    def __init__(
        self,
        settings: GroupSettings,
        rng: Rng,
        sessions: Sessions,
        rebalances: Rebalances,
    ) -> None:
        self._settings = settings
        self._rng = rng
        self._sessions = sessions
        self._rebalances = rebalances

    def join(self, group: ClassicGroup, who: Joining, now: Now, out: Outcome) -> None:
        if not self._has_room(group, who.member_id):
            self._turn_away(group, who, now, out)
            return
        if not group.supports(who.protocol_type, who.protocols):
            raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, _why_inconsistent(group, who))
        if who.member_id:
            self._join_as_known(group, who, now, out)
        elif who.instance_id is not None and who.instance_id in group.instances:
            self._take_over(group, who, now, out)
        elif who.instance_id is None and who.client.version >= FIRST_WITH_REQUIRED_MEMBER_ID:
            self._give_member_id(group, who, now, out)
        else:
            self._add(group, who, self._new_id(who), now, out)

    # ---- room

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """While joins are held, those that wait are counted: of a group that is too large, the first to join again stay."""
        if group.state is State.PREPARING_REBALANCE:
            member = group.members.get(member_id)
            waits = member is not None and member.join_waiter is not None
            return waits or group.waiting_joins < self._settings.max_size
        return (
            group.state is State.EMPTY
            or member_id in group.members
            or len(group.members) < self._settings.max_size
        )

    def _turn_away(self, group: ClassicGroup, who: Joining, now: Now, out: Outcome) -> None:
        out.answer(
            who.waiter, responses.join_refused(ErrorCode.GROUP_MAX_SIZE_REACHED, responses.NO_MEMBER_ID)
        )
        member = group.members.get(who.member_id)
        if member is not None:
            self._rebalances.note(group, Event.LEFT, member, "the group is full (group.max.size)", now)
            self._rebalances.dismiss(group, member, out)
        elif who.member_id in group.pending_joins:
            group.pending_joins.remove(who.member_id)
            self._sessions.end(group, who.member_id)
        self._rebalances.go_on(group, now, out)

    # ---- new members

    def _new_id(self, who: Joining) -> str:
        return new_member_id(self._rng, who.client.id if who.instance_id is None else who.instance_id)

    def _give_member_id(self, group: ClassicGroup, who: Joining, now: Now, out: Outcome) -> None:
        member_id = self._new_id(who)
        group.pending_joins.add(member_id)
        self._sessions.expect(group, member_id, who.session_timeout_ms, now)
        out.answer(who.waiter, responses.join_refused(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _add(self, group: ClassicGroup, who: Joining, member_id: str, now: Now, out: Outcome) -> None:
        member = _member(who, member_id)
        member.is_new = True
        if not group.members:
            group.protocol_type = who.protocol_type
        group.joined_in_delay = group.waits_for_first_members
        group.latest_newcomer_ms = now.ms
        group.add(member, who.waiter)
        self._sessions.expect_first_generation(group, member, now)
        self._rebalances.note(group, Event.JOINED, member, who.reason, now)
        self._rebalances.begin_or_go_on(group, _because(f"member {member_id} joined", who), now, out)

    # ---- members that join again

    def _join_as_known(self, group: ClassicGroup, who: Joining, now: Now, out: Outcome) -> None:
        if who.instance_id is None and who.member_id in group.pending_joins:
            self._add(group, who, who.member_id, now, out)
            return
        member = group.check_member(who.member_id, who.instance_id)
        changed = member.protocols != who.protocols
        leads = group.leader == who.member_id
        if group.state is State.PREPARING_REBALANCE or changed or (leads and group.state is State.STABLE):
            # The leader may know of something that the group does not, such as a topic that has more partitions.
            why = f"member {who.member_id} changed its subscription" if changed else "the leader asked for it"
            self._join_again(group, member, who, now, out)
            self._rebalances.begin_or_go_on(group, _because(why, who), now, out)
        else:
            # It may have missed the answer to its last join; with this one it can sync.
            out.answer(who.waiter, responses.joined(group, member, with_members=leads))

    def _join_again(
        self, group: ClassicGroup, member: ClassicMember, who: Joining, now: Now, out: Outcome
    ) -> None:
        if member.protocols != who.protocols:
            self._rebalances.note(group, Event.CHANGED_SUBSCRIPTION, member, who.reason, now)
        group.update(
            member,
            who.protocols,
            session_timeout_ms=who.session_timeout_ms,
            rebalance_timeout_ms=who.rebalance_timeout_ms,
        )
        earlier = group.hold_join(member, who.waiter)
        if earlier is not None:
            # Nobody reads this: a client has one join under way. But no request is left without an answer.
            out.answer(earlier, responses.join_refused(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    # ---- static members

    def _take_over(self, group: ClassicGroup, who: Joining, now: Now, out: Outcome) -> None:
        """A process that was restarted takes the place of the one before, which is fenced from now on."""
        assert who.instance_id is not None
        old = group.members[group.instances[who.instance_id]]
        new = _member(who, self._new_id(who))
        new.assignment = old.assignment
        leader_before = group.leader
        self._rebalances.note(
            group, Event.FENCED, old, f"{new.client} took its instance id {who.instance_id}", now
        )
        self._fence(group, old, out)
        self._swap(group, old, new, now)
        if group.state is State.STABLE and group.vote() == group.protocol:
            self._keep_generation(group, who, old, new, leader_before, now, out)
            return
        group.hold_join(new, who.waiter)
        # The leader may already have been told the old id, and would assign to that one.
        why = f"static member {who.instance_id} was replaced by {new.member_id}"
        self._rebalances.begin_or_go_on(group, _because(why, who), now, out)

    def _fence(self, group: ClassicGroup, member: ClassicMember, out: Outcome) -> None:
        waiter = group.release_join(member)
        if waiter is not None:
            out.answer(waiter, responses.join_refused(ErrorCode.FENCED_INSTANCE_ID, member.member_id))
        if member.sync_waiter is not None:
            out.answer(member.sync_waiter, responses.sync_refused(ErrorCode.FENCED_INSTANCE_ID))
            member.sync_waiter = None

    def _swap(self, group: ClassicGroup, gone: ClassicMember, here: ClassicMember, now: Now) -> None:
        group.replace(gone, here)
        self._rebalances.on_disturbed(group.group_id)
        self._sessions.end(group, gone.member_id)
        self._sessions.renew(group, here, now)

    def _keep_generation(
        self,
        group: ClassicGroup,
        who: Joining,
        old: ClassicMember,
        new: ClassicMember,
        leader_before: str | None,
        now: Now,
        out: Outcome,
    ) -> None:
        """Nothing changes for the others, so they are not disturbed. The new id is written, and taken back if that fails."""

        def failed(error: ErrorCode, failed_at: Now) -> Outcome:
            group.on_written = None
            self._swap(group, new, old, failed_at)
            return answered(who.waiter, responses.join_refused(error, responses.NO_MEMBER_ID))

        group.on_written = nothing_else
        out.records.append(record_of(group.group_id, value_as_it_is(group)))
        out.on_failed = failed
        leads = group.leader == new.member_id
        if who.client.version >= FIRST_WITH_SKIP_ASSIGNMENT:
            answer = responses.joined(group, new, with_members=leads, skip_assignment=leads)
        else:
            # The former leader's id: a member that does not think it leads will not send an assignment of its own.
            answer = responses.joined(group, new, leader=leader_before, with_members=False)
        out.answer(who.waiter, answer)


def _member(who: Joining, member_id: str) -> ClassicMember:
    return ClassicMember(
        member_id=member_id,
        instance_id=who.instance_id,
        client_id=who.client.id,
        client_host=who.client.host,
        session_timeout_ms=who.session_timeout_ms,
        rebalance_timeout_ms=who.rebalance_timeout_ms,
        protocols=who.protocols,
    )


def _because(what: str, who: Joining) -> str:
    return f"{what}: {who.reason}" if who.reason else what


def _why_inconsistent(group: ClassicGroup, who: Joining) -> str:
    offered = ", ".join(name for name, _ in who.protocols) or "none"
    if not group.members:
        return f"who joins group {group.group_id} must name a protocol type and at least one protocol"
    if group.protocol_type != who.protocol_type:
        return (
            f"the members of group {group.group_id} are of type {group.protocol_type}, not {who.protocol_type or 'none'}: "
            "use another group id"
        )
    return (
        f"every member of group {group.group_id} supports {', '.join(group.common_protocols)}, and this one none of them, but "
        f"{offered}: let all members have one in common (consumers: partition.assignment.strategy)"
    )
