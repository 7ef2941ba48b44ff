"""Cooperative consumers rebalance twice: first partitions are given up, then they are given to others. Is a second one about to follow?

Owns what can be seen of that in a classic group: what each member said it owns when it joined, against what it was assigned. Members that
assign eagerly own nothing when they join, and so nothing follows. Nothing is decided here that a group depends on: who is wrong about it
makes a member wait a moment longer, or hear of the rebalance with its next heartbeat.
"""

from __future__ import annotations

from typing import Final

from tidelog.coordinator.group.classic.group import CONSUMER, ClassicGroup, ClassicMember, SupportedProtocol
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.migration.embedded import NamedPartitions, read_assignment, read_subscription
from tidelog.errors import ProtocolError

MEMBERS_MAX: Final = 1000
"""Of larger groups nobody looks: reading what all of them own takes too long."""


def is_expected(group: ClassicGroup) -> bool:
    """Somebody has to give up partitions, and will join again when that is done. Looks at all members, once per generation."""
    if group.protocol_type != CONSUMER or group.state is not State.STABLE or len(group.members) > MEMBERS_MAX:
        return False
    if group.is_followed_up is None:
        group.is_followed_up = any(_gives_up(group, member) for member in group.members.values())
    return group.is_followed_up


def changes_nothing_for(group: ClassicGroup, member: ClassicMember, *, newcomers_too: bool) -> bool:
    """The member keeps what it owns, and gets nothing. Newcomers own nothing."""
    try:
        owned = _owned(group, member)
        return owned == _assigned(member) and (bool(owned) or newcomers_too)
    except ProtocolError:
        return False


def _gives_up(group: ClassicGroup, member: ClassicMember) -> bool:
    try:
        owned, assigned = _owned(group, member), _assigned(member)
    except ProtocolError:
        return False
    return any(partitions - assigned.get(topic, frozenset()) for topic, partitions in owned.items())


def _owned(group: ClassicGroup, member: ClassicMember) -> NamedPartitions:
    metadata = member.metadata(group.protocol)
    subscription = read_subscription([SupportedProtocol(group.protocol or "", metadata)])
    return _without_empty(subscription.owned)


def _assigned(member: ClassicMember) -> NamedPartitions:
    return _without_empty(read_assignment(member.assignment).partitions)


def _without_empty(named: NamedPartitions) -> NamedPartitions:
    return {topic: partitions for topic, partitions in named.items() if partitions}
