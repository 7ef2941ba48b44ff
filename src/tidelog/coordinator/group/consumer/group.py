"""One consumer group: what its records say, and what follows from them.

Owns the hard state, which only the `put_…` and `remove_…` methods change, and those are called by `replay` alone (I36), and the
few soft facts that may be forgotten. Keeps the owner of every partition: the member that has it or was told to give it up and has not
yet said that it did. There is never more than one (I34). Who owns what is derived from the members' records and stored nowhere.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

from tidelog.coordinator.group.consumer.member import Member, PartitionEpochs, TopicPartitions

FIRST_EPOCH: Final = 1
"""Of a new group and of its empty target (Kafka 4.3): a member that joins before there is a target is told 1, since 0 means joining."""
NO_ASSIGNMENT: Final = -1
"""The assignment epoch after its tombstone, just before the group goes."""
NOTHING: Final[TopicPartitions] = {}


class GroupState(Enum):
    EMPTY = "Empty"
    """Nobody is in it."""
    ASSIGNING = "Assigning"
    """Its target assignment is older than the group."""
    RECONCILING = "Reconciling"
    """At least one member has not reached the target."""
    STABLE = "Stable"
    DEAD = "Dead"
    """There is no such group."""


class MatchedTopics(NamedTuple):
    """What a pattern matched, shared by all members that use it."""

    topics: frozenset[str]
    version: int  # the metadata offset as of which
    timestamp_ms: int


class Refreshed(NamedTuple):
    """When a group last looked at its topics: after which change of them, and which epoch the group had then."""

    topics_generation: int
    epoch: int


class ConsumerGroup:
    __slots__ = (
        "assignment_epoch",
        "assignment_timestamp_ms",
        "assignor_votes",
        "confirmed",
        "epoch",
        "has_partition_metadata",
        "id",
        "instances",
        "laggard",
        "members",
        "metadata_hash",
        "owners",
        "pattern_users",
        "patterns",
        "refreshed",
        "subscribers",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        # what the records say
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp_ms = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, TopicPartitions] = {}
        self.patterns: dict[str, MatchedTopics] = {}
        self.has_partition_metadata = False
        # what follows from them
        self.instances: dict[str, str] = {}  # the member of each static instance
        self.owners: dict[tuple[bytes, int], str] = {}
        self.subscribers: dict[str, int] = {}  # how many members name a topic
        self.pattern_users: dict[str, int] = {}
        self.assignor_votes: dict[str, int] = {}
        # what may be forgotten
        self.refreshed: Refreshed | None = None
        self.confirmed: set[str] = set()  # the members that have said that they have exactly their assignment
        self.laggard = ""  # a member that had not arrived when somebody last looked

    # ---- questions

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def static_member(self, instance_id: str) -> Member | None:
        member_id = self.instances.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target(self, member_id: str) -> TopicPartitions:
        return self.targets.get(member_id, NOTHING)

    def is_refreshed(self, topics_generation: int) -> bool:
        """False also if the epoch was written down for records that never made it into the log."""
        return (
            self.refreshed is not None
            and self.refreshed.topics_generation == topics_generation
            and self.refreshed.epoch <= self.epoch
        )

    def subscribed_names(self) -> frozenset[str]:
        """All topics that its members want, by name or by pattern, whether or not they exist."""
        return frozenset(self.subscribers).union(*(matched.topics for matched in self.patterns.values()))

    def names_with(self, before: Member, after: Member) -> set[str]:
        """`subscribed_names` once `before`, which is in the group, or wants nothing, has become `after`."""
        names = set(self.subscribers)
        names.difference_update(
            name for name in before.topic_names - after.topic_names if self.subscribers.get(name) == 1
        )
        names |= after.topic_names
        gone = self.pattern_without_users(before, after)
        for pattern, matched in self.patterns.items():
            if pattern != gone:
                names |= matched.topics
        return names

    def pattern_without_users(self, before: Member, after: Member) -> str | None:
        """The pattern that nobody uses any more once `before` has become `after`."""
        if before.pattern and before.pattern != after.pattern and self.pattern_users.get(before.pattern) == 1:
            return before.pattern
        return None

    def assignor_with(self, before: Member, after: Member, known: tuple[str, ...]) -> str:
        """The assignor that most members want once `before` has become `after`; the server's first where they want none or disagree."""
        votes = dict(self.assignor_votes)
        _count(votes, before.assignor, -1)
        _count(votes, after.assignor, +1)
        return max(known, key=lambda name: (votes.get(name, 0), -known.index(name)))

    def with_disputed_partitions(self) -> list[Member]:
        """Members that claim a partition which is another's: there are none, unless a log says so that another release wrote."""
        return [
            member
            for member in self.members.values()
            if any(self.owners.get(place) != member.id for place in _places(member))
        ]

    def persistent_state(self) -> dict[str, Any]:
        """All that the log holds, and what follows from it: equal for two instances that read the same records."""
        return {
            "epoch": self.epoch,
            "metadata hash": self.metadata_hash,
            "assignment epoch": self.assignment_epoch,
            "assignment timestamp": self.assignment_timestamp_ms,
            "members": dict(self.members),
            "targets": dict(self.targets),
            "patterns": dict(self.patterns),
            "partition metadata": self.has_partition_metadata,
            "instances": dict(self.instances),
            "owners": dict(self.owners),
            "subscribers": dict(self.subscribers),
            "pattern users": dict(self.pattern_users),
            "assignor votes": dict(self.assignor_votes),
        }

    # ---- replay

    def put_member(self, member: Member, *, exclusive: bool) -> None:
        """`exclusive`: a partition of the member is nobody else's. While a log is read that is being compacted, an old claim may be
        seen without its end (KAFKA-19862); the newer claim counts then.
        """
        old = self.members.get(member.id)
        self.members[member.id] = member
        self._count_wishes(old, member)
        if old is None or (old.assigned, old.revoking) != (member.assigned, member.revoking):
            self._move_partitions(old, member, exclusive)
        if old is not None and old.instance_id is not None and old.instance_id != member.instance_id:
            self._forget_instance(old)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.id

    def remove_member(self, member_id: str) -> None:
        old = self.members.pop(member_id, None)
        self.targets.pop(member_id, None)
        self.confirmed.discard(member_id)
        if old is not None:
            self._count_wishes(old, None)
            self._move_partitions(old, None, exclusive=False)
            self._forget_instance(old)

    def _count_wishes(self, old: Member | None, new: Member | None) -> None:
        old_names = frozenset() if old is None else old.topic_names
        new_names = frozenset() if new is None else new.topic_names
        if old_names != new_names:
            for name in old_names - new_names:
                _count(self.subscribers, name, -1)
            for name in new_names - old_names:
                _count(self.subscribers, name, +1)
        for member, by in ((old, -1), (new, +1)):
            if member is not None:
                _count(self.pattern_users, member.pattern or None, by)
                _count(self.assignor_votes, member.assignor, by)

    def _move_partitions(self, old: Member | None, new: Member | None, exclusive: bool) -> None:
        had = set() if old is None else _places(old)
        has = set() if new is None else _places(new)
        for place in had - has:
            if old is not None and self.owners.get(place) == old.id:
                del self.owners[place]
        if new is not None:
            for place in has:
                owner = self.owners.get(place)
                assert not exclusive or owner in (None, new.id) or place in had, (
                    f"group {self.id}: {place[0].hex()}-{place[1]} is {owner}'s and went to {new.id} (I34)"
                )
                self.owners[place] = new.id

    def _forget_instance(self, member: Member) -> None:
        if member.instance_id is not None and self.instances.get(member.instance_id) == member.id:
            del self.instances[member.instance_id]


def _places(member: Member) -> set[tuple[bytes, int]]:
    """Every partition that is the member's: what it has, and what it is giving up."""
    held: tuple[PartitionEpochs, PartitionEpochs] = (member.assigned, member.revoking)
    return {
        (topic_id, partition)
        for epochs in held
        for topic_id, partitions in epochs.items()
        for partition in partitions
    }


def _count(counts: dict[str, int], name: str | None, by: int) -> None:
    """Counts of zero are not kept, so that equal groups have equal counts."""
    if name is None:
        return
    count = counts.get(name, 0) + by
    if count > 0:
        counts[name] = count
    else:
        counts.pop(name, None)
