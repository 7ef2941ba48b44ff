"""What members of a classic group tell each other through the coordinator: subscriptions, assignments, and the range assignor.

Kafka's consumer protocol puts a version before a subscription or an assignment. A newer one than we know is read as far as we know it,
as every client must. Pure: no I/O; partition counts are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from tidelog.client.metadata import TopicPartition
from tidelog.errors import ProtocolError
from tidelog.wire.codec import decoder, encode
from tidelog.wire.messages import consumer_protocol_assignment as assignment_wire
from tidelog.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from tidelog.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription

M = TypeVar("M")

PROTOCOL_TYPE = "consumer"
RANGE = "range"
_HIGHEST_KNOWN = 3
_WRITTEN = 0
"""What we write: a member that owns nothing when it joins has nothing to say that version 0 cannot."""


class Subscriber(NamedTuple):
    member_id: str
    instance_id: str | None
    topics: frozenset[str]


def encode_subscription(topics: Iterable[str]) -> bytes:
    return _versioned(encode(ConsumerProtocolSubscription(topics=sorted(topics)), _WRITTEN))


def decode_subscription(data: bytes) -> frozenset[str]:
    """The topics. ProtocolError if it is something else: a group's members may speak a protocol of their own."""
    return frozenset(_decode(ConsumerProtocolSubscription, data).topics)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    assigned = [assignment_wire.TopicPartition(topic=t, partitions=p) for t, p in by_topic.items()]
    return _versioned(encode(ConsumerProtocolAssignment(assigned_partitions=assigned), _WRITTEN))


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """No bytes at all are no partitions: what a member has while the group rebalances."""
    if not data:
        return frozenset()
    message = _decode(ConsumerProtocolAssignment, data)
    return frozenset(TopicPartition(t.topic, p) for t in message.assigned_partitions for p in t.partitions)


def _versioned(body: bytes) -> bytes:
    return _WRITTEN.to_bytes(2, "big") + body


def _decode(cls: type[M], data: bytes) -> M:
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        raise ProtocolError(f"{cls.__name__}: {len(data)} bytes with the version {version} make no sense")
    message, _ = decoder(cls, min(version, _HIGHEST_KNOWN))(memoryview(data), 2)
    return message


def assign_ranges(
    subscribers: Iterable[Subscriber], partition_counts: Mapping[str, int]
) -> dict[str, frozenset[TopicPartition]]:
    """By member id. Topic by topic each subscriber gets a run of neighbours, the first ones one more if it does not come out even.

    Static members come first, by their instance id: so they get the same partitions after a restart, whatever their new member id.
    """
    ordered = sorted(subscribers, key=lambda s: (s.instance_id is None, s.instance_id or "", s.member_id))
    shares: dict[str, set[TopicPartition]] = {s.member_id: set() for s in ordered}
    for topic, count in partition_counts.items():
        interested = [s.member_id for s in ordered if topic in s.topics]
        first = 0
        for number, member_id in enumerate(interested):
            size = count // len(interested) + (number < count % len(interested))
            shares[member_id].update(TopicPartition(topic, p) for p in range(first, first + size))
            first += size
    return {member_id: frozenset(share) for member_id, share in shares.items()}
