"""What members of a classic group tell each other through the coordinator: subscriptions and assignments, as bytes.

Kafka's consumer protocol puts a version before a subscription or an assignment. A newer one than we know is read as far as we know it,
as every client must. The sticky assignor of old keeps what a member owned in its user data, in a format of its own. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as struct_error
from typing import Final, TypeVar

from tidelog.client.consumer.assignors import NO_GENERATION, STICKY, Subscriber
from tidelog.client.metadata import TopicPartition
from tidelog.errors import ProtocolError
from tidelog.wire.codec import decoder, encode
from tidelog.wire.messages import consumer_protocol_assignment as assignment_wire
from tidelog.wire.messages import consumer_protocol_subscription as subscription_wire
from tidelog.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from tidelog.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription

M = TypeVar("M")

PROTOCOL_TYPE: Final = "consumer"
_HIGHEST_KNOWN: Final = 3
_INT16, _INT32 = Struct(">h"), Struct(">i")


def encode_subscription(
    topics: Iterable[str],
    *,
    assignor: str,
    owned: Iterable[TopicPartition] = (),
    generation: int = NO_GENERATION,
    rack: str | None = None,
    remembered: tuple[Iterable[TopicPartition], int] | None = None,
) -> bytes:
    """`remembered`: the last assignment and its generation, for the sticky assignor, whose members own nothing any more when they join."""
    held = sorted(owned)
    sticky, sticky_generation = (held, generation) if remembered is None else remembered
    message = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=_sticky_user_data(sorted(sticky), sticky_generation)
        if assignor == STICKY and sticky
        else None,
        owned_partitions=[
            subscription_wire.TopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in _by_topic(held)
        ],
        generation_id=generation,
        rack_id=rack or None,
    )
    return _INT16.pack(_HIGHEST_KNOWN) + encode(message, _HIGHEST_KNOWN)


def decode_subscription(member_id: str, instance_id: str | None, data: bytes) -> Subscriber:
    """ProtocolError if it is something else: a group's members may speak a protocol of their own."""
    message = _decode(ConsumerProtocolSubscription, data)
    owned = tuple(TopicPartition(t.topic, p) for t in message.owned_partitions for p in t.partitions)
    generation = message.generation_id
    if not owned and message.user_data:
        owned, generation = _from_sticky_user_data(message.user_data)
    return Subscriber(member_id, frozenset(message.topics), instance_id, owned, generation)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    assigned = [
        assignment_wire.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in _by_topic(sorted(partitions))
    ]
    version = 1
    return _INT16.pack(version) + encode(ConsumerProtocolAssignment(assigned_partitions=assigned), version)


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """No bytes at all are no partitions: what a member has while the group rebalances."""
    if not data:
        return frozenset()
    message = _decode(ConsumerProtocolAssignment, data)
    return frozenset(TopicPartition(t.topic, p) for t in message.assigned_partitions for p in t.partitions)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, []).append(tp.partition)
    return list(found.items())


def _decode(cls: type[M], data: bytes) -> M:
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        raise ProtocolError(f"{cls.__name__}: {len(data)} bytes with the version {version} make no sense")
    message, _ = decoder(cls, min(version, _HIGHEST_KNOWN))(memoryview(data), 2)
    return message


# ---- the user data of the sticky assignor: an array of (topic, array of partitions), then the generation


def _sticky_user_data(owned: list[TopicPartition], generation: int) -> bytes:
    topics = _by_topic(owned)
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics:
        name = topic.encode()
        parts += (
            _INT16.pack(len(name)),
            name,
            _INT32.pack(len(numbers)),
            *(_INT32.pack(number) for number in numbers),
        )
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def _from_sticky_user_data(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Whatever cannot be read owns nothing: it only costs stickiness."""
    owned: list[TopicPartition] = []
    try:
        (topics,), at = _INT32.unpack_from(data, 0), 4
        for _ in range(topics):
            (length,), at = _INT16.unpack_from(data, at), at + 2
            topic, at = data[at : at + length].decode(), at + length
            (count,), at = _INT32.unpack_from(data, at), at + 4
            for _ in range(count):
                (number,), at = _INT32.unpack_from(data, at), at + 4
                owned.append(TopicPartition(topic, number))
        generation = _INT32.unpack_from(data, at)[0] if at + 4 <= len(data) else NO_GENERATION
    except (struct_error, UnicodeDecodeError):
        return (), NO_GENERATION
    return tuple(owned), generation
