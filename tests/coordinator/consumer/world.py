"""The world of a consumer group in a test: topics that come and grow, a log, a clock, and a runtime that writes and replays.

Records pass through their bytes, so that what is replayed is what a log would have given back.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.groups import ConsumerGroups
from tidelog.coordinator.group.consumer.member import Member
from tidelog.coordinator.group.history import Event, GroupHistory
from tidelog.coordinator.group.record_serde import decode_record, encode_key, encode_value
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import CoordinatorRecord, Now, Outcome
from tidelog.coordinator.timers import Timers
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

GROUP = "orders-readers"
Places = frozenset[tuple[str, int]]
"""Partitions by the name of their topic."""


class FakeTopics:
    """Topics by name; their ids are drawn from a counter, so that one which is made again is another."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.ids: dict[str, bytes] = {}
        self.configs: dict[str, dict[str, int]] = {}
        self.offset = 10
        self._made = 0

    def create(self, name: str, partitions: int) -> None:
        self._made += 1
        self.offset += 1
        self.counts[name] = partitions
        self.ids[name] = self._made.to_bytes(16, "big")

    def grow(self, name: str, partitions: int) -> None:
        self.offset += 1
        self.counts[name] = partitions

    def delete(self, name: str) -> None:
        self.offset += 1
        del self.counts[name]
        del self.ids[name]

    def names(self) -> Collection[str]:
        return list(self.counts)

    def partitions(self, name: str) -> int | None:
        return self.counts.get(name)

    def id_of(self, name: str) -> bytes | None:
        return self.ids.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, known in self.ids.items() if known == topic_id), None)

    def group_config(self, group_id: str) -> Mapping[str, int]:
        return self.configs.get(group_id, {})


class World:
    """The runtime: it writes what a handler returns, replays it at once, and only then lets the answers out."""

    def __init__(self, settings: GroupSettings | None = None, **topics: int) -> None:
        self.settings = settings or GroupSettings()
        self.topics = FakeTopics()
        for name, partitions in topics.items():
            self.topics.create(name, partitions)
        self.rng = random.Random(7)
        self.history = GroupHistory()
        self.now = Now(ms=1_000, wall_ms=1_700_000_000_000)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.written: list[CoordinatorRecord] = []
        """What the last outcome wrote."""
        self.append_fails = False
        self.fail_over()

    def fail_over(self) -> None:
        """Another broker leads the partition: all that is not in the log is gone."""
        self.timers = Timers()
        self.groups = ConsumerGroups(self.settings, self.rng, self.timers, self.history, self.topics)
        replay_into(self.groups, self.log)
        self.run(self.groups.loaded(self.now))

    # ---- what happens

    def heartbeat(
        self, member_id: str = "", epoch: int = 0, *, version: int = 1, group_id: str = GROUP, **fields: Any
    ) -> ConsumerGroupHeartbeatResponse:
        """As the shard answers: a refusal becomes a response. `owned` is by topic name, or None for a heartbeat that does not say."""
        owned: Iterable[tuple[str, int]] | None = fields.pop("owned", None)
        topics: list[str] | None = fields.pop("topics", None)
        client = Client(fields.pop("client_id", "client"), fields.pop("host", "10.0.0.1"), version)
        request = ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=topics,
            topic_partitions=None if owned is None else self.listed(owned),
            **fields,
        )
        return self.send(request, client)

    def send(self, request: ConsumerGroupHeartbeatRequest, client: Client) -> ConsumerGroupHeartbeatResponse:
        waiter = object()
        self.written = []
        try:
            outcome = self.groups.heartbeat(request, client, waiter, self.now)
        except RequestError as refused:
            return ConsumerGroupHeartbeatResponse(error_code=refused.code, error_message=refused.message)
        error = self.run(outcome)
        if error is not None:
            return ConsumerGroupHeartbeatResponse(error_code=error)
        [answer] = outcome.answers
        assert answer.waiter is waiter
        assert isinstance(answer.response, ConsumerGroupHeartbeatResponse)
        return answer.response

    def join(
        self,
        member_id: str,
        *topics: str,
        pattern: str | None = None,
        timeout_ms: int = 60_000,
        **fields: Any,
    ) -> ConsumerGroupHeartbeatResponse:
        return self.heartbeat(
            member_id,
            0,
            topics=list(topics),
            subscribed_topic_regex=pattern,
            rebalance_timeout_ms=timeout_ms,
            owned=(),
            **fields,
        )

    def run(self, outcome: Outcome) -> ErrorCode | None:
        if outcome.records and self.append_fails:
            if outcome.on_failed is not None:
                assert not outcome.on_failed(ErrorCode.NOT_COORDINATOR, self.now).records
            return ErrorCode.NOT_COORDINATOR
        self.written = []
        for record in outcome.records:
            entry = encode_key(record.key), None if record.value is None else encode_value(record.value)
            self.log.append(entry)
            read = decode_record(*entry)
            assert read is not None
            assert self.groups.replay(read)
            self.written.append(read)
        return None

    def expire_timers(self) -> None:
        for outcome in self.timers.expire(self.now):
            self.run(outcome)

    def pass_time(self, ms: int) -> None:
        """Deadlines come up at their own moments."""
        end = self.now.ms + ms
        while (deadline := self.timers.next_deadline_ms()) is not None and deadline <= end:
            self._set_clock(max(deadline, self.now.ms))
            self.expire_timers()
        self._set_clock(end)

    def _set_clock(self, ms: int) -> None:
        self.now = Now(ms, self.now.wall_ms + ms - self.now.ms)

    def topics_changed(self) -> None:
        self.run(self.groups.topics_changed(self.now))

    def create_topic(self, name: str, partitions: int) -> None:
        self.topics.create(name, partitions)
        self.topics_changed()

    def grow_topic(self, name: str, partitions: int) -> None:
        self.topics.grow(name, partitions)
        self.topics_changed()

    def delete_topic(self, name: str) -> None:
        self.topics.delete(name)
        self.topics_changed()

    # ---- what is

    def group(self, group_id: str = GROUP) -> ConsumerGroup:
        found = self.groups.get(group_id)
        assert found is not None
        return found

    def member(self, member_id: str) -> Member:
        return self.group().members[member_id]

    def state(self) -> str:
        return self.groups.state_name(GROUP)

    def events(self) -> list[Event]:
        return [entry.event for entry in self.history.of(GROUP)]

    def listed(self, places: Iterable[tuple[str, int]]) -> list[TopicPartitions]:
        by_topic: dict[str, list[int]] = {}
        for name, partition in sorted(places):
            by_topic.setdefault(name, []).append(partition)
        return [
            TopicPartitions(topic_id=self.topics.ids[name], partitions=partitions)
            for name, partitions in by_topic.items()
        ]

    def told(self, response: ConsumerGroupHeartbeatResponse) -> Places | None:
        """The assignment in an answer, by name; None: the answer says nothing about it."""
        assert response.error_code == 0, response
        if response.assignment is None:
            return None
        return frozenset(
            (self.topics.name_of(topic.topic_id) or topic.topic_id.hex(), partition)
            for topic in response.assignment.topic_partitions
            for partition in topic.partitions
        )

    def target(self, member_id: str) -> Places:
        return frozenset(
            (self.topics.name_of(topic_id) or topic_id.hex(), partition)
            for topic_id, partitions in self.group().target(member_id).items()
            for partition in partitions
        )

    def assert_live_equals_replay(self) -> None:
        """I36, of the whole log and of the log after compaction."""
        live = self.groups.persistent_state()
        assert self._replayed(self.log) == live
        assert self._replayed(compacted(self.log)) == live

    def _replayed(self, log: list[tuple[bytes, bytes | None]]) -> dict[str, Any]:
        fresh = ConsumerGroups(self.settings, self.rng, Timers(), GroupHistory(), self.topics)
        replay_into(fresh, log)
        return fresh.persistent_state()


def replay_into(groups: ConsumerGroups, log: Iterable[tuple[bytes, bytes | None]]) -> None:
    for key, value in log:
        record = decode_record(key, value)
        assert record is not None
        assert groups.replay(record)


def compacted(log: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    """The last record of each key, where it stands; tombstones are gone."""
    last = {key: position for position, (key, _) in enumerate(log)}
    return [
        (key, value)
        for position, (key, value) in enumerate(log)
        if last[key] == position and value is not None
    ]
