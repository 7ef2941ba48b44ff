"""A whole shard with a log in memory, asked in both protocols: what it writes is encoded, stored, decoded and replayed; time passes when told.

Answers leave when the records are written, as the runtime lets them, and every answer is encoded in the version that was asked in, so that one
which no client could read fails the test. A write can be refused, and the coordinator can move: all that is not in the log is gone then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tests.coordinator.consumer.world import FakeTopics, compacted
from tidelog.coordinator.group import refusals
from tidelog.coordinator.group.classic.group import ClassicGroup
from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.record_serde import decode_record, encode_key, encode_value
from tidelog.coordinator.group.records import (
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
)
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.shard import GroupShard
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import CoordinatorRecord, Now, Outcome
from tidelog.errors import RequestError
from tidelog.wire.codec import encode
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

GROUP: Final = "orders-readers"
SESSION_MS: Final = 10_000
REBALANCE_MS: Final = 20_000
DELAY_MS: Final = 3_000

Refuse = Callable[[ErrorCode, str], Any]


class Asked:
    """One request under way. Doubles as the waiter."""

    def __init__(self, version: int, refuse: Refuse) -> None:
        self.version = version
        self.refuse = refuse
        self.response: Any = None

    @property
    def waits(self) -> bool:
        return self.response is None

    @property
    def error(self) -> ErrorCode:
        assert self.response is not None, "still waits"
        return ErrorCode(self.response.error_code)

    def answer(self, response: Any) -> None:
        assert self.waits, f"answered twice: {self.response}, {response}"
        if type(response).SCHEMA.versions is not None:  # else it is part of an answer
            encode(response, self.version)
        self.response = response


class World:
    def __init__(self, settings: GroupSettings | None = None, **topics: int) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=DELAY_MS)
        self.topics = FakeTopics()
        for name, partitions in topics.items():
            self.topics.create(name, partitions)
        self.rng = random.Random(7)
        self.now = Now(ms=1_000, wall_ms=1_700_000_000_000)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.written: list[CoordinatorRecord] = []
        """What the last outcome wrote."""
        self.refuses: ErrorCode | None = None
        """The next write fails with this."""
        self.waiting: list[Asked] = []
        self.fail_over()

    # ---- the runtime

    def fail_over(self) -> None:
        for asked in self.waiting:
            if asked.waits:
                asked.answer(asked.refuse(ErrorCode.NOT_COORDINATOR, ""))
        self.waiting = []
        self.shard = self._replayed(self.log)
        self.act(self.shard.loaded(self.now))

    def _replayed(self, log: Iterable[tuple[bytes, bytes | None]]) -> GroupShard:
        shard = GroupShard(self.settings, self.rng, self.topics)
        for key, value in log:
            record = decode_record(key, value)
            assert record is not None
            shard.replay(record)
        return shard

    def act(self, outcome: Outcome, *, asked: bool = False) -> None:
        if outcome.records and self.refuses is not None:
            refused, self.refuses = self.refuses, None
            if outcome.on_failed is not None:
                outcome = outcome.on_failed(refused, self.now)
                assert not outcome.records
            elif asked:
                for waiter, _ in outcome.answers:
                    waiter.answer(waiter.refuse(refused, ""))
                return
            else:
                self.fail_over()
                return
        if outcome.records:
            self.written = []
        for record in outcome.records:
            entry = encode_key(record.key), None if record.value is None else encode_value(record.value)
            self.log.append(entry)
            read = decode_record(*entry)
            assert read is not None
            self.shard.replay(read)
            self.written.append(read)
        for waiter, response in outcome.answers:
            waiter.answer(response)
        self.waiting = [each for each in self.waiting if each.waits]

    def ask(self, call: Callable[[Asked], Outcome], version: int, refuse: Refuse) -> Asked:
        asked = Asked(version, refuse)
        self.waiting.append(asked)
        try:
            outcome = call(asked)
        except RequestError as error:
            outcome = Outcome().answer(asked, refuse(error.code, error.message))
        self.act(outcome, asked=True)
        return asked

    def pass_time(self, ms: int) -> None:
        """Every deadline on the way is met at its own moment."""
        end_ms = self.now.ms + ms
        while (due_ms := self.shard.timers.next_deadline_ms()) is not None and due_ms <= end_ms:
            self._at(max(due_ms, self.now.ms))
            shard = self.shard
            for outcome in shard.timers.expire(self.now):
                self.act(outcome)
                if self.shard is not shard:
                    break
        self._at(end_ms)

    def _at(self, ms: int) -> None:
        self.now = Now(ms, self.now.wall_ms + ms - self.now.ms)

    # ---- the classic protocol

    def join(
        self,
        member_id: str = "",
        protocols: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 5,
        client: str = "app",
    ) -> Asked:
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(*each) for each in (protocols or {}).items()],
        )
        who = Client(client, "/10.0.0.1", version)
        return self.ask(
            lambda asked: self.shard.join_group(request, who, asked, self.now),
            version,
            refusals.join_group(request),
        )

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        version: int = 3,
        protocol: str | None = None,
    ) -> Asked:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer" if version >= 5 else None,
            protocol_name=protocol,
            assignments=[SyncGroupRequestAssignment(*each) for each in (assignments or {}).items()],
        )
        who = Client("app", "/10.0.0.1", version)
        return self.ask(
            lambda asked: self.shard.sync_group(request, who, asked, self.now), version, refusals.sync_group
        )

    def heartbeat(self, member_id: str, generation: int, *, instance: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(GROUP, generation, member_id, instance)
        who = Client("app", "/10.0.0.1", 3)
        return self.ask(
            lambda asked: self.shard.heartbeat(request, who, asked, self.now), 3, refusals.heartbeat
        ).error

    def leave(self, *who: MemberIdentity) -> Any:
        request = LeaveGroupRequest(GROUP, members=list(who))
        client = Client("app", "/10.0.0.1", 5)
        return self.ask(
            lambda asked: self.shard.leave_group(request, client, asked, self.now), 5, refusals.leave_group
        ).response

    def leave_alone(self, member_id: str) -> ErrorCode:
        """As librdkafka does it: version 1."""
        request = LeaveGroupRequest(GROUP, member_id)
        client = Client("app", "/10.0.0.1", 1)
        return self.ask(
            lambda asked: self.shard.leave_group(request, client, asked, self.now), 1, refusals.leave_group
        ).error

    # ---- the consumer protocol

    def send(self, request: ConsumerGroupHeartbeatRequest, client: Client) -> ConsumerGroupHeartbeatResponse:
        response = self.ask(
            lambda asked: self.shard.consumer_group_heartbeat(request, client, asked, self.now),
            client.version,
            refusals.consumer_group_heartbeat,
        ).response
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        topics: Iterable[str] | None = None,
        owned: Iterable[tuple[str, int]] | None = None,
        **fields: Any,
    ) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=None if topics is None else list(topics),
            topic_partitions=None if owned is None else self._listed(owned),
            **fields,
        )
        return self.send(request, Client("new-app", "/10.0.0.2", 1))

    def enter(self, member_id: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """Join with the consumer protocol."""
        return self.beat(member_id, 0, topics=topics, owned=(), rebalance_timeout_ms=REBALANCE_MS, **fields)

    def _listed(self, places: Iterable[tuple[str, int]]) -> list[TopicPartitions]:
        by_topic: dict[str, list[int]] = {}
        for name, partition in sorted(places):
            by_topic.setdefault(name, []).append(partition)
        return [
            TopicPartitions(topic_id=self.topics.ids[name], partitions=partitions)
            for name, partitions in by_topic.items()
        ]

    # ---- offsets

    def commit(
        self,
        member_id: str,
        generation: int,
        place: tuple[str, int],
        offset: int,
        *,
        version: int = 9,
    ) -> ErrorCode:
        name, partition = place
        topic = OffsetCommitRequestTopic(
            name=name,
            partitions=[OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)],
        )
        request = OffsetCommitRequest(GROUP, generation, member_id, topics=[topic])
        response = self.ask(
            lambda asked: self.shard.offset_commit(
                request, Client("app", "/10.0.0.1", version), asked, self.now
            ),
            version,
            refusals.offset_commit(request),
        ).response
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def committed(self, place: tuple[str, int]) -> int:
        name, partition = place
        request = OffsetFetchRequestGroup(
            GROUP, topics=[OffsetFetchRequestTopics(name=name, partition_indexes=[partition])]
        )
        outcome = self.shard.offset_fetch(request, False, Client("app", "", 9), object(), self.now)
        return int(outcome.answers[0].response.topics[0].partitions[0].committed_offset)

    # ---- topics

    def grow_topic(self, name: str, partitions: int) -> None:
        self.topics.grow(name, partitions)
        self.act(self.shard.topics_changed((), self.now))

    # ---- what there is to see

    @property
    def classic(self) -> ClassicGroup | None:
        return self.shard.classic.get(GROUP)

    @property
    def consumer(self) -> ConsumerGroup | None:
        return self.shard.consumer.get(GROUP)

    def members(self) -> set[str]:
        if self.consumer is not None:
            return set(self.consumer.members)
        return set() if self.classic is None else set(self.classic.members)

    def state(self) -> str:
        """Type and state, as ListGroups tells them."""
        for group in self.shard.list_groups(frozenset(), frozenset()):
            return f"{group.group_type} {group.group_state}"
        return "none"

    def events(self, *which: Event) -> list[str]:
        return [each.detail for each in self.shard.history.of(GROUP) if each.event in which]

    def wrote_a_move(self) -> bool:
        """Whether the last batch ends one kind of group and begins the other."""
        gone = {type(record.key): record.value is None for record in self.written}
        if not {GroupMetadataKey, ConsumerGroupMetadataKey} <= set(gone):
            return False
        return gone[GroupMetadataKey] != gone[ConsumerGroupMetadataKey]

    def assert_live_equals_replay(self) -> None:
        """I36, of the whole log and of the log after compaction."""
        live = self.shard.persistent_state()
        assert self._replayed(self.log).persistent_state() == live
        assert self._replayed(compacted(self.log)).persistent_state() == live
