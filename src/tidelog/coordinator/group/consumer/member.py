"""A member of a consumer group: one immutable value, made of what its two records say and of nothing else (I36).

Owns the translation between the value and its records (`ConsumerGroupMemberMetadata`: who it is and what it wants;
`ConsumerGroupCurrentMemberAssignment`: where it stands). Decides nothing: `reconciliation.py` says what comes next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, Protocol, TypeAlias

from tidelog.coordinator.group.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    CurrentTopicPartitions,
)

TopicPartitions: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions by topic id. No topic is there without a partition."""
PartitionEpochs: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""Partitions by topic id, each with the member epoch from which on the member has had it (KIP-1251)."""

JOINING: Final = 0
LEAVING: Final = -1
LEFT_FOR_NOW: Final = -2
"""What a static member says that will be back: its partitions wait for it until its session ends."""
NEVER: Final = -1
"""The previous epoch of a member that has had only one."""


class MemberState(IntEnum):
    """Where a member stands on its way to the target assignment. The numbers are those in its record.

    STABLE                  it has all that its target gives it, as of its epoch
    UNREVOKED_PARTITIONS    it must give up partitions and has not yet said that it did; its epoch waits
    UNRELEASED_PARTITIONS   it has given up all it must, and some of what it shall get is still with others
    UNKNOWN                 a newer release wrote a number that this one does not know: the member must begin anew
    """

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class ListedPartitions(Protocol):
    """A topic and its partitions, as requests list them."""

    topic_id: bytes
    partitions: list[int]


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    # where it stands
    epoch: int = JOINING
    previous_epoch: int = NEVER
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict)
    """What it may read now, whether or not it knows yet."""
    revoking: PartitionEpochs = field(default_factory=dict)
    """What it was told to give up: nobody else gets these before it says that it has done so."""
    # who it is
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    # what it wants
    topic_names: frozenset[str] = frozenset()
    pattern: str = ""
    assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    """Of a member that speaks the classic protocol in a consumer group; None: it speaks this one."""

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch

    def at_epoch(self, epoch: int) -> Member:
        """Kafka counts every new assignment as a step, also one within the same epoch: the epoch before it is the previous one."""
        return replace(self, epoch=epoch, previous_epoch=self.epoch)

    def has_since(self, topic_id: bytes, partition: int) -> int | None:
        """The epoch from which on it has had the partition, also one that it is giving up. None: it has it not."""
        for held in (self.assigned, self.revoking):
            since = held.get(topic_id, {}).get(partition)
            if since is not None:
                return since
        return None

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> Member:
        classic = value.classic_member_metadata
        if classic is not None and not classic.session_timeout_ms:
            classic = None  # a record of an early release, that does not say
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topic_names=frozenset(value.subscribed_topic_names),
            pattern=value.subscribed_topic_regex or "",
            assignor=value.server_assignor,
            classic=classic,
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> Member:
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=_state(value.state),
            assigned=_read_epochs(value.assigned_partitions, value.member_epoch),
            revoking=_read_epochs(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> Member:
        """After the tombstone of its assignment, which comes just before that of the member."""
        return replace(self, epoch=LEAVING, previous_epoch=LEAVING, assigned={}, revoking={})

    def metadata_value(self) -> ConsumerGroupMemberMetadataValue:
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topic_names),
            subscribed_topic_regex=self.pattern,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=self.classic,
        )

    def assignment_value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=int(self.state),
            assigned_partitions=_write_epochs(self.assigned),
            partitions_pending_revocation=_write_epochs(self.revoking),
        )


def listed(topics: Iterable[ListedPartitions]) -> dict[bytes, frozenset[int]]:
    """What a request or a record lists. A topic that is listed twice counts once, one without partitions not at all."""
    found: dict[bytes, frozenset[int]] = {}
    for topic in topics:
        if topic.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()).union(topic.partitions)
    return found


def without_epochs(epochs: PartitionEpochs) -> dict[bytes, frozenset[int]]:
    return {topic_id: frozenset(partitions) for topic_id, partitions in epochs.items()}


def are_the_same(epochs: PartitionEpochs, partitions: TopicPartitions) -> bool:
    return len(epochs) == len(partitions) and all(
        epochs[topic_id].keys() == indexes if topic_id in epochs else False
        for topic_id, indexes in partitions.items()
    )


def are_within(partitions: TopicPartitions, epochs: PartitionEpochs) -> bool:
    return all(epochs.get(topic_id, {}).keys() >= indexes for topic_id, indexes in partitions.items())


def _state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN


def _read_epochs(topics: Iterable[CurrentTopicPartitions], member_epoch: int) -> dict[bytes, dict[int, int]]:
    """Releases before 4.3 stated no epochs: then the member's own is the one that promises least."""
    read: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [member_epoch] * len(topic.partitions)
        if topic.partitions:
            read.setdefault(topic.topic_id, {}).update(zip(topic.partitions, epochs, strict=True))
    return read


def _write_epochs(held: PartitionEpochs) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=sorted(held[topic_id]),
            assignment_epochs=[held[topic_id][partition] for partition in sorted(held[topic_id])],
        )
        for topic_id in sorted(held)
    ]
