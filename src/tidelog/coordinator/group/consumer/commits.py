"""Whether a member may commit or fetch offsets: the checks of a request against the group, which change nothing.

A commit at the member's own epoch is good for every partition. One at an older epoch is good for the partitions that the member has had
since then or longer (KIP-1251): a heartbeat that overtakes a commit does not make it stale. Anything else is refused (I35).
"""

from __future__ import annotations

from typing import Final

from tidelog.coordinator.group.consumer.departures import unknown_member
from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.member import Member
from tidelog.coordinator.group.offsets import PartitionCheck
from tidelog.coordinator.group.world import Topics
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode

NO_GENERATION: Final = -1
FIRST_COMMIT_WITH_MEMBER_EPOCH: Final = 9
"""OffsetCommit: older versions have no word for STALE_MEMBER_EPOCH."""


def check_commit(
    group: ConsumerGroup,
    topics: Topics,
    member_id: str,
    member_epoch: int,
    *,
    instance_id: str | None,
    is_transactional: bool,
    version: int,
) -> PartitionCheck | None:
    """None: every partition may be committed. Otherwise each of them must be asked about."""
    if member_epoch < 0 and not group.members:
        return None  # a tool, or a consumer that was assigned its partitions by hand
    if is_transactional and member_epoch == NO_GENERATION and not member_id and instance_id is None:
        return None  # a producer that knows nothing of the group
    member = group.members.get(member_id)
    if member is None:
        raise unknown_member(group.id, member_id)
    if not is_transactional and member.classic is None and version < FIRST_COMMIT_WITH_MEMBER_EPOCH:
        raise RequestError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"member {member_id} of group {group.id} must use version {FIRST_COMMIT_WITH_MEMBER_EPOCH} of OffsetCommit"
            " or a later one",
        )
    if member_epoch == member.epoch:
        return None
    if member_epoch > member.epoch or member.classic is not None:
        raise _stale(group, member, member_epoch)

    def check(topic: str, topic_id: bytes, partition: int) -> None:
        # Requests before version 10 name topics only; a name that is gone has no id, and nobody has its partitions.
        known_id = topics.id_of(topic) or topic_id
        since = member.has_since(known_id, partition)
        if since is None or member_epoch < since:
            raise _stale(group, member, member_epoch)

    return check


def check_fetch(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> None:
    if member_id is None and member_epoch < 0:
        return
    member = None if member_id is None else group.members.get(member_id)
    if member is None:
        raise unknown_member(group.id, member_id or "")
    if member_epoch != member.epoch:
        raise _stale(group, member, member_epoch)


def _stale(group: ConsumerGroup, member: Member, received: int) -> RequestError:
    """To a member that speaks the classic protocol its epoch is a generation."""
    return RequestError(
        ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION,
        f"member {member.id} of group {group.id} is at epoch {member.epoch}, not {received}",
    )
