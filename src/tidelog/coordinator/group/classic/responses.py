"""What members are told: the answers to JoinGroup and SyncGroup."""

from __future__ import annotations

from typing import Final

from tidelog.coordinator.group.classic.group import ClassicGroup, ClassicMember
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from tidelog.wire.messages.sync_group import SyncGroupResponse

NO_MEMBER_ID: Final = ""


def join_refused(error: ErrorCode, member_id: str) -> JoinGroupResponse:
    # The name of the protocol is "" and not null, which versions before 7 could not say.
    return JoinGroupResponse(error_code=error, member_id=member_id)


def joined(
    group: ClassicGroup,
    member: ClassicMember,
    *,
    leader: str | None = None,
    with_members: bool,
    skip_assignment: bool = False,
) -> JoinGroupResponse:
    """The generation as it is. Only the leader is told who the members are."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=(group.leader if leader is None else leader) or "",
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=_members(group) if with_members else [],
    )


def _members(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata(group.protocol),
        )
        for member in group.members.values()
    ]


def sync_refused(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error)


def synced(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
    )
