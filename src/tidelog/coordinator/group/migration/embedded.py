"""What consumers say inside the classic protocol: subscriptions in a JoinGroup, assignments in the answer to a SyncGroup.

Owns Kafka's embedded consumer protocol as far as the coordinator reads and writes it, which it does only for groups that have members of
both protocols, or had. A version newer than we know is read as far as we know it, as every client must. Topics have names there, ids here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from tidelog.coordinator.group.classic.group import NO_ASSIGNMENT, SupportedProtocol
from tidelog.coordinator.group.consumer.member import Member, TopicPartitions, without_epochs
from tidelog.coordinator.group.records import ClassicMemberMetadata, ClassicProtocol
from tidelog.coordinator.group.world import Topics
from tidelog.errors import ProtocolError
from tidelog.wire.codec import decoder, encode
from tidelog.wire.messages import consumer_protocol_assignment as assignment_wire
from tidelog.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from tidelog.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription

NamedPartitions: TypeAlias = Mapping[str, frozenset[int]]
"""Partitions by the name of their topic."""

M = TypeVar("M")

_HIGHEST_KNOWN: Final = 3
_VERSION_BYTES: Final = 2


class _Listed(Protocol):
    topic: str
    partitions: list[int]


class Subscription(NamedTuple):
    topics: frozenset[str]
    owned: NamedPartitions
    """What the member has while it asks. An eager one has given up everything by then, and says so by saying nothing."""
    rack_id: str | None


class Assignment(NamedTuple):
    partitions: NamedPartitions
    has_user_data: bool
    """The assignor had more to say to its members than partitions: nobody but that assignor can carry on from there."""


def read_subscription(protocols: Sequence[SupportedProtocol]) -> Subscription:
    """A client says the same beside each assignor that it offers, so the first counts. ProtocolError where one of them makes no sense."""
    read = [_read(ConsumerProtocolSubscription, metadata) for _, metadata in protocols]
    if not read:
        raise ProtocolError("no assignor is offered, and so no subscription")
    first = read[0]
    return Subscription(frozenset(first.topics), _named(first.owned_partitions), first.rack_id)


def read_assignment(data: bytes) -> Assignment:
    """No bytes at all are no partitions: what a member has that has never been given any."""
    if data == NO_ASSIGNMENT:
        return Assignment({}, False)
    read = _read(ConsumerProtocolAssignment, data)
    return Assignment(_named(read.assigned_partitions), bool(read.user_data))


def write_assignment(partitions: TopicPartitions, topics: Topics, version: int) -> bytes:
    """Topics that are gone have no name any more, and nobody reads them."""
    named = {name: indexes for topic_id, indexes in partitions.items() if (name := topics.name_of(topic_id))}
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            assignment_wire.TopicPartition(topic=name, partitions=sorted(named[name]))
            for name in sorted(named)
        ]
    )
    return version.to_bytes(_VERSION_BYTES, "big") + encode(message, version)


def by_id(named: NamedPartitions, topics: Topics) -> dict[bytes, frozenset[int]]:
    """Topics that are gone, or have yet to come, count for nothing."""
    return {
        topic_id: indexes
        for name, indexes in named.items()
        if indexes and (topic_id := topics.id_of(name)) is not None
    }


# ---- of a member that speaks the classic protocol in a consumer group


def classic_metadata(
    session_timeout_ms: int, protocols: Iterable[SupportedProtocol]
) -> ClassicMemberMetadata:
    offered = [ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols]
    return ClassicMemberMetadata(session_timeout_ms=session_timeout_ms, supported_protocols=offered)


def offered_by(classic: ClassicMemberMetadata) -> tuple[SupportedProtocol, ...]:
    return tuple(SupportedProtocol(each.name, each.metadata) for each in classic.supported_protocols)


def assignment_of(member: Member, classic: ClassicMemberMetadata, topics: Topics) -> bytes:
    """What the member may read now, in the version in which it subscribes."""
    return write_assignment(without_epochs(member.assigned), topics, _version_of(offered_by(classic)))


def _version_of(protocols: Sequence[SupportedProtocol]) -> int:
    """0, which every client reads, where a log says nothing that we could go by."""
    metadata = protocols[0].metadata if protocols else b""
    version = int.from_bytes(metadata[:_VERSION_BYTES], "big", signed=True)
    return max(0, min(version, _HIGHEST_KNOWN))


def _read(cls: type[M], data: bytes) -> M:
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if len(data) < _VERSION_BYTES or version < 0:
        raise ProtocolError(f"{cls.__name__}: {len(data)} bytes with the version {version} make no sense")
    message, _ = decoder(cls, min(version, _HIGHEST_KNOWN))(memoryview(data), _VERSION_BYTES)
    return message


def _named(listed: Iterable[_Listed]) -> dict[str, frozenset[int]]:
    """A topic that is listed twice counts once, with the partitions of both."""
    named: dict[str, frozenset[int]] = {}
    for each in listed:
        named[each.topic] = named.get(each.topic, frozenset()).union(each.partitions)
    return named
