"""The target assignment: when it is computed, from what, and which records say so.

Owns the pace: a group whose epoch is ahead of its target gets a new one with the next heartbeat, but not before the assignment interval
since the last one is over (KIP-1263), so that a hundred members that join at once cost a few assignments and not a hundred. Owns no policy:
that is the assignor's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidelog.coordinator.group.consumer import entries
from tidelog.coordinator.group.consumer.assignors import Assignor, Subscriber
from tidelog.coordinator.group.consumer.group import ConsumerGroup, MatchedTopics
from tidelog.coordinator.group.consumer.member import Member, TopicPartitions
from tidelog.coordinator.group.consumer.metadata import TopicMetadata
from tidelog.coordinator.outcome import CoordinatorRecord, Now


class Target(NamedTuple):
    epoch: int
    partitions: Mapping[str, TopicPartitions]
    records: list[CoordinatorRecord]


def is_due(group: ConsumerGroup, interval_ms: int, now: Now) -> bool:
    """Whether enough time has passed since the last target. The clock of the wall may have been set back meanwhile: then we do not
    wait until it has caught up.
    """
    since_ms = now.wall_ms - group.assignment_timestamp_ms
    return group.assignment_timestamp_ms == 0 or since_ms >= interval_ms or since_ms < 0


def compute(
    group: ConsumerGroup,
    epoch: int,
    members: Mapping[str, Member],
    current: Mapping[str, TopicPartitions],
    assignor: Assignor,
    metadata: TopicMetadata,
    now: Now,
) -> Target:
    """`members` and `current` are the group as it will be once the records so far are written."""
    subscriptions = Subscriptions(group.patterns, metadata)
    subscribers = [
        Subscriber(member_id, member.instance_id, subscriptions.of(member), current.get(member_id, {}))
        for member_id, member in members.items()
    ]
    found = assignor(subscribers, subscriptions.partitions())
    records = [
        entries.target_assignment(group.id, member_id, found[member_id])
        for member_id in sorted(found)
        if current.get(member_id) != found[member_id]  # a new member's is written also if it is empty
    ]
    records.append(entries.assignment_epoch(group.id, epoch, now.wall_ms))
    return Target(epoch, found, records)


class Subscriptions:
    """Which topics, by id, each member is subscribed to. Members with the same wishes share one set, which assignors are glad of."""

    __slots__ = ("_found", "_metadata", "_patterns")

    def __init__(self, patterns: Mapping[str, MatchedTopics], metadata: TopicMetadata) -> None:
        self._patterns = patterns
        self._metadata = metadata
        self._found: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}

    def of(self, member: Member) -> frozenset[bytes]:
        wishes = member.topic_names, member.pattern
        found = self._found.get(wishes)
        if found is None:
            found = self._found[wishes] = self._metadata.ids_of(self._names(member))
        return found

    def wants(self, member: Member) -> Callable[[bytes], bool]:
        """Whether it is subscribed to one topic or another, without a look at all of them."""
        matched = self._patterns.get(member.pattern)
        topics = self._metadata.topics

        def wanted(topic_id: bytes) -> bool:
            name = topics.name_of(topic_id)
            return name is not None and (
                name in member.topic_names or (matched is not None and name in matched.topics)
            )

        return wanted

    def partitions(self) -> dict[bytes, int]:
        """Of all topics asked for so far."""
        topics = self._metadata.topics
        counts: dict[bytes, int] = {}
        for ids in self._found.values():
            for topic_id in ids:
                if topic_id not in counts:
                    name = topics.name_of(topic_id)
                    counts[topic_id] = 0 if name is None else topics.partitions(name) or 0
        return counts

    def _names(self, member: Member) -> frozenset[str]:
        """A pattern that has not been matched yet matches nothing."""
        matched = self._patterns.get(member.pattern)
        return member.topic_names if matched is None else member.topic_names | matched.topics
