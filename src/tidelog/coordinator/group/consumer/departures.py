"""Members that go: by their own wish, or because they were silent or too slow.

Owns what is written then: the member's tombstones, the patterns that only it used, and a new group epoch, after which the others'
heartbeats divide up what it had. A static member that says it will be back (-2) is not gone: its epoch becomes -2 and its partitions
wait for it until its session ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from tidelog.coordinator.group.consumer import entries
from tidelog.coordinator.group.consumer.environment import Environment
from tidelog.coordinator.group.consumer.group import ConsumerGroup, GroupState
from tidelog.coordinator.group.consumer.member import LEFT_FOR_NOW, Member
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import Now, Outcome, Waiter
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

Instead: TypeAlias = Callable[[ConsumerGroup, Sequence[Member], Now], Outcome | None]
"""Members are about to go: what happens to the group instead of a new epoch, or None."""

_NO_TARGET_YET_MS = 0
"""The timestamp of a group that nobody is left in: whoever comes next need not wait for an assignment."""


class Departures:
    __slots__ = ("_environment", "instead")

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.instead: Instead | None = None
        """Set by whoever moves groups between the protocols."""

    def leave(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, waiter: Waiter, now: Now
    ) -> Outcome:
        group = self._environment.groups.get(request.group_id)
        if group is None:
            raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {request.group_id}")
        member = self._leaving_member(group, request, client, now)
        response = ConsumerGroupHeartbeatResponse(member_id=member.id, member_epoch=request.member_epoch)
        if request.instance_id is not None and request.member_epoch == LEFT_FOR_NOW:
            return self._leave_for_now(group, member, now).answer(waiter, response)
        return self.fence(group, member, Event.LEFT, "", now).answer(waiter, response)

    def fence(self, group: ConsumerGroup, member: Member, event: Event, detail: str, now: Now) -> Outcome:
        """The member is no longer in the group. Whoever speaks in its name is told so, and must begin anew without partitions."""
        instead = None if self.instead is None else self.instead(group, [member], now)
        if instead is not None:
            self._environment.note(now, group.id, event, group.epoch, member, detail)
            return instead
        epoch = group.epoch + 1
        nobody = Member(member.id)
        records = entries.member_gone(group.id, member.id)
        pattern = group.pattern_without_users(member, nobody)
        if pattern is not None:
            records.append(entries.pattern_gone(group.id, pattern))
        metadata_hash = self._environment.metadata.hash_of(group.names_with(member, nobody))
        records.append(entries.group_epoch(group.id, epoch, metadata_hash))
        if len(group.members) == 1:
            records.append(entries.assignment_epoch(group.id, epoch, _NO_TARGET_YET_MS))
        self._environment.note(now, group.id, event, epoch, member, detail)
        note_what_follows(self._environment, group, 1, epoch, now)
        return Outcome(records)

    def _leave_for_now(self, group: ConsumerGroup, member: Member, now: Now) -> Outcome:
        """The process is gone and owns nothing, so what it had to give up is free. What it keeps counts from epoch 0 for whoever comes
        back: it will have another member id, and every epoch of its own is larger.
        """
        waiting = replace(
            member,
            epoch=LEFT_FOR_NOW,
            assigned={topic_id: dict.fromkeys(held, 0) for topic_id, held in member.assigned.items()},
            revoking={},
        )
        self._environment.note(now, group.id, Event.LEFT, group.epoch, member, "it said that it will be back")
        return Outcome([entries.current_assignment(group.id, waiting)])

    def _leaving_member(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, client: Client, now: Now
    ) -> Member:
        if request.instance_id is not None:
            return static_member(
                self._environment, group, request.instance_id, request.member_id, client, now
            )
        member = group.members.get(request.member_id)
        if member is None:
            raise unknown_member(group.id, request.member_id)
        return member


def note_what_follows(
    environment: Environment, group: ConsumerGroup, gone: int, epoch: int, now: Now
) -> None:
    """Members go: a rebalance begins for those who stay. Where nobody stays, one that is under way has its end."""
    if gone == len(group.members):
        if group.state is not GroupState.STABLE:
            environment.note(now, group.id, Event.REBALANCE_ENDED, epoch, detail="no member is left")
    elif group.epoch == group.assignment_epoch:
        detail = "a member is gone" if gone == 1 else f"{gone} members are gone"
        environment.note(now, group.id, Event.REBALANCE_BEGAN, epoch, detail=detail)


def static_member(
    environment: Environment, group: ConsumerGroup, instance_id: str, member_id: str, client: Client, now: Now
) -> Member:
    """The member of that instance, if it is the one that asks."""
    member = group.static_member(instance_id)
    if member is None:
        raise RequestError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"group {group.id} has no member of instance {instance_id}: join again",
        )
    if member.id != member_id:
        environment.note(
            now,
            group.id,
            Event.FENCED,
            group.epoch,
            Member(member_id, client_id=client.id, client_host=client.host),
            f"instance {instance_id} is {member.id} now",
        )
        raise RequestError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"instance {instance_id} of group {group.id} is member {member.id} now, not {member_id}: two processes use"
            " one group.instance.id",
        )
    return member


def unknown_member(group_id: str, member_id: str) -> RequestError:
    return RequestError(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"{member_id!r} is not a member of group {group_id}, or no longer: give up all partitions and join again",
    )
