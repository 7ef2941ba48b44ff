"""The records that tell a consumer group's story, each made in one place, and which of them go together in which order.

Owns keys and order, as Kafka writes them; what the values mean is `member.py`'s and `group.py`'s business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidelog.coordinator.group import records as types
from tidelog.coordinator.group.consumer.member import Member, TopicPartitions
from tidelog.coordinator.outcome import CoordinatorRecord


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        types.ConsumerGroupMetadataKey(group_id),
        types.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def member_metadata(group_id: str, member: Member) -> CoordinatorRecord:
    return CoordinatorRecord(
        types.ConsumerGroupMemberMetadataKey(group_id, member.id), member.metadata_value()
    )


def current_assignment(group_id: str, member: Member) -> CoordinatorRecord:
    return CoordinatorRecord(
        types.ConsumerGroupCurrentMemberAssignmentKey(group_id, member.id), member.assignment_value()
    )


def target_assignment(group_id: str, member_id: str, target: TopicPartitions) -> CoordinatorRecord:
    topics = [
        types.TargetTopicPartition(topic_id=topic_id, partitions=sorted(target[topic_id]))
        for topic_id in sorted(target)
    ]
    return CoordinatorRecord(
        types.ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
        types.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics),
    )


def assignment_epoch(group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    """Comes after the targets that changed: whoever reads it has all of them."""
    return CoordinatorRecord(
        types.ConsumerGroupTargetAssignmentMetadataKey(group_id),
        types.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=timestamp_ms
        ),
    )


def matched_topics(
    group_id: str, pattern: str, topics: Collection[str], *, version: int, timestamp_ms: int
) -> CoordinatorRecord:
    return CoordinatorRecord(
        types.ConsumerGroupRegularExpressionKey(group_id, pattern),
        types.ConsumerGroupRegularExpressionValue(
            topics=sorted(topics), version=version, timestamp=timestamp_ms
        ),
    )


def pattern_gone(group_id: str, pattern: str) -> CoordinatorRecord:
    return CoordinatorRecord(types.ConsumerGroupRegularExpressionKey(group_id, pattern), None)


def partition_metadata_gone(group_id: str) -> CoordinatorRecord:
    """Of a group that a release before 4.1 wrote: the metadata hash has taken its place."""
    return CoordinatorRecord(types.ConsumerGroupPartitionMetadataKey(group_id), None)


def member_gone(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """First what it has, then what it should have, then the member itself."""
    return [
        CoordinatorRecord(types.ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        CoordinatorRecord(types.ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None),
        CoordinatorRecord(types.ConsumerGroupMemberMetadataKey(group_id, member_id), None),
    ]


def member_replaced(group_id: str, old: str, new: Member, target: TopicPartitions) -> list[CoordinatorRecord]:
    """A static member is back under a new id, in the place of the old one."""
    return [
        *member_gone(group_id, old),
        member_metadata(group_id, new),
        target_assignment(group_id, new.id, target),
        current_assignment(group_id, new),
    ]


def group_gone(group_id: str, members: Iterable[str], patterns: Iterable[str]) -> list[CoordinatorRecord]:
    """All that a group may have left in the log; the group's own record goes last."""
    ids = sorted(members)
    return [
        *(
            CoordinatorRecord(types.ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None)
            for member_id in ids
        ),
        *(
            CoordinatorRecord(types.ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None)
            for member_id in ids
        ),
        CoordinatorRecord(types.ConsumerGroupTargetAssignmentMetadataKey(group_id), None),
        *(
            CoordinatorRecord(types.ConsumerGroupMemberMetadataKey(group_id, member_id), None)
            for member_id in ids
        ),
        *(pattern_gone(group_id, pattern) for pattern in sorted(patterns)),
        partition_metadata_gone(group_id),
        CoordinatorRecord(types.ConsumerGroupMetadataKey(group_id), None),
    ]
