"""ConsumerGroups: the consumer groups of one shard, as the shard sees them.

Owns the table of groups, and `replay`, which is the only way in which anything changes that the log holds (I36). Requests go to
`heartbeat.py`; what they decide comes back as an outcome, whose records the runtime writes and hands to `replay` at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tidelog.coordinator.group import records as types
from tidelog.coordinator.group.consumer import commits, entries
from tidelog.coordinator.group.consumer.departures import Departures
from tidelog.coordinator.group.consumer.describe import describe
from tidelog.coordinator.group.consumer.environment import Environment
from tidelog.coordinator.group.consumer.group import (
    NO_ASSIGNMENT,
    ConsumerGroup,
    GroupState,
    MatchedTopics,
)
from tidelog.coordinator.group.consumer.heartbeat import Heartbeats
from tidelog.coordinator.group.consumer.liveness import Liveness
from tidelog.coordinator.group.consumer.member import Member, listed
from tidelog.coordinator.group.consumer.metadata import TopicMetadata
from tidelog.coordinator.group.history import GroupHistory
from tidelog.coordinator.group.offsets import PartitionCheck
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.world import Client, Topics
from tidelog.coordinator.outcome import CoordinatorRecord, Now, Outcome, Waiter
from tidelog.coordinator.timers import Timers
from tidelog.errors import RequestError
from tidelog.ports import Rng
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_describe import DescribedGroup
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

_LATEST: Final = 2**15 - 1


class Parts(NamedTuple):
    environment: Environment
    departures: Departures
    heartbeats: Heartbeats
    liveness: Liveness


class ConsumerGroups:
    __slots__ = (
        "_departures", "_environment", "_groups", "_heartbeats", "_is_loaded", "_liveness", "_replays",
    )  # fmt: skip

    def __init__(
        self, settings: GroupSettings, rng: Rng, timers: Timers, history: GroupHistory, topics: Topics
    ) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._environment = Environment(settings, rng, timers, history, TopicMetadata(topics), self._groups)
        self._departures = Departures(self._environment)
        self._liveness = Liveness(self._environment, self._departures.fence)
        self._heartbeats = Heartbeats(self._environment, self._departures, self._liveness)
        self._is_loaded = False
        self._replays: dict[type[Any], Callable[[Any, Any], None]] = {
            types.ConsumerGroupMetadataKey: self.replay_metadata,
            types.ConsumerGroupPartitionMetadataKey: self.replay_partition_metadata,
            types.ConsumerGroupMemberMetadataKey: self.replay_member_metadata,
            types.ConsumerGroupTargetAssignmentMetadataKey: self.replay_target_metadata,
            types.ConsumerGroupTargetAssignmentMemberKey: self.replay_target_member,
            types.ConsumerGroupCurrentMemberAssignmentKey: self.replay_current_assignment,
            types.ConsumerGroupRegularExpressionKey: self.replay_pattern,
        }

    @property
    def parts(self) -> Parts:
        """For members that speak the classic protocol in a group of this one: they are served with the same means."""
        return Parts(self._environment, self._departures, self._heartbeats, self._liveness)

    # ---- requests

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, waiter: Waiter, now: Now
    ) -> Outcome:
        return self._heartbeats.handle(request, client, waiter, now)

    def describe(self, group_id: str) -> DescribedGroup:
        group = self._groups.get(group_id)
        if group is None:
            return DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"there is no consumer group {group_id}",
                group_id=group_id,
                group_state=GroupState.DEAD.value,
            )
        return describe(group, self._environment.settings.assignors, self._environment.topics)

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        now: Now,  # classic groups renew a session here; these do not
        *,
        instance_id: str | None = None,
        is_transactional: bool = False,
        version: int = _LATEST,
    ) -> PartitionCheck | None:
        """RequestError: refused. None: every partition may be committed; otherwise ask about each, which may refuse the whole too."""
        return commits.check_commit(
            self._existing(group_id),
            self._environment.topics,
            member_id,
            member_epoch,
            instance_id=instance_id,
            is_transactional=is_transactional,
            version=version,
        )

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        commits.check_fetch(self._existing(group_id), member_id, member_epoch)

    def topics_changed(self, now: Now) -> Outcome:
        """Each group looks at its topics with its next heartbeat: a change that touches a thousand groups costs nothing here."""
        self._environment.metadata.changed()
        return Outcome()

    # ---- questions

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self._groups.get(group_id)

    def group_ids(self) -> list[str]:
        return list(self._groups)

    def state_name(self, group_id: str) -> str:
        group = self._groups.get(group_id)
        return (GroupState.DEAD if group is None else group.state).value

    def is_empty(self, group_id: str) -> bool:
        """Also a group that there is not has nobody in it."""
        group = self._groups.get(group_id)
        return group is None or not group.members

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """By name or by pattern; None: there is no such group."""
        group = self._groups.get(group_id)
        return None if group is None else group.subscribed_names()

    def tombstone(self, group_id: str) -> list[CoordinatorRecord]:
        """What removes all traces of the group. Whether it may go is the caller's question."""
        group = self._groups.get(group_id)
        return [] if group is None else entries.group_gone(group_id, group.members, group.patterns)

    def persistent_state(self) -> dict[str, Any]:
        return {group_id: group.persistent_state() for group_id, group in self._groups.items()}

    def _existing(self, group_id: str) -> ConsumerGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id}")
        return group

    # ---- replay

    def loaded(self, now: Now) -> Outcome:
        """The log has been read: from now on members must be heard of, and no record may give away what is another's."""
        self._is_loaded = True
        self._liveness.loaded(now)
        return Outcome()

    def replay(self, record: CoordinatorRecord) -> bool:
        """Whether the record is one of a consumer group."""
        apply = self._replays.get(type(record.key))
        if apply is None:
            return False
        apply(record.key, record.value)
        return True

    def replay_metadata(
        self, key: types.ConsumerGroupMetadataKey, value: types.ConsumerGroupMetadataValue | None
    ) -> None:
        if value is None:
            self._groups.pop(key.group_id, None)
            return
        group = self._made(key.group_id)
        group.epoch = value.epoch
        group.metadata_hash = value.metadata_hash

    def replay_partition_metadata(
        self,
        key: types.ConsumerGroupPartitionMetadataKey,
        value: types.ConsumerGroupPartitionMetadataValue | None,
    ) -> None:
        group = self._groups.get(key.group_id) if value is None else self._made(key.group_id)
        if group is not None:
            group.has_partition_metadata = value is not None

    def replay_member_metadata(
        self, key: types.ConsumerGroupMemberMetadataKey, value: types.ConsumerGroupMemberMetadataValue | None
    ) -> None:
        if value is not None:
            group = self._made(key.group_id)
            self._put(group, _member(group, key.member_id).with_metadata(value))
        elif (gone := self._groups.get(key.group_id)) is not None:
            gone.remove_member(key.member_id)

    def replay_target_metadata(
        self,
        key: types.ConsumerGroupTargetAssignmentMetadataKey,
        value: types.ConsumerGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        group = self._groups.get(key.group_id) if value is None else self._made(key.group_id)
        if group is not None:
            group.assignment_epoch = NO_ASSIGNMENT if value is None else value.assignment_epoch
            group.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp

    def replay_target_member(
        self,
        key: types.ConsumerGroupTargetAssignmentMemberKey,
        value: types.ConsumerGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is not None:
            self._made(key.group_id).targets[key.member_id] = listed(value.topic_partitions)
        elif (group := self._groups.get(key.group_id)) is not None:
            group.targets.pop(key.member_id, None)

    def replay_current_assignment(
        self,
        key: types.ConsumerGroupCurrentMemberAssignmentKey,
        value: types.ConsumerGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        if value is not None:
            group = self._made(key.group_id)
            self._put(group, _member(group, key.member_id).with_assignment(value))
        elif (known := self._groups.get(key.group_id)) is not None and key.member_id in known.members:
            self._put(known, known.members[key.member_id].without_assignment())

    def replay_pattern(
        self,
        key: types.ConsumerGroupRegularExpressionKey,
        value: types.ConsumerGroupRegularExpressionValue | None,
    ) -> None:
        if value is not None:
            self._made(key.group_id).patterns[key.regular_expression] = MatchedTopics(
                frozenset(value.topics), value.version, value.timestamp
            )
        elif (group := self._groups.get(key.group_id)) is not None:
            group.patterns.pop(key.regular_expression, None)

    def _made(self, group_id: str) -> ConsumerGroup:
        """Any record of a group makes it: after compaction it is not known which comes first."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = ConsumerGroup(group_id)
        return group

    def _put(self, group: ConsumerGroup, member: Member) -> None:
        group.put_member(member, exclusive=self._is_loaded)


def _member(group: ConsumerGroup, member_id: str) -> Member:
    return group.members.get(member_id) or Member(member_id)
