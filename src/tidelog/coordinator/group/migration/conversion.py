"""A classic group as a consumer group: what its members are and have, in the other protocol's records.

A pure function: it changes nothing, and refuses with the reason where the group cannot be converted. Keeps I34 across the move. A member is
taken to have everything that it may still have, and that is more than its last assignment says while the group rebalances:

* A rebalance that was called off has wiped the assignments. The members of the generation before may still read on, so what is written of
  that generation counts.
* A cooperative member reads on while it joins, and says what it has. Until it has learnt that it must give something up, that counts too.

Whoever has less than that says so with its next JoinGroup, and only then does somebody else get the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.coordinator.group.classic.group import NO_ASSIGNMENT, ClassicGroup, ClassicMember
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.consumer import entries
from tidelog.coordinator.group.consumer.group import FIRST_EPOCH, ConsumerGroup
from tidelog.coordinator.group.consumer.member import Member, TopicPartitions
from tidelog.coordinator.group.consumer.metadata import TopicMetadata
from tidelog.coordinator.group.migration import embedded
from tidelog.coordinator.group.world import Topics
from tidelog.coordinator.outcome import CoordinatorRecord
from tidelog.errors import ProtocolError, RequestError
from tidelog.wire.error_codes import ErrorCode

_COMPUTED_BY_NOBODY_MS = 0
"""The timestamp of a target that the members' leader made: whoever joins now need not wait for the next one."""


class Converted(NamedTuple):
    group: ConsumerGroup
    """As the records will make it; it is in no table yet."""
    records: list[CoordinatorRecord]


def convert(group: ClassicGroup, metadata: TopicMetadata) -> Converted:
    epoch = max(group.generation, FIRST_EPOCH)
    subscriptions = {member.member_id: _subscription(group, member) for member in group.members.values()}
    assigned = {
        member.member_id: embedded.by_id(_assignment(group, member), metadata.topics)
        for member in group.members.values()
    }
    claims = {
        member_id: embedded.by_id(subscription.owned, metadata.topics)
        for member_id, subscription in subscriptions.items()
    }
    held = _held(group, assigned, claims, metadata.topics)
    # In a rebalance some have new wishes, or are new; and who has more than it should has to give it up. Both need a new target. Otherwise
    # the generation's is as good as ever, and it depends on who joins now.
    is_settled = group.state is State.STABLE and held == assigned
    converted = ConsumerGroup(group.group_id)
    converted.epoch = epoch if is_settled else epoch + 1
    converted.assignment_epoch = epoch
    converted.assignment_timestamp_ms = _COMPUTED_BY_NOBODY_MS
    for member in group.members.values():
        subscription = subscriptions[member.member_id]
        converted.put_member(_member(member, subscription, held[member.member_id], epoch), exclusive=True)
        converted.targets[member.member_id] = assigned[member.member_id]
    converted.metadata_hash = metadata.hash_of(converted.subscribed_names())
    return Converted(converted, _records(converted))


def cannot(group_id: str, why: str) -> RequestError:
    """Kafka's answer to a consumer that finds a classic group which does not move."""
    return RequestError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} cannot move to the consumer protocol: {why}"
    )


def _member(
    member: ClassicMember, subscription: embedded.Subscription, held: TopicPartitions, epoch: int
) -> Member:
    return Member(
        member.member_id,
        epoch=epoch,
        previous_epoch=epoch,
        assigned={topic_id: dict.fromkeys(sorted(indexes), epoch) for topic_id, indexes in held.items()},
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topic_names=subscription.topics,
        classic=embedded.classic_metadata(member.session_timeout_ms, member.protocols),
    )


def _records(group: ConsumerGroup) -> list[CoordinatorRecord]:
    members = group.members.values()
    return [
        *(entries.member_metadata(group.id, member) for member in members),
        entries.group_epoch(group.id, group.epoch, group.metadata_hash),
        *(entries.target_assignment(group.id, member.id, group.target(member.id)) for member in members),
        entries.assignment_epoch(group.id, group.assignment_epoch, group.assignment_timestamp_ms),
        *(entries.current_assignment(group.id, member) for member in members),
    ]


# ---- what the members said and were told


def _subscription(group: ClassicGroup, member: ClassicMember) -> embedded.Subscription:
    try:
        return embedded.read_subscription(member.protocols)
    except ProtocolError as error:
        raise cannot(
            group.group_id,
            f"what member {member.member_id} subscribes to cannot be read ({error}); stop that member, which is no consumer of Kafka's",
        ) from error


def _assignment(group: ClassicGroup, member: ClassicMember) -> embedded.NamedPartitions:
    try:
        read = embedded.read_assignment(_last_assignment(group, member))
    except ProtocolError as error:
        raise cannot(
            group.group_id,
            f"the assignment of member {member.member_id} cannot be read ({error}); let the members use one of Kafka's own assignors"
            " (partition.assignment.strategy) first",
        ) from error
    if read.has_user_data:
        raise cannot(
            group.group_id,
            f"its assignor ({group.protocol}) tells the members more than partitions, which would be lost; let them use one of"
            " Kafka's own assignors (partition.assignment.strategy) first",
        )
    return read.partitions


def _last_assignment(group: ClassicGroup, member: ClassicMember) -> bytes:
    if member.assignment != NO_ASSIGNMENT or group.written is None:
        return member.assignment
    for stored in group.written.members:
        if stored.member_id == member.member_id:
            return stored.assignment
    return NO_ASSIGNMENT


def _held(
    group: ClassicGroup,
    assigned: Mapping[str, TopicPartitions],
    claims: Mapping[str, TopicPartitions],
    topics: Topics,
) -> Mapping[str, TopicPartitions]:
    """A claim counts where nobody was assigned the partition; an assignment is newer, or the same."""
    owners: dict[tuple[bytes, int], str] = {}
    held: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in assigned}
    for member_id, partitions in assigned.items():
        for topic_id, indexes in partitions.items():
            for index in indexes:
                other = owners.setdefault((topic_id, index), member_id)
                if other != member_id:
                    raise cannot(
                        group.group_id,
                        f"its assignor ({group.protocol}) gave {topics.name_of(topic_id)}-{index} both to {other} and to {member_id}, and in"
                        " that protocol a partition has one owner; let the members use one of Kafka's own assignors first",
                    )
            held[member_id][topic_id] = indexes
    for member_id, partitions in claims.items():
        for topic_id, indexes in partitions.items():
            free = frozenset(
                index for index in indexes if owners.setdefault((topic_id, index), member_id) == member_id
            )
            if free:
                held[member_id][topic_id] = held[member_id].get(topic_id, frozenset()) | free
    return held
