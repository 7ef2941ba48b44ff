"""A classic group as a record, and back.

Owns the mapping to GroupMetadata records. A record holds of each member the metadata of the chosen protocol only: a group that was loaded
knows no other protocol of its members until they join again. Keeps I36: what `group_of` builds from a record is what a live group
is right after that record, if it is Stable or Empty then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.coordinator.group.classic.group import (
    NO_ASSIGNMENT,
    ClassicGroup,
    ClassicMember,
    SupportedProtocol,
)
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.records import GroupMetadataKey, GroupMetadataMember, GroupMetadataValue
from tidelog.coordinator.outcome import CoordinatorRecord

UNKNOWN_TIME: Final = -1


def value_of(
    group: ClassicGroup, since_ms: int | None, assignments: Mapping[str, bytes]
) -> GroupMetadataValue:
    """The group with its members. One that `assignments` does not name gets nothing."""
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=UNKNOWN_TIME if since_ms is None else since_ms,
        members=[
            GroupMetadataMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol),
                assignment=assignments.get(member.member_id, NO_ASSIGNMENT),
            )
            for member in group.members.values()
        ],
    )


def value_as_it_is(group: ClassicGroup) -> GroupMetadataValue:
    """A Stable group, with the assignments it has."""
    assignments = {member.member_id: member.assignment for member in group.members.values()}
    return value_of(group, group.state_since_ms, assignments)


def value_of_new(wall_ms: int) -> GroupMetadataValue:
    """A group that somebody has asked to join, and that has had no generation."""
    return GroupMetadataValue(current_state_timestamp=wall_ms)


def value_of_emptied(group: ClassicGroup, wall_ms: int) -> GroupMetadataValue:
    """The generation after the last one with members."""
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation + 1,
        current_state_timestamp=wall_ms,
    )


def record_of(group_id: str, value: GroupMetadataValue | None) -> CoordinatorRecord:
    """None as value: the group is gone."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), value)


def nothing_else(_value: GroupMetadataValue) -> None:
    """For `on_written`: the live group is already what the record says, or further."""


def group_of(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    since_ms = value.current_state_timestamp
    group = ClassicGroup(
        group_id,
        state=State.STABLE if value.members else State.EMPTY,
        state_since_ms=None if since_ms == UNKNOWN_TIME else since_ms,
        generation=value.generation,
        protocol_type=value.protocol_type or None,
        protocol=value.protocol,
    )
    for stored in value.members:
        group.add(_member_of(stored, value.protocol or ""))
    if value.leader in group.members:
        group.leader = value.leader
    group.written = value
    return group


def _member_of(stored: GroupMetadataMember, protocol: str) -> ClassicMember:
    return ClassicMember(
        member_id=stored.member_id,
        instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        session_timeout_ms=stored.session_timeout,
        # Version 0 of the record has no rebalance timeout, as the first version of JoinGroup had none.
        rebalance_timeout_ms=max(stored.rebalance_timeout, 0) or stored.session_timeout,
        protocols=(SupportedProtocol(protocol, stored.subscription),),
        assignment=stored.assignment,
    )
