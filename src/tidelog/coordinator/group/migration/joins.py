"""JoinGroup of a member that speaks the classic protocol, to a consumer group.

Owns who may join so, and what its JoinGroup says in terms of the consumer protocol. Then it goes the same way as any heartbeat: the member
is made or changed, the group's epoch and target follow, the member moves one step towards its target (`heartbeat.py`). The answer comes at
once, with the member's epoch as its generation. Nobody leads: members are not told of each other, and bring no assignments.

What a member has, its JoinGroup says: a cooperative one lists it, an eager one has given up everything before it joins, and lists nothing. So a
partition is free for others when its owner has joined again without it, and not before (I34).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tidelog.coordinator.group.classic.group import CONSUMER
from tidelog.coordinator.group.classic.join import (
    FIRST_WITH_REQUIRED_MEMBER_ID,
    Joining,
    joining,
    new_member_id,
)
from tidelog.coordinator.group.classic.responses import join_refused
from tidelog.coordinator.group.consumer import entries
from tidelog.coordinator.group.consumer.departures import static_member, unknown_member
from tidelog.coordinator.group.consumer.draft import Draft
from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.groups import Parts
from tidelog.coordinator.group.consumer.member import JOINING, Member, MemberState, TopicPartitions
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.migration import embedded
from tidelog.coordinator.group.migration.deadlines import Deadlines
from tidelog.coordinator.group.migration.downgrade import Downgrades
from tidelog.coordinator.group.records import ClassicMemberMetadata
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import Now, Outcome, Waiter, answered
from tidelog.errors import ProtocolError, RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import consumer_group_heartbeat as messages
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse


class _Found(NamedTuple):
    member: Member
    """As it is in the group; one that wants and has nothing, where it is new."""
    replaces: Member | None = None
    """The static member whose place it takes."""


class HostedJoins:
    __slots__ = ("_deadlines", "_downgrades", "_environment", "_heartbeats")

    def __init__(self, parts: Parts, deadlines: Deadlines, downgrades: Downgrades) -> None:
        self._environment = parts.environment
        self._heartbeats = parts.heartbeats
        self._deadlines = deadlines
        self._downgrades = downgrades

    def join(
        self, group: ConsumerGroup, request: JoinGroupRequest, client: Client, waiter: Waiter, now: Now
    ) -> Outcome:
        who = joining(request, client, waiter)
        self._refuse_if_full(group, who)
        subscription = _read(group, who)
        if _needs_an_id(who):
            return self._give_member_id(group, who, now)
        draft = self._draft(group, who, subscription, now)
        self._heartbeats.advance(draft, client, self._environment.times(group.id), now)
        if self._downgrades.moves_with(draft):
            return self._downgrades.join(draft, waiter, now)
        member, classic = draft.after, _classic(draft)
        self._deadlines.joined(group.id, member, classic, now)
        return Outcome(draft.records).answer(
            waiter,
            JoinGroupResponse(
                generation_id=member.epoch,
                protocol_type=CONSUMER,
                protocol_name=classic.supported_protocols[0].name,
                member_id=member.id,
            ),
        )

    # ---- who asks

    def _refuse_if_full(self, group: ConsumerGroup, who: Joining) -> None:
        size_max = self._environment.settings.consumer_max_size
        is_in_it = who.member_id in group.members or who.instance_id in group.instances
        if len(group.members) >= size_max and not is_in_it:
            raise RequestError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"group {group.id} has {len(group.members)} members, and group.consumer.max.size allows {size_max}",
            )

    def _give_member_id(self, group: ConsumerGroup, who: Joining, now: Now) -> Outcome:
        member_id = new_member_id(self._environment.rng, who.client.id)
        self._deadlines.give(group.id, member_id, who.session_timeout_ms, now)
        return answered(who.waiter, join_refused(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _find(self, group: ConsumerGroup, who: Joining, now: Now) -> _Found:
        if who.instance_id is not None:
            return self._find_static(group, who, who.instance_id, now)
        member = group.members.get(who.member_id)
        if member is not None:
            return _Found(member)
        if who.member_id and not self._deadlines.was_given(group.id, who.member_id):
            # Kafka takes it in, under whatever id it brings. But it was in the group once, and may think that it still has partitions.
            raise unknown_member(group.id, who.member_id)
        return _Found(Member(who.member_id or new_member_id(self._environment.rng, who.client.id)))

    def _find_static(self, group: ConsumerGroup, who: Joining, instance_id: str, now: Now) -> _Found:
        """A process without a member id was just started. It takes the place of the one before, whichever protocol that one spoke."""
        if who.member_id:
            return _Found(
                static_member(self._environment, group, instance_id, who.member_id, who.client, now)
            )
        member_id = new_member_id(self._environment.rng, instance_id)
        existing = group.static_member(instance_id)
        if existing is None:
            return _Found(Member(member_id))
        detail = f"{who.client.id} ({who.client.host}) took its instance id {instance_id}"
        self._environment.note(now, group.id, Event.FENCED, group.epoch, existing, detail)
        return _Found(replace(existing, id=member_id, epoch=JOINING, previous_epoch=JOINING), existing)

    # ---- what it says

    def _draft(
        self, group: ConsumerGroup, who: Joining, subscription: embedded.Subscription, now: Now
    ) -> Draft:
        owned = embedded.by_id(subscription.owned, self._environment.topics)
        member, replaced = self._find(group, who, now)
        if member.state is MemberState.UNKNOWN and owned:
            raise unknown_member(group.id, member.id)  # in a state of a newer release: it must begin anew
        request = ConsumerGroupHeartbeatRequest(
            group_id=group.id,
            member_id=member.id,
            member_epoch=member.epoch,
            instance_id=who.instance_id,
            rack_id=subscription.rack_id,
            rebalance_timeout_ms=who.rebalance_timeout_ms,
            subscribed_topic_names=sorted(subscription.topics),
            subscribed_topic_regex="",  # it has resolved its patterns itself
            topic_partitions=_listed(owned),
        )
        classic = embedded.classic_metadata(who.session_timeout_ms, who.protocols)
        if replaced is None:
            return Draft(group, request, member, classic=classic)
        target = group.target(replaced.id)
        records = entries.member_replaced(group.id, replaced.id, member, target)
        return Draft(group, request, member, replaced.id, records, classic)


def _needs_an_id(who: Joining) -> bool:
    return (
        not who.member_id and who.instance_id is None and who.client.version >= FIRST_WITH_REQUIRED_MEMBER_ID
    )


def _read(group: ConsumerGroup, who: Joining) -> embedded.Subscription:
    """All classic members have an assignor in common, though nobody uses it here: the group may have to go back."""
    if who.protocol_type != CONSUMER:
        raise RequestError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the members of group {group.id} are consumers, not of type {who.protocol_type or 'none'}: use another group id",
        )
    common = {name for name, _ in who.protocols}
    for member in group.members.values():
        is_itself = member.id == who.member_id or (
            member.instance_id is not None and member.instance_id == who.instance_id
        )
        if member.classic is not None and not is_itself:
            common.intersection_update(each.name for each in member.classic.supported_protocols)
    if not common:
        offered = ", ".join(name for name, _ in who.protocols) or "none"
        raise RequestError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"of the assignors that this consumer offers ({offered}) none is known to all members of group {group.id} that speak the classic"
            " protocol: let all have one in common (partition.assignment.strategy), or set group.protocol=consumer in this client",
        )
    try:
        return embedded.read_subscription(who.protocols)
    except ProtocolError as error:
        raise RequestError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"what this member of group {group.id} subscribes to cannot be read ({error}): members of the classic protocol must use Kafka's own"
            " consumer protocol in a group whose other members speak the new one",
        ) from error


def _classic(draft: Draft) -> ClassicMemberMetadata:
    assert draft.classic is not None
    return draft.classic


def _listed(partitions: TopicPartitions) -> list[messages.TopicPartitions]:
    return [
        messages.TopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
        for topic_id, indexes in partitions.items()
    ]
