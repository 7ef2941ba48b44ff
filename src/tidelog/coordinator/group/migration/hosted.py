"""Members that speak the classic protocol in a consumer group, once they have joined: SyncGroup and Heartbeat.

To such a member its epoch is a generation. It learns of a new target by being told to join again (REBALANCE_IN_PROGRESS), and of what it may
have by its SyncGroup: there is no other moment in its protocol at which it could. It need not join again for every new epoch of the group, only
when there is a target that it has not been moved to, or when moving on takes its JoinGroup.

In a group that has a member of the consumer protocol, that one's heartbeats see to new targets. Where none is left, because the policy forbids the
way back, the first classic member whose heartbeat finds that a target is due, or that its topics have changed, is told to join, and
its JoinGroup sees to it.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.coordinator.group.classic.group import CONSUMER
from tidelog.coordinator.group.consumer import target
from tidelog.coordinator.group.consumer.departures import static_member, unknown_member
from tidelog.coordinator.group.consumer.group import ConsumerGroup, Refreshed
from tidelog.coordinator.group.consumer.groups import Parts
from tidelog.coordinator.group.consumer.member import Member, MemberState
from tidelog.coordinator.group.migration import embedded
from tidelog.coordinator.group.migration.deadlines import Deadlines
from tidelog.coordinator.group.records import ClassicMemberMetadata
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import Now, Outcome, Waiter, answered
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class _Hosted(NamedTuple):
    member: Member
    classic: ClassicMemberMetadata


class HostedMembers:
    __slots__ = ("_deadlines", "_environment")

    def __init__(self, parts: Parts, deadlines: Deadlines) -> None:
        self._environment = parts.environment
        self._deadlines = deadlines

    def sync(
        self, group: ConsumerGroup, request: SyncGroupRequest, client: Client, waiter: Waiter, now: Now
    ) -> Outcome:
        instance_id = request.group_instance_id
        member, classic = self._find(group, request.member_id, instance_id, client, now)
        _refuse_other_generations(group, member, request.generation_id)
        _refuse_other_protocols(group, classic, request)
        if member.epoch < group.assignment_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            # One that has to give something up hears it from the answer, and joins again by itself. For all others there is news.
            self._deadlines.must_join(group.id, member, now)
            raise RequestError(
                ErrorCode.REBALANCE_IN_PROGRESS,
                f"there is a newer assignment of group {group.id}: join again",
            )
        self._deadlines.synced(group.id, member, classic, now)
        return answered(
            waiter,
            SyncGroupResponse(
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignment=embedded.assignment_of(member, classic, self._environment.topics),
            ),
        )

    def heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, client: Client, waiter: Waiter, now: Now
    ) -> Outcome:
        instance_id = request.group_instance_id
        member, classic = self._find(group, request.member_id, instance_id, client, now)
        _refuse_other_generations(group, member, request.generation_id)
        self._deadlines.heard_from(group.id, member, classic, now)
        if not self._must_join(group, member, now):
            self._deadlines.may_stay(group.id, member)
            return answered(waiter, HeartbeatResponse())
        self._deadlines.must_join(group.id, member, now)
        return answered(waiter, HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))

    def _find(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, client: Client, now: Now
    ) -> _Hosted:
        if instance_id is not None:
            member = static_member(self._environment, group, instance_id, member_id, client, now)
        else:
            found = group.members.get(member_id)
            if found is None:
                raise unknown_member(group.id, member_id)
            member = found
        if member.classic is None:
            raise RequestError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"member {member_id} of group {group.id} speaks the consumer protocol, not the classic one",
            )
        return _Hosted(member, member.classic)

    # ---- whether to join again

    def _must_join(self, group: ConsumerGroup, member: Member, now: Now) -> bool:
        return (
            member.epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member))
            or self._has_a_target_due(group, now)
            or self._has_other_topics(group)
        )

    def _has_a_target_due(self, group: ConsumerGroup, now: Now) -> bool:
        interval_ms = self._environment.times(group.id).assignment_interval_ms
        return group.epoch > group.assignment_epoch and target.is_due(group, interval_ms, now)

    def _has_other_topics(self, group: ConsumerGroup) -> bool:
        metadata = self._environment.metadata
        if group.is_refreshed(metadata.generation):
            return False
        if metadata.hash_of(group.subscribed_names()) != group.metadata_hash:
            return True
        group.refreshed = Refreshed(metadata.generation, group.epoch)
        return False


def _waits_for_others(group: ConsumerGroup, member: Member) -> bool:
    """Whether something that is meant for the member is still with somebody else."""
    return any(
        group.owners.get((topic_id, index)) not in (None, member.id)
        for topic_id, indexes in group.target(member.id).items()
        for index in indexes
    )


def _refuse_other_generations(group: ConsumerGroup, member: Member, generation: int) -> None:
    if generation != member.epoch:
        raise RequestError(
            ErrorCode.ILLEGAL_GENERATION,
            f"member {member.id} of group {group.id} is at generation {member.epoch}, not {generation}: join again",
        )


def _refuse_other_protocols(
    group: ConsumerGroup, classic: ClassicMemberMetadata, request: SyncGroupRequest
) -> None:
    """Any assignor that the member offers is the right one: it may have been told another one before the group moved."""
    offered = [each.name for each in classic.supported_protocols]
    for what, named, known in (
        ("type", request.protocol_type, [CONSUMER]),
        ("protocol", request.protocol_name, offered),
    ):
        if named is not None and named not in known:
            raise RequestError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"this member of group {group.id} has {', '.join(known)} as {what}, not {named}: join again",
            )
