"""ConsumerGroupDescribe: a group as people and tools see it. Versions 0 and 1; 1 says which protocol each member speaks."""

from __future__ import annotations

from typing import Final

from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.member import Member, TopicPartitions, without_epochs
from tidelog.coordinator.group.world import Topics
from tidelog.wire.messages import consumer_group_describe as messages

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


def describe(group: ConsumerGroup, assignors: tuple[str, ...], topics: Topics) -> messages.DescribedGroup:
    nobody = Member("")
    return messages.DescribedGroup(
        group_id=group.id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor_with(nobody, nobody, assignors),
        members=[
            _member(group.members[member_id], group.target(member_id), topics)
            for member_id in sorted(group.members)
        ],
    )


def _member(member: Member, target: TopicPartitions, topics: Topics) -> messages.Member:
    return messages.Member(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(without_epochs(member.assigned), topics),
        target_assignment=_assignment(target, topics),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(partitions: TopicPartitions, topics: Topics) -> messages.Assignment:
    """Of topics that are gone nothing is said: they have no name any more."""
    named = ((topics.name_of(topic_id), topic_id) for topic_id in partitions)
    return messages.Assignment(
        topic_partitions=[
            messages.TopicPartitions(
                topic_id=topic_id, topic_name=name, partitions=sorted(partitions[topic_id])
            )
            for name, topic_id in sorted((name, topic_id) for name, topic_id in named if name is not None)
        ]
    )
