"""One partition of `__consumer_offsets` as state: the groups and the offsets that it holds, and every request about them.

Owns which kind of group an id is, and the order in which a record of the log reaches the part it belongs to. The rules are elsewhere:
`classic`, `consumer`, `offsets`, and `migration` for whoever does not speak the group's protocol. A group that only commits and has no members
("simple") has no record of its own; it exists by its offsets.

The runtime calls one handler at a time, writes what it returns and replays it here; nothing else changes what the log holds (D5, I36).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from tidelog.coordinator.group import follow_up
from tidelog.coordinator.group import records as types
from tidelog.coordinator.group.classic.describe import described_as_missing
from tidelog.coordinator.group.classic.groups import ClassicGroups
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.consumer.groups import ConsumerGroups
from tidelog.coordinator.group.history import Entry, GroupHistory
from tidelog.coordinator.group.migration.migration import Migration
from tidelog.coordinator.group.offset_requests import OffsetRequests
from tidelog.coordinator.group.offsets import Offsets
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.world import Client, Topics
from tidelog.coordinator.outcome import CoordinatorRecord, Now, Outcome, Waiter, answered
from tidelog.coordinator.timers import Timers
from tidelog.errors import RequestError
from tidelog.ports import Rng
from tidelog.records.batch import NO_PRODUCER_ID
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.delete_groups import DeletableGroupResult
from tidelog.wire.messages.describe_groups import DescribedGroup
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest
from tidelog.wire.messages.leave_group import LeaveGroupRequest
from tidelog.wire.messages.list_groups import ListedGroup
from tidelog.wire.messages.offset_commit import OffsetCommitRequest
from tidelog.wire.messages.offset_delete import OffsetDeleteRequest
from tidelog.wire.messages.offset_fetch import OffsetFetchRequestGroup
from tidelog.wire.messages.sync_group import SyncGroupRequest

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
_EMPTY: Final = "Empty"
_EXPIRY: Final = "offsets expire"
_GONE: Final = "topics are gone"
_DELETION: Final = "a group is deleted"
_TOGETHER: Final = 200_000
"""Characters of keys in one batch of tombstones: a group may have thousands of offsets, and all of them may go together. Each is four bytes
at most, and a batch may have a million.
"""
_KEY_OVERHEAD: Final = 32
_AGAIN_MS: Final = 10_000
_FOLLOW_UP_MS: Final = 1500
"""Most who give up partitions do so at once, and librdkafka joins once a second at most. Who has to finish something first is not waited for."""
_CHECKED_AT_ONCE: Final = 200
"""Groups that are looked at in one turn, if none of them has anything to lose."""


class Explained(NamedTuple):
    group_type: str
    state: str
    protocol: str
    entries: list[Entry]


class GroupShard:
    """Implements `tidelog.coordinator.runtime_ports.Shard`."""

    __slots__ = (
        "_gone", "_migration", "_offset_requests", "_settings", "_to_check", "classic", "consumer", "history", "offsets", "timers",
    )  # fmt: skip

    def __init__(self, settings: GroupSettings, rng: Rng, topics: Topics) -> None:
        self._settings = settings
        self.timers = Timers()
        self.history = GroupHistory()
        self.classic = ClassicGroups(settings, rng, self.timers, self.history)
        self.consumer = ConsumerGroups(settings, rng, self.timers, self.history, topics)
        self._migration = Migration(self.classic, self.consumer)
        self.offsets = Offsets(settings)
        self._offset_requests = OffsetRequests(self.classic, self.consumer, self.offsets, topics)
        self._to_check: list[str] = []
        self._gone: list[tuple[str, bytes]] = []

    # ---- the log

    def replay(self, record: CoordinatorRecord, producer_id: int = NO_PRODUCER_ID) -> None:
        key, value = record
        if type(key) is types.OffsetCommitKey:
            self.offsets.replay_commit(key, value, producer_id)
        elif type(key) is types.GroupMetadataKey:
            self.classic.replay_group(key, value)
        else:
            ours = self.consumer.replay(record)
            assert ours, f"nobody replays {type(key).__name__}"

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        self.offsets.replay_end_transaction(producer_id, committed)

    def loaded(self, now: Now) -> Outcome:
        self._plan_expiry(now)
        out = self.classic.loaded(now).add(self.consumer.loaded(now))
        self._migration.loaded(now)
        return out

    def persistent_state(self) -> dict[str, Any]:
        """What the log holds of this shard, as plain data."""
        return {
            "classic": self.classic.persistent_state(),
            "consumer": self.consumer.persistent_state(),
            "offsets": self.offsets.persistent_state(),
        }

    def topics_changed(self, deleted: Iterable[tuple[str, bytes]], now: Now) -> Outcome:
        """The cluster's topics are others now. What was committed for those that are gone goes with them."""
        self._gone += deleted
        return self.consumer.topics_changed(now).add(self._remove_gone(now))

    def _remove_gone(self, now: Now) -> Outcome:
        """Some in each turn. Looked for anew each time: what is committed meanwhile to a new topic of the name stays."""
        while self._gone:
            found = self.offsets.topic_deleted(*self._gone[-1])
            if found:
                self.timers.schedule(_GONE, now.ms, self._remove_gone)
                return Outcome(_fitting(found), on_failed=self._remove_gone_later)
            self._gone.pop()
        return Outcome()

    def _remove_gone_later(self, _code: ErrorCode, now: Now) -> Outcome:
        self.timers.schedule(_GONE, now.ms + _AGAIN_MS, self._remove_gone)
        return Outcome()

    # ---- classic members

    def join_group(self, request: JoinGroupRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        group_id = request.group_id
        if group_id not in self.consumer:
            return self.classic.join(request, client, waiter, now)
        if not self.consumer.is_empty(group_id):
            return self._migration.join(request, client, waiter, now)
        # A consumer group without members has nothing that a classic one would miss, but for its offsets, which stay.
        out = self.classic.join(request, client, waiter, now)
        out.records[:0] = self.consumer.tombstone(group_id)
        return out

    def _serving(self, group_id: str) -> ClassicGroups | Migration:
        """Who serves members of the group that speak the classic protocol."""
        return self._migration if group_id in self.consumer else self.classic

    def sync_group(self, request: SyncGroupRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        return self._serving(request.group_id).sync(request, client, waiter, now)

    def heartbeat(self, request: HeartbeatRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        return self._serving(request.group_id).heartbeat(request, client, waiter, now)

    def heartbeat_patience_ms(self, request: HeartbeatRequest) -> int:
        """For how long "all is well" may be kept from this member, by who heeds `classic.when_disturbed`. 0: it is not so any more, or nobody
        would be told when it ends. A third of the session timeout is how often a member should send heartbeats.
        """
        group = self.classic.get(request.group_id)
        if (
            group is None
            or group.state is State.PREPARING_REBALANCE
            or group.generation != request.generation_id
        ):
            return 0
        member = group.members.get(request.member_id)
        return 0 if member is None else member.session_timeout_ms // 3

    def sync_patience_ms(self, request: SyncGroupRequest, *, newcomers_too: bool) -> int:
        """For how long an assignment that changes nothing for this member may be kept from it: until those who have to give up partitions
        have joined again. Then it hears of that instead, and joins as well. 0: it is to have its assignment now. A newcomer owns nothing yet
        and gets nothing yet.
        """
        group = self.classic.get(request.group_id)
        if group is None or group.generation != request.generation_id or not follow_up.is_expected(group):
            return 0
        member = group.members.get(request.member_id)
        if member is None or not follow_up.changes_nothing_for(group, member, newcomers_too=newcomers_too):
            return 0
        return min(_FOLLOW_UP_MS, member.session_timeout_ms // 3)

    def leave_group(self, request: LeaveGroupRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        return self._serving(request.group_id).leave(request, client, waiter, now)

    # ---- consumer members

    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, waiter: Waiter, now: Now
    ) -> Outcome:
        group_id = request.group_id
        if group_id not in self.classic:
            return self.consumer.heartbeat(request, client, waiter, now)
        if not self.classic.is_empty(group_id):
            return self._migration.consumer_group_heartbeat(request, client, waiter, now)
        out = self.consumer.heartbeat(request, client, waiter, now)
        out.records[:0] = self.classic.tombstone(group_id)
        return out

    # ---- offsets

    def offset_commit(
        self, request: OffsetCommitRequest, client: Client, waiter: Waiter, now: Now
    ) -> Outcome:
        return self._offset_requests.commit(request, client, waiter, now)

    def offset_fetch(
        self, request: OffsetFetchRequestGroup, require_stable: bool, client: Client, waiter: Waiter, now: Now
    ) -> Outcome:
        return self._offset_requests.fetch(request, require_stable, client, waiter)

    def offset_delete(self, request: OffsetDeleteRequest, waiter: Waiter, now: Now) -> Outcome:
        return self._offset_requests.delete(request, waiter)

    # ---- groups as a whole

    def list_groups(self, states: frozenset[str], types_: frozenset[str]) -> list[ListedGroup]:
        """States and types in lower case; none: all."""
        return [
            group
            for group in self._listed()
            if (not states or group.group_state.lower() in states)
            and (not types_ or group.group_type.lower() in types_)
        ]

    def _listed(self) -> Iterable[ListedGroup]:
        for group in self.classic:
            yield ListedGroup(group.group_id, group.protocol_type or "", group.state.value, CLASSIC)
        for group_id in self.consumer.group_ids():
            yield ListedGroup(group_id, "consumer", self.consumer.state_name(group_id), CONSUMER)
        for group_id in self.offsets.groups():
            if self._is_simple(group_id):
                yield ListedGroup(group_id, "", _EMPTY, CLASSIC)

    def _is_simple(self, group_id: str) -> bool:
        return group_id not in self.classic and group_id not in self.consumer

    def describe_group(self, group_id: str, client: Client, waiter: Waiter) -> Outcome:
        if group_id in self.consumer:
            return answered(waiter, described_as_missing(group_id, client.version))
        if group_id not in self.classic and self.offsets.has_any(group_id):
            return answered(waiter, DescribedGroup(group_id=group_id, group_state=_EMPTY))
        return answered(waiter, self.classic.describe(group_id, client.version))

    def describe_consumer_group(self, group_id: str, waiter: Waiter) -> Outcome:
        return answered(waiter, self.consumer.describe(group_id))

    def delete_group(self, group_id: str, waiter: Waiter, now: Now) -> Outcome:
        if group_id in self.consumer:
            if not self.consumer.is_empty(group_id):
                raise RequestError(
                    ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members: stop them first"
                )
            records = self.consumer.tombstone(group_id)
        elif group_id in self.classic or not self.offsets.has_any(group_id):
            self.classic.check_delete(group_id)
            records = self.classic.tombstone(group_id)
        else:
            records = []
        offsets = self.offsets.delete_all(group_id)
        some = _fitting(offsets)
        if len(some) < len(offsets):
            return self._delete_on(group_id, waiter, some, now)
        self.history.forget(group_id)
        return Outcome(offsets + records).answer(waiter, DeletableGroupResult(group_id=group_id))

    def _delete_on(self, group_id: str, waiter: Waiter, some: list[CoordinatorRecord], now: Now) -> Outcome:
        """Some of its offsets go now, the rest in the next turns, and the group with the last of them."""
        turn = (_DELETION, group_id, id(waiter))

        def go_on(later: Now) -> Outcome:
            try:
                out = self.delete_group(group_id, waiter, later)
            except RequestError as refused:  # somebody has joined meanwhile
                return answered(waiter, DeletableGroupResult(group_id, refused.code))
            out.on_failed = out.on_failed or failed
            return out

        def failed(code: ErrorCode, _now: Now) -> Outcome:
            self.timers.cancel(turn)
            return answered(waiter, DeletableGroupResult(group_id, code))

        self.timers.schedule(turn, now.ms, go_on)
        return Outcome(some, on_failed=failed)

    def explain(self, group_id: str) -> Explained | None:
        """What happened to the group lately; None: nothing is known of it. A group that is gone may still have a history."""
        entries = self.history.of(group_id)
        if group_id in self.consumer:
            return Explained(CONSUMER, self.consumer.state_name(group_id), "", entries)
        group = self.classic.get(group_id)
        if group is not None:
            return Explained(CLASSIC, group.state.value, group.protocol or "", entries)
        if self.offsets.has_any(group_id):
            return Explained(CLASSIC, _EMPTY, "", entries)
        return Explained(CLASSIC, self.classic.state_name(group_id), "", entries) if entries else None

    # ---- expiry

    def _plan_expiry(self, now: Now) -> None:
        self.timers.schedule(
            _EXPIRY, now.ms + self._settings.offsets_retention_check_interval_ms, self._begin_expiry
        )

    def _begin_expiry(self, now: Now) -> Outcome:
        classic = (group.group_id for group in self.classic)
        self._to_check = list(dict.fromkeys((*self.offsets.groups(), *classic, *self.consumer.group_ids())))
        return self._expire_some(now)

    def _expire_some(self, now: Now) -> Outcome:
        """Some groups in each turn. An empty group that has no offsets, or none left, goes as well."""
        out = Outcome()
        for _ in range(_CHECKED_AT_ONCE):
            if not self._to_check or out.records:
                break
            group_id = self._to_check.pop()
            records, is_all = self._expired(group_id, now)
            out.records = records
            if not is_all:
                self._to_check.append(group_id)
        if self._to_check:
            self.timers.schedule(_EXPIRY, now.ms, self._expire_some)
        else:
            self._plan_expiry(now)
        out.on_failed = self._expire_later
        return out

    def _expire_later(self, _code: ErrorCode, now: Now) -> Outcome:
        self._to_check = []
        self._plan_expiry(now)
        return Outcome()

    def _expired(self, group_id: str, now: Now) -> tuple[list[CoordinatorRecord], bool]:
        """What goes of a group, and whether that is all: the rest of a very large one has to wait for the next turn."""
        is_consumer = group_id in self.consumer
        is_empty = self._is_simple(group_id) or (
            self.consumer.is_empty(group_id) if is_consumer else self.classic.is_empty(group_id)
        )
        subscribed = (
            self.consumer.subscribed_topics(group_id)
            if is_consumer
            else self.classic.subscribed_topics(group_id)
        )
        expired = self.offsets.expired(
            group_id,
            now.wall_ms,
            subscribed_topics=subscribed,
            group_is_empty=is_empty,
            empty_since=None if is_consumer else self.classic.empty_since(group_id),
        )
        some = _fitting(expired)
        if len(some) < len(expired):
            return some, False
        if not is_empty or not self.offsets.leaves_nothing(group_id, expired):
            return expired, True
        tombstones = self.consumer.tombstone if is_consumer else self.classic.tombstone_if_empty
        return expired + tombstones(group_id), True


def _fitting(tombstones: list[CoordinatorRecord]) -> list[CoordinatorRecord]:
    """As many of these tombstones of offsets as one batch may hold."""
    size = 0
    for count, (key, _) in enumerate(tombstones):
        size += len(key.group) + len(key.topic) + _KEY_OVERHEAD
        if size > _TOGETHER and count:
            return tombstones[:count]
    return tombstones
