"""Who sends a heartbeat: the member and its group, found or made, and every reason to refuse it.

Owns the rules of membership: which epoch is accepted from whom, and who may take the place of a static member. What the member then gets
is decided elsewhere.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from tidelog.coordinator.group.consumer import entries
from tidelog.coordinator.group.consumer.departures import static_member, unknown_member
from tidelog.coordinator.group.consumer.draft import Draft
from tidelog.coordinator.group.consumer.environment import Environment
from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.member import (
    JOINING,
    LEFT_FOR_NOW,
    Member,
    MemberState,
    are_within,
)
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import Now
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


class Arrivals:
    __slots__ = ("_environment",)

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def find(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        now: Now,
        group: ConsumerGroup | None = None,
    ) -> Draft:
        group = group or self._find_group(request)
        self._refuse_if_full(group, request)
        member_id = request.member_id or self._new_id()
        if request.instance_id is not None and request.member_epoch == JOINING:
            draft = self._join_static(group, request, member_id, request.instance_id)
        else:
            draft = Draft(group, request, self._existing_or_joining(group, request, member_id, client, now))
            _refuse_other_epochs(draft)
        if draft.before.state is MemberState.UNKNOWN and (draft.owned is None or draft.owned):
            raise _fenced(draft, "is in a state that this release does not know")
        return draft

    def _find_group(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
        """A new group is in the table once its first record is."""
        group = self._environment.groups.get(request.group_id)
        if group is not None:
            return group
        if request.member_epoch != JOINING:
            raise RequestError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {request.group_id}: join it with epoch 0"
            )
        return ConsumerGroup(request.group_id)

    def _refuse_if_full(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> None:
        """A static member that comes back takes nobody's place but its own."""
        size_max = self._environment.settings.consumer_max_size
        if len(group.members) < size_max or request.member_id in group.members:
            return
        if request.instance_id is None or request.instance_id not in group.instances:
            raise RequestError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"group {group.id} has {len(group.members)} members, and group.consumer.max.size allows {size_max}",
            )

    def _existing_or_joining(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        client: Client,
        now: Now,
    ) -> Member:
        if request.instance_id is not None:
            return static_member(self._environment, group, request.instance_id, member_id, client, now)
        member = group.members.get(member_id)
        if member is not None:
            return member
        if request.member_epoch != JOINING:
            raise unknown_member(group.id, member_id)
        return Member(member_id)

    def _join_static(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, member_id: str, instance_id: str
    ) -> Draft:
        """The instance is new, or its member has left for now, or speaks the classic protocol and cannot object. Kafka refuses all
        others; here a member may also join a second time with the id it joined with: the answer to its first join was lost, and
        clients take UNRELEASED_INSTANCE_ID for the end.
        """
        existing = group.static_member(instance_id)
        is_free = existing is None or existing.epoch == LEFT_FOR_NOW or existing.classic is not None
        if existing is None or (existing.id == member_id and not is_free):
            return Draft(group, request, group.members.get(member_id) or Member(member_id))
        if not is_free:
            raise RequestError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"instance {instance_id} of group {group.id} is member {existing.id}, which has not left: stop that"
                " process, or wait until its session is over",
            )
        member = replace(existing, id=member_id, epoch=JOINING, previous_epoch=JOINING)
        records = entries.member_replaced(group.id, existing.id, member, group.target(existing.id))
        return Draft(group, request, member, existing.id, records)

    def _new_id(self) -> str:
        return str(uuid.UUID(bytes=self._environment.rng.randbytes(16), version=4))


def _refuse_other_epochs(draft: Draft) -> None:
    """The epoch before the last step is accepted from a member that has nothing it should not have: the answer that told it the new one
    may have been lost. Epoch 0 always is: who joins has given up everything.
    """
    member, received = draft.before, draft.request.member_epoch
    if received in (JOINING, member.epoch):
        return
    answer_may_be_lost = (
        received < member.epoch
        and received == member.previous_epoch
        and draft.owned is not None
        and are_within(draft.owned, member.assigned)
    )
    if not answer_may_be_lost:
        raise _fenced(draft, f"is at epoch {member.epoch}, not {received}")


def _fenced(draft: Draft, reason: str) -> RequestError:
    return RequestError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"member {draft.before.id} of group {draft.group.id} {reason}: give up all partitions and join again",
    )
