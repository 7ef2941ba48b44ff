"""All classic groups of one shard: what the shard, and the move between the protocols, may ask of them.

Owns which groups there are. A handler takes a request and returns what to write and whom to answer; it changes nothing that the log holds. That
happens in `replay_group`, which the runtime calls for every record, at once after a handler and when a shard is loaded. So a group that is loaded is the one
that was written last (I36): in the middle of a rebalance, that is the generation before, and its members are told to join again by the
first answer they get.

Refusals are `RequestError`s, except where an answer says more than an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from tidelog.coordinator.group.classic import describe, responses
from tidelog.coordinator.group.classic.group import CONSUMER, ClassicGroup, ClassicMember
from tidelog.coordinator.group.classic.join import Joins, joining
from tidelog.coordinator.group.classic.liveness import Liveness
from tidelog.coordinator.group.classic.rebalance import Rebalances
from tidelog.coordinator.group.classic.sessions import Sessions
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.classic.stored import (
    group_of,
    nothing_else,
    record_of,
    value_as_it_is,
    value_of_new,
)
from tidelog.coordinator.group.classic.sync import Syncs
from tidelog.coordinator.group.history import GroupHistory
from tidelog.coordinator.group.records import GroupMetadataKey, GroupMetadataValue
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import CoordinatorRecord, Now, Outcome, Waiter, answered
from tidelog.coordinator.timers import Timers
from tidelog.errors import RequestError
from tidelog.ports import Rng
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.describe_groups import DescribedGroup
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest
from tidelog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from tidelog.wire.messages.sync_group import SyncGroupRequest

FIRST_LEAVE_WITH_MEMBERS: Final = 3
FIRST_SYNC_WITH_PROTOCOL: Final = 5
FIRST_COMMIT_WITH_NOT_FOUND: Final = 9


class ClassicGroups:
    __slots__ = (
        "_groups",
        "_joins",
        "_liveness",
        "_rebalances",
        "_sessions",
        "_settings",
        "_syncs",
    )

    def __init__(self, settings: GroupSettings, rng: Rng, timers: Timers, history: GroupHistory) -> None:
        self._settings = settings
        self._groups: dict[str, ClassicGroup] = {}
        self._sessions = Sessions(timers)
        self._rebalances = Rebalances(settings, timers, self._sessions, history)
        self._joins = Joins(settings, rng, self._sessions, self._rebalances)
        self._syncs = Syncs(self._sessions, self._rebalances, history)
        self._liveness = Liveness(self._sessions, self._rebalances)

    def when_disturbed(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with a group's id, in the middle of things, when a heartbeat of its members may have another answer than a moment ago."""
        self._rebalances.on_disturbed = tell

    def __iter__(self) -> Iterator[ClassicGroup]:
        return iter(self._groups.values())

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def get(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    # ---- requests of members

    def join(self, request: JoinGroupRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        self.check_join(request)
        who = joining(request, client, waiter)
        out = Outcome()
        group = self._groups.get(request.group_id)
        if group is not None:
            self._joins.join(group, who, now, out)
            return out
        if request.member_id:
            raise _not_found(request.group_id)
        group = ClassicGroup(request.group_id, state_since_ms=now.wall_ms)
        self._joins.join(group, who, now, out)
        return self._create(group, waiter, now, out)

    def check_join(self, request: JoinGroupRequest) -> None:
        """What a JoinGroup must be, whatever the group is."""
        _check_group_id(request.group_id)
        shortest_ms, longest_ms = self._settings.min_session_timeout_ms, self._settings.max_session_timeout_ms
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            raise RequestError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"a session timeout of {request.session_timeout_ms} ms is not between {shortest_ms} and {longest_ms} ms: "
                "change session.timeout.ms of the client, or group.min.session.timeout.ms and group.max.session.timeout.ms",
            )

    def sync(self, request: SyncGroupRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        self.check_sync(request, client)
        out = Outcome()
        self._syncs.sync(self._known(request.group_id), request, waiter, now, out)
        return out

    def check_sync(self, request: SyncGroupRequest, client: Client) -> None:
        """What a SyncGroup must be, whatever the group is."""
        _check_group_id(request.group_id)
        unnamed = request.protocol_type is None or request.protocol_name is None
        if unnamed and client.version >= FIRST_SYNC_WITH_PROTOCOL:
            raise RequestError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"SyncGroup from version {FIRST_SYNC_WITH_PROTOCOL} on names the protocol type and the protocol",
            )

    def heartbeat(self, request: HeartbeatRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        _check_group_id(request.group_id)
        out = Outcome()
        self._liveness.heartbeat(self._known(request.group_id), request, waiter, now, out)
        return out

    def leave(self, request: LeaveGroupRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        _check_group_id(request.group_id)
        alone = client.version < FIRST_LEAVE_WITH_MEMBERS
        who = [MemberIdentity(member_id=request.member_id)] if alone else request.members
        out = Outcome()
        group = self._groups.get(request.group_id)
        if group is None:
            told = [_unknown(each) for each in who]
        else:
            told = self._liveness.leave(group, who, now, out)
        if alone:
            return out.answer(waiter, LeaveGroupResponse(error_code=told[0].error_code))
        return out.answer(waiter, LeaveGroupResponse(members=told))

    # ---- commits and offsets

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        is_transactional: bool,
        now: Now,
        *,
        version: int = 0,
    ) -> None:
        """Whether this member may commit now. A commit is a sign of life. `version` is that of OffsetCommit."""
        group = self._groups.get(group_id)
        if group is not None:
            self._liveness.check_commit(group, member_id, instance_id, generation, is_transactional, now)
        elif generation >= 0:
            told = version >= FIRST_COMMIT_WITH_NOT_FOUND and not is_transactional
            raise RequestError(
                ErrorCode.GROUP_ID_NOT_FOUND if told else ErrorCode.ILLEGAL_GENERATION,
                f"there is no group {group_id} with a generation {generation}: join again",
            )

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """For offsets that expire. None: unknown, so while the group has members nothing it has committed expires."""
        group = self._groups.get(group_id)
        if group is None or group.state not in (State.STABLE, State.EMPTY):
            return None
        return describe.subscribed_topics(group)

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        """For OffsetDelete. Consumers whose subscription nobody knows may read any topic."""
        group = self._groups.get(group_id)
        if group is None:
            return False
        topics = describe.subscribed_topics(group)
        return group.protocol_type == CONSUMER if topics is None else topic in topics

    # ---- what others see, and the end of a group

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        group = self._groups.get(group_id)
        if group is None:
            return describe.described_as_missing(group_id, version)
        return describe.described(group)

    def state_name(self, group_id: str) -> str:
        group = self._groups.get(group_id)
        return (State.DEAD if group is None else group.state).value

    def is_empty(self, group_id: str) -> bool:
        group = self._groups.get(group_id)
        return group is not None and group.state is State.EMPTY

    def empty_since(self, group_id: str) -> int | None:
        """Since when the group is Empty, by the wall clock: its offsets expire counted from then. None: it has members, or it never had
        any, or nobody knows: counted from each commit, if at all.
        """
        group = self._groups.get(group_id)
        if group is None or group.state is not State.EMPTY or group.protocol_type is None:
            return None
        return group.state_since_ms

    def check_delete(self, group_id: str) -> None:
        """For DeleteGroups."""
        group = self._groups.get(group_id)
        if group is None:
            raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if group.state is not State.EMPTY:
            raise _not_empty(group)

    def check_delete_offsets(self, group_id: str) -> None:
        """For OffsetDelete: of a group with members only what its subscriptions do not name may go, and only consumers have some."""
        group = self._groups.get(group_id)
        if group is None:
            raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
            raise _not_empty(group)

    def tombstone(self, group_id: str) -> list[CoordinatorRecord]:
        return [record_of(group_id, None)]

    def tombstone_if_empty(self, group_id: str) -> list[CoordinatorRecord]:
        return self.tombstone(group_id) if self.is_empty(group_id) else []

    # ---- the log

    def replay_group(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        group = self._groups.get(key.group)
        if value is None:
            if group is not None:
                self._drop(group)
        elif group is not None and group.on_written is not None:
            concluded, group.on_written = group.on_written, None
            group.written = value
            concluded(value)
        else:
            if group is not None:
                self._drop(group)
            self._groups[key.group] = group_of(key.group, value)

    def loaded(self, now: Now) -> Outcome:
        """All records are replayed: from now on members must show up."""
        out = Outcome()
        for group in self._groups.values():
            for member in group.members.values():
                self._sessions.renew(group, member, now)
            if len(group.members) > self._settings.max_size:
                why = f"the group has {len(group.members)} members, group.max.size allows {self._settings.max_size}"
                self._rebalances.begin(group, why, now, out)
            elif group.members and group.written is not None and group.written.leader is None:
                # It came from the consumer protocol, and the rebalance that `install` began is lost: what those who left have read is nobody's.
                self._rebalances.begin(group, "the group has had no leader yet", now, out)
        return out

    def persistent_state(self) -> dict[str, Any]:
        """What the log says, as plain data: equal for a live instance and for one that replayed the same records."""
        return {
            group.group_id: _plain(group.written)
            for group in self._groups.values()
            if group.written is not None
        }

    # ---- moving between the protocols

    def install(
        self,
        group_id: str,
        members: Iterable[ClassicMember],
        *,
        generation: int,
        reason: str | None,
        now: Now,
    ) -> Outcome:
        """A group of consumers with these members and the assignments they have, Stable, and written as such. The first member leads. With a
        reason it rebalances at once: it is in PreparingRebalance when this returns, and its record names no leader, by which the
        next coordinator knows that it has to.

        The group is there before its record is. Whoever writes the record has to `dissolve` the group if that fails.
        """
        assert group_id not in self._groups
        group = ClassicGroup(
            group_id,
            state=State.STABLE,
            state_since_ms=now.wall_ms,
            generation=generation,
            protocol_type=CONSUMER,
        )
        for member in members:
            group.add(member)
            self._sessions.renew(group, member, now)
        group.protocol = group.vote()
        group.on_written = nothing_else
        self._groups[group_id] = group
        value = value_as_it_is(group)
        out = Outcome(records=[record_of(group_id, value)])
        if reason is not None:
            value.leader = None
            self._rebalances.begin(group, reason, now, out)
        return out

    def release(self, group_id: str, error: ErrorCode, now: Now) -> Outcome:
        """Answer everybody who waits with this error. The group stays until its tombstone is replayed, and goes on if that is not written."""
        out = Outcome()
        group = self._known(group_id)
        for member in group.members.values():
            if member.waits:
                self._sessions.renew(group, member, now)
        self._answer_all(group, error, out)
        return out

    def dissolve(self, group_id: str, error: ErrorCode) -> Outcome:
        """Answer everybody who waits with this error, and forget the group, without a tombstone."""
        out = Outcome()
        group = self._groups.get(group_id)
        if group is not None:
            self._answer_all(group, error, out)
            self._drop(group)
        return out

    # ---- inside

    def _create(self, group: ClassicGroup, waiter: Waiter, now: Now, out: Outcome) -> Outcome:
        """A group is written when it is first heard of, so that a member id that was given out finds it again."""

        def failed(error: ErrorCode, _now: Now) -> Outcome:
            for member in group.members.values():
                group.release_join(member)
            self._drop(group)
            return answered(waiter, responses.join_refused(error, responses.NO_MEMBER_ID))

        assert not out.records
        self._groups[group.group_id] = group
        group.on_written = nothing_else
        out.records.append(record_of(group.group_id, value_of_new(now.wall_ms)))
        out.on_failed = failed
        return out

    def _known(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise _not_found(group_id)
        return group

    def _answer_all(self, group: ClassicGroup, error: ErrorCode, out: Outcome) -> None:
        for member in group.members.values():
            waiter = group.release_join(member)
            if waiter is not None:
                out.answer(waiter, responses.join_refused(error, member.member_id))
            if member.sync_waiter is not None:
                out.answer(member.sync_waiter, responses.sync_refused(error))
                member.sync_waiter = None

    def _drop(self, group: ClassicGroup) -> None:
        assert not group.waiting_joins, "whoever waits is answered before the group goes"
        self._rebalances.end_all(group)
        del self._groups[group.group_id]
        group.state = State.DEAD


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise RequestError(ErrorCode.INVALID_GROUP_ID, "a group needs an id that is not empty")


def _not_found(group_id: str) -> RequestError:
    """A member asks: to it, a group that is not there and one without it are the same."""
    return RequestError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id}: join again")


def _not_empty(group: ClassicGroup) -> RequestError:
    return RequestError(
        ErrorCode.NON_EMPTY_GROUP,
        f"group {group.group_id} has {len(group.members)} members and is {group.state.value}: stop them first",
    )


def _unknown(identity: MemberIdentity) -> MemberResponse:
    return MemberResponse(
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        error_code=ErrorCode.UNKNOWN_MEMBER_ID,
    )


def _plain(value: GroupMetadataValue) -> dict[str, Any]:
    plain = {field.name: getattr(value, field.name) for field in GroupMetadataValue.SCHEMA.fields}
    plain["members"] = {
        member.member_id: {field.name: getattr(member, field.name) for field in member.SCHEMA.fields}
        for member in value.members
    }
    return plain
