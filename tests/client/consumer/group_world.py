"""Members of the client beside the broker's own coordinator, both without sockets: virtual time, questions and answers that are lost, late or repeated.

Each member polls now and then, does at once what it is told to, and may be stalled or killed. After every step nobody owns a partition that somebody else of the same
generation owns.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from tests.coordinator.migration.world import GROUP, Asked, World
from tidelog.client.consumer.classic_member import ClassicMember
from tidelog.client.consumer.consumer_member import ConsumerMember
from tidelog.client.consumer.member import Change, MemberSettings, Question
from tidelog.client.errors import RequestTimedOutError
from tidelog.client.metadata import TopicPartition
from tidelog.coordinator.group import refusals
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.world import Client
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest
from tidelog.wire.messages.leave_group import LeaveGroupRequest
from tidelog.wire.messages.sync_group import SyncGroupRequest

SESSION_MS = 10_000
MAX_POLL_MS = 20_000


class Consumer:
    """One member and what its application has in its hands."""

    def __init__(self, name: str, member: ClassicMember | ConsumerMember) -> None:
        self.name = name
        self.member = member
        self.is_alive = True
        self.stalled_until = 0.0
        self.holds: frozenset[TopicPartition] = frozenset()
        """As the application sees it: taken and not given up."""
        self.rebalances = 0


class GroupWorld:
    def __init__(self, seed: int, *, loss: float = 0.0, **topics: int) -> None:
        self.rng = Random(seed)
        self.loss = loss
        settings = GroupSettings(initial_rebalance_delay_ms=self.rng.choice([0, 500]))
        self.server = World(settings, **topics)
        self.partition_counts = dict(topics)
        self.consumers: list[Consumer] = []
        self._waiting: list[tuple[Consumer, Question, Asked]] = []
        self._late: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    @property
    def now(self) -> float:
        return self.server.now.ms / 1000

    def add(
        self, assignors: tuple[str, ...] | None, topics: frozenset[str], *, instance: str | None = None
    ) -> Consumer:
        name = f"c{len(self.consumers)}"
        settings = MemberSettings(
            group_id=GROUP,
            instance_id=instance,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=1_000,
            max_poll_interval_ms=MAX_POLL_MS,
        )
        member: ClassicMember | ConsumerMember
        if assignors is None:
            member = ConsumerMember(settings, f"member-{name}")
        else:
            member = ClassicMember(settings, assignors)
        member.polled(self.now)
        member.subscribe(topics, self.now)
        consumer = Consumer(name, member)
        self.consumers.append(consumer)
        return consumer

    # ---- time

    def pass_time(self, ms: int) -> None:
        """In small pieces; everybody who lives polls in each."""
        for _ in range(max(1, ms // 50)):
            self.server.pass_time(50)
            while self._late and self._late[0][0] <= self.now:
                heapq.heappop(self._late)[2]()
            self._collect()
            for consumer in self.consumers:
                if consumer.is_alive:
                    self._step(consumer)
            self.check()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._late, (self.now + seconds, self._number, call))

    def _step(self, consumer: Consumer) -> None:
        member, now = consumer.member, self.now
        is_polling = now >= consumer.stalled_until
        member.found_coordinator()
        if is_polling:
            member.polled(now)
            self._do_what_is_pending(consumer)
        if isinstance(member, ClassicMember) and member.topics_to_deal is not None:
            member.deal({topic: self.partition_counts.get(topic, 0) for topic in member.topics_to_deal})
        if isinstance(member, ConsumerMember) and member.unknown_ids:
            member.learn({self.server.topics.ids[name]: name for name in self.partition_counts}, now)
        for _ in range(3):
            question = member.next_request(now, is_polling=is_polling)
            if question is None:
                break
            self._ask(consumer, question)
        assert member.failure is None, member.failure

    def _do_what_is_pending(self, consumer: Consumer) -> None:
        member = consumer.member
        while (callback := member.pending) is not None:
            if callback.change is Change.TAKE:
                assert not callback.partitions & consumer.holds, "taken twice"
                consumer.holds |= callback.partitions
            else:
                assert callback.partitions <= consumer.holds, "given up what it had not"
                consumer.holds -= callback.partitions
            consumer.rebalances += 1
            member.done(self.now)
        assert member.owned >= consumer.holds

    # ---- the network

    def _ask(self, consumer: Consumer, question: Question) -> None:
        if self.rng.random() < self.loss:  # it never arrives
            self._later(0.5, lambda: self._unanswered(consumer, question))
            return
        self._waiting.append((consumer, question, self._deliver(question)))

    def _deliver(self, question: Question) -> Asked:
        message, shard, now = question.message, self.server.shard, self.server.now
        if isinstance(message, JoinGroupRequest):
            who = Client("app", "/10.0.0.1", 9)
            return self.server.ask(
                lambda a: shard.join_group(message, who, a, now), 9, refusals.join_group(message)
            )
        if isinstance(message, SyncGroupRequest):
            who = Client("app", "/10.0.0.1", 5)
            return self.server.ask(lambda a: shard.sync_group(message, who, a, now), 5, refusals.sync_group)
        if isinstance(message, HeartbeatRequest):
            who = Client("app", "/10.0.0.1", 4)
            return self.server.ask(lambda a: shard.heartbeat(message, who, a, now), 4, refusals.heartbeat)
        if isinstance(message, LeaveGroupRequest):
            who = Client("app", "/10.0.0.1", 5)
            return self.server.ask(lambda a: shard.leave_group(message, who, a, now), 5, refusals.leave_group)
        assert isinstance(message, ConsumerGroupHeartbeatRequest)
        who = Client("app", "/10.0.0.1", 1)
        return self.server.ask(
            lambda a: shard.consumer_group_heartbeat(message, who, a, now),
            1,
            refusals.consumer_group_heartbeat,
        )

    def _collect(self) -> None:
        still: list[tuple[Consumer, Question, Asked]] = []
        for consumer, question, asked in self._waiting:
            if asked.waits:
                still.append((consumer, question, asked))
                continue
            chance, response = self.rng.random(), asked.response
            if chance < self.loss:
                self._later(0.3, lambda c=consumer, q=question: self._unanswered(c, q))  # type: ignore[misc]
            elif chance < 2 * self.loss:  # late: the question was given up, the answer comes all the same
                self._unanswered(consumer, question)
                self._later(0.7, lambda c=consumer, q=question, r=response: self._answered(c, q, r))  # type: ignore[misc]
            else:
                self._answered(consumer, question, response)
                if chance > 1 - self.loss:
                    self._later(0.4, lambda c=consumer, q=question, r=response: self._answered(c, q, r))  # type: ignore[misc]
        self._waiting = still

    def _answered(self, consumer: Consumer, question: Question, response: Any) -> None:
        if consumer.is_alive:
            consumer.member.answered(question, response, self.now)

    def _unanswered(self, consumer: Consumer, question: Question) -> None:
        if consumer.is_alive:
            consumer.member.unanswered(question, RequestTimedOutError("no answer"), self.now)

    # ---- what must hold

    def check(self) -> None:
        """Nobody who is in the same generation, or is a member of the consumer protocol that the coordinator counts with, holds the same partition."""
        owners: dict[TopicPartition, Consumer] = {}
        for consumer in self.consumers:
            if not consumer.is_alive or not self._is_current(consumer):
                continue
            for tp in consumer.holds:
                other = owners.setdefault(tp, consumer)
                assert other is consumer, f"{tp} is held by {other.name} and {consumer.name} at {self.now}"

    def _is_current(self, consumer: Consumer) -> bool:
        member = consumer.member
        if isinstance(member, ConsumerMember):
            group = self.server.consumer
            return group is not None and member.member_id in group.members and member.generation > 0
        classic = self.server.classic
        return classic is not None and member.generation == classic.generation

    def assert_shared(self) -> None:
        """Everybody who lives is settled, and every partition is read by exactly one."""
        held = [tp for consumer in self.consumers if consumer.is_alive for tp in consumer.holds]
        wanted = [
            TopicPartition(topic, p) for topic, count in self.partition_counts.items() for p in range(count)
        ]
        assert sorted(held) == sorted(wanted)
        assert all(consumer.member.is_settled for consumer in self.consumers if consumer.is_alive)
