"""A group as one heartbeat will leave it: what is decided before anything is written, since nothing of the group itself may change
until then (D5).

Owns the difference between the group and that draft, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.member import JOINING, Member, TopicPartitions, listed
from tidelog.coordinator.group.records import ClassicMemberMetadata
from tidelog.coordinator.outcome import CoordinatorRecord
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


@dataclass(slots=True)
class Draft:
    group: ConsumerGroup
    request: ConsumerGroupHeartbeatRequest
    before: Member
    """The member as it is in the group; one that wants and has nothing, where it is new."""
    replaces: str | None = None
    """The id of the static member whose place it takes."""
    records: list[CoordinatorRecord] = field(default_factory=list)
    classic: ClassicMemberMetadata | None = None
    """Of a member that joins with the classic protocol, and whose request is made of its JoinGroup."""
    after: Member = field(init=False)
    epoch: int = field(init=False)
    assignment_epoch: int = field(init=False)
    owned: TopicPartitions | None = field(init=False)
    """What the member says it has; None: it does not say."""

    def __post_init__(self) -> None:
        self.after = self.before
        self.epoch = self.group.epoch
        self.assignment_epoch = self.group.assignment_epoch
        self.owned = None if self.request.topic_partitions is None else listed(self.request.topic_partitions)

    @property
    def is_joining(self) -> bool:
        return self.request.member_epoch == JOINING

    @property
    def is_new(self) -> bool:
        return self.replaces is not None or self.before.id not in self.group.members

    @property
    def subscription_changed(self) -> bool:
        return self.after.topic_names != self.before.topic_names or self.after.pattern != self.before.pattern

    def current_target(self) -> TopicPartitions:
        """What the member was last meant to have; of one that takes another's place, what that one was."""
        return self.group.target(self.after.id if self.replaces is None else self.replaces)

    def members(self) -> dict[str, Member]:
        members = dict(self.group.members)
        if self.replaces is not None:
            del members[self.replaces]
        members[self.after.id] = self.after
        return members

    def targets(self) -> dict[str, TopicPartitions]:
        targets = dict(self.group.targets)
        if self.replaces is not None:
            targets.pop(self.replaces, None)
            targets[self.after.id] = self.current_target()
        return targets

    def is_anothers(self, topic_id: bytes, partition: int) -> bool:
        """Whether somebody else owns the partition."""
        return self.group.owners.get((topic_id, partition)) not in (None, self.after.id, self.replaces)
