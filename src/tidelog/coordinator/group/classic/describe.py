"""What others see of a classic group: DescribeGroups, and the topics it reads, for offsets that expire or are deleted."""

from __future__ import annotations

from typing import Final

from tidelog.coordinator.group.classic.group import CONSUMER, ClassicGroup
from tidelog.coordinator.group.classic.state import State
from tidelog.errors import ProtocolError
from tidelog.wire.codec import decoder
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember

FIRST_WITH_NOT_FOUND: Final = 6
"""Before, DescribeGroups said of a group that does not exist that it is Dead, without an error."""

_read_subscription: Final = decoder(ConsumerProtocolSubscription, 0)
"""Later versions only add fields behind those of version 0."""
_AFTER_THE_VERSION: Final = 2


def described(group: ClassicGroup) -> DescribedGroup:
    """Only a Stable group has a protocol that every member was told."""
    protocol = group.protocol if group.state is State.STABLE else None
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=b"" if protocol is None else member.metadata(protocol),
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def described_as_missing(group_id: str, version: int) -> DescribedGroup:
    missing = DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
    if version >= FIRST_WITH_NOT_FOUND:
        missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        missing.error_message = f"Group {group_id} not found."
    return missing


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """None: nobody can say, so the group may read anything."""
    if group.protocol_type != CONSUMER:
        return None
    if group.state is State.EMPTY:
        return frozenset()
    if group.subscribed_topics is None and group.state is not State.PREPARING_REBALANCE:
        group.subscribed_topics = _read_topics(group)
    return group.subscribed_topics


def _read_topics(group: ClassicGroup) -> frozenset[str] | None:
    topics: set[str] = set()
    try:
        for member in group.members.values():
            subscription, _ = _read_subscription(
                memoryview(member.metadata(group.protocol)), _AFTER_THE_VERSION
            )
            topics.update(subscription.topics)
    except ProtocolError:
        return None
    return frozenset(topics)
