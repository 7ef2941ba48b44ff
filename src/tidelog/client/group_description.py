"""A group and its members as frozen values, whichever of Kafka's two descriptions they came from. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.client.consumer.member_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from tidelog.client.metadata import TopicPartition
from tidelog.errors import ProtocolError
from tidelog.wire.messages import consumer_group_describe as consumer_wire
from tidelog.wire.messages import describe_groups as classic_wire

CLASSIC = "classic"
CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class MemberInfo:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: frozenset[str] | None
    """What it subscribes to; None where that cannot be read, as in groups of Kafka Connect."""
    partitions: frozenset[TopicPartition]
    epoch: int | None = None
    """Consumer groups only: how far it has followed the group."""
    target: frozenset[TopicPartition] | None = None
    """Consumer groups only: what it will have once it, and those before it, have followed."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    type: str
    state: str
    protocol_type: str
    protocol: str
    """The assignor; empty while members have not agreed on one."""
    coordinator: int
    members: tuple[MemberInfo, ...]
    epoch: int | None = None
    """Consumer groups only."""


def of_classic(group: classic_wire.DescribedGroup, coordinator: int) -> GroupDescription:
    members = (_classic_member(member, group.protocol_type) for member in group.members)
    return GroupDescription(
        group_id=group.group_id,
        type=CLASSIC,
        state=group.group_state,
        protocol_type=group.protocol_type,
        protocol=group.protocol_data,
        coordinator=coordinator,
        members=tuple(sorted(members, key=_order)),
    )


def of_consumer(group: consumer_wire.DescribedGroup, coordinator: int) -> GroupDescription:
    members = (
        MemberInfo(
            member_id=m.member_id,
            instance_id=m.instance_id,
            client_id=m.client_id,
            host=_plain(m.client_host),
            topics=frozenset(m.subscribed_topic_names),
            partitions=_partitions(m.assignment),
            epoch=m.member_epoch,
            target=_partitions(m.target_assignment),
        )
        for m in group.members
    )
    return GroupDescription(
        group_id=group.group_id,
        type=CONSUMER,
        state=group.group_state,
        protocol_type=PROTOCOL_TYPE,
        protocol=group.assignor_name,
        coordinator=coordinator,
        members=tuple(sorted(members, key=_order)),
        epoch=group.group_epoch,
    )


def _classic_member(member: classic_wire.DescribedGroupMember, protocol_type: str) -> MemberInfo:
    topics: frozenset[str] | None = None
    partitions: frozenset[TopicPartition] = frozenset()
    if protocol_type == PROTOCOL_TYPE:
        try:
            partitions = decode_assignment(member.member_assignment)
            topics = decode_subscription(
                member.member_id, member.group_instance_id, member.member_metadata
            ).topics
        except ProtocolError:
            pass  # no metadata while the group rebalances; some clients write what only they can read
    return MemberInfo(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        _plain(member.client_host),
        topics,
        partitions,
    )


def _partitions(assignment: consumer_wire.Assignment) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(t.topic_name, p) for t in assignment.topic_partitions for p in t.partitions
    )


def _plain(host: str) -> str:
    """Kafka writes addresses as Java prints them: "/10.0.0.3"."""
    return host.removeprefix("/")


def _order(member: MemberInfo) -> tuple[str, str]:
    return member.client_id, member.member_id
