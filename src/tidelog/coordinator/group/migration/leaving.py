"""LeaveGroup, to a consumer group: members of the classic protocol that go, and members of either that an administrator removes.

Owns that all who leave with one request make one new epoch, or one move back to the classic protocol; what is written of a single one is
`departures.py`'s. An error of one does not keep the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tidelog.coordinator.group.classic.groups import FIRST_LEAVE_WITH_MEMBERS
from tidelog.coordinator.group.consumer import entries
from tidelog.coordinator.group.consumer.departures import note_what_follows, static_member, unknown_member
from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.groups import Parts
from tidelog.coordinator.group.consumer.member import Member
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import CoordinatorRecord, Now, Outcome, Waiter
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

_NO_TARGET_YET_MS: Final = 0


class _Leaving(NamedTuple):
    member: Member
    reason: str


class Leaving:
    __slots__ = ("_departures", "_environment")

    def __init__(self, parts: Parts) -> None:
        self._environment = parts.environment
        self._departures = parts.departures

    def leave(
        self, group: ConsumerGroup, request: LeaveGroupRequest, client: Client, waiter: Waiter, now: Now
    ) -> Outcome:
        alone = client.version < FIRST_LEAVE_WITH_MEMBERS
        who = [MemberIdentity(member_id=request.member_id)] if alone else request.members
        leaving: dict[str, _Leaving] = {}
        told: list[MemberResponse] = []
        for identity in who:
            code = ErrorCode.NONE
            try:
                member = self._find(group, identity, client, now)
                leaving[member.id] = _Leaving(member, identity.reason or "")
            except RequestError as error:
                code = error.code
            told.append(
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=code,
                )
            )
        out = self._let_go(group, list(leaving.values()), now)
        if alone:
            return out.answer(waiter, LeaveGroupResponse(error_code=told[0].error_code))
        return out.answer(waiter, LeaveGroupResponse(members=told))

    def _find(self, group: ConsumerGroup, identity: MemberIdentity, client: Client, now: Now) -> Member:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if instance_id is None:
            member = group.members.get(member_id)
            if member is None:
                raise unknown_member(group.id, member_id)
            return member
        # An administrator removes a static member without knowing its member id.
        member_id = member_id or group.instances.get(instance_id, "")
        return static_member(self._environment, group, instance_id, member_id, client, now)

    def _let_go(self, group: ConsumerGroup, leaving: Sequence[_Leaving], now: Now) -> Outcome:
        if not leaving:
            return Outcome()
        if len(leaving) == 1:
            [(member, reason)] = leaving
            return self._departures.fence(group, member, Event.LEFT, reason, now)
        members = [member for member, _ in leaving]
        moved = None if self._departures.instead is None else self._departures.instead(group, members, now)
        epoch = group.epoch + (moved is None)
        for member, reason in leaving:
            self._environment.note(now, group.id, Event.LEFT, epoch, member, reason)
        if moved is not None:
            return moved
        note_what_follows(self._environment, group, len(members), epoch, now)
        return Outcome(self._without(group, {member.id for member in members}, epoch))

    def _without(self, group: ConsumerGroup, gone: set[str], epoch: int) -> list[CoordinatorRecord]:
        left = [member for member in group.members.values() if member.id not in gone]
        used = {member.pattern for member in left}
        metadata_hash = self._environment.metadata.hash_of(_names(group, left, used))
        records = [
            *(record for member_id in sorted(gone) for record in entries.member_gone(group.id, member_id)),
            *(entries.pattern_gone(group.id, pattern) for pattern in group.patterns if pattern not in used),
            entries.group_epoch(group.id, epoch, metadata_hash),
        ]
        if not left:
            # Whoever comes next need not wait for an assignment.
            records.append(entries.assignment_epoch(group.id, epoch, _NO_TARGET_YET_MS))
        return records


def _names(group: ConsumerGroup, members: Iterable[Member], patterns: set[str]) -> set[str]:
    """The topics that these members want, by name or by one of these patterns."""
    names: set[str] = set()
    for member in members:
        names |= member.topic_names
    for pattern, matched in group.patterns.items():
        if pattern in patterns:
            names |= matched.topics
    return names
