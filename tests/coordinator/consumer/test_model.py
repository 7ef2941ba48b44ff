"""Consumers that are late, lose answers, retry, die, come back and change their minds, over topics that come, grow and go.

After every step: what is live is what a replay of the log gives (I36); no partition is owned by two members at the coordinator, nor by two
consumers that are in the group (I34); nobody was told to give up what is meant for it. And when the faults stop, every consumer has what
is meant for it within a bounded number of heartbeats (I38).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from tests.coordinator.consumer.clients import Consumer, Library, Network
from tests.coordinator.consumer.engine import use_engine
from tests.coordinator.consumer.world import GROUP, World
from tests.coordinator.mutants import VIOLATION, expect_caught
from tidelog.coordinator.group.consumer import heartbeat, reconciliation
from tidelog.coordinator.group.consumer.group import ConsumerGroup
from tidelog.coordinator.group.consumer.member import Member
from tidelog.coordinator.group.consumer.reconciliation import Goal

TOPICS = ("orders", "payments", "refunds", "visits")
PATTERNS = ("", "", "o.*|p.*", ".*s", "refunds", "nothing")
HEARTBEAT_MS = 5_000
ROUNDS_MAX = 30
"""Ten until the silent are gone, ten until the slow are, and some for what is left to hand over."""

subscriptions = st.tuples(st.frozensets(st.sampled_from(TOPICS), max_size=3), st.sampled_from(PATTERNS))
choices = st.integers(0, 1_000)


class GroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(orders=4, payments=3)
        self.consumers: list[Consumer] = []
        self.made = 0

    # ---- what consumers do

    def _pick(self, choice: int) -> Consumer | None:
        alive = [consumer for consumer in self.consumers if consumer.alive]
        return alive[choice % len(alive)] if alive else None

    def _make(
        self, library: Library, subscription: tuple[frozenset[str], str], instance_id: str | None
    ) -> Consumer:
        self.made += 1
        topics, pattern = subscription
        consumer = Consumer(
            self.world,
            f"member-{self.made:03}",
            library,
            instance_id=instance_id,
            topics=topics,
            pattern=pattern,
        )
        self.consumers.append(consumer)
        return consumer

    def _heartbeat(self, consumer: Consumer, network: Network = Network.DELIVERS) -> None:
        before = self._members().get(consumer.member_id)
        consumer.heartbeat(network)
        after = self._members().get(consumer.member_id)
        if before is not None and after is not None:
            self._check_nothing_is_taken_back(before, after)

    @precondition(lambda self: len([each for each in self.consumers if each.alive]) < 6)
    @rule(
        library=st.sampled_from(Library),
        subscription=subscriptions,
        instance=st.sampled_from([None, None, "one", "two"]),
        network=st.sampled_from(Network),
    )
    def a_consumer_starts(
        self,
        library: Library,
        subscription: tuple[frozenset[str], str],
        instance: str | None,
        network: Network,
    ) -> None:
        if instance is not None and any(
            each.alive and each.instance_id == instance for each in self.consumers
        ):
            return  # two processes with one instance id are a scenario of their own
        self._heartbeat(self._make(library, subscription, instance), network)

    @rule(choice=choices, network=st.sampled_from(Network))
    def a_heartbeat(self, choice: int, network: Network) -> None:
        consumer = self._pick(choice)
        if consumer is not None:
            self._heartbeat(consumer, network)

    @rule(choice=choices)
    def a_late_answer_comes(self, choice: int) -> None:
        consumer = self._pick(choice)
        if consumer is not None:
            consumer.receive_late()

    @rule(choice=choices)
    def a_consumer_acts_on_its_assignment(self, choice: int) -> None:
        consumer = self._pick(choice)
        if consumer is not None:
            consumer.act()

    @rule()
    def everybody_is_prompt(self) -> None:
        for consumer in self.consumers:
            consumer.act()
            if consumer.alive:
                self._heartbeat(consumer)

    @rule(choice=choices, subscription=subscriptions)
    def a_subscription_changes(self, choice: int, subscription: tuple[frozenset[str], str]) -> None:
        consumer = self._pick(choice)
        if consumer is not None:
            consumer.subscribe(*subscription)

    @rule(choice=choices)
    def a_consumer_dies(self, choice: int) -> None:
        consumer = self._pick(choice)
        if consumer is not None:
            consumer.alive = False

    @rule(choice=choices)
    def a_consumer_leaves(self, choice: int) -> None:
        consumer = self._pick(choice)
        if consumer is not None:
            consumer.leave()

    @rule(choice=choices)
    def a_static_consumer_restarts(self, choice: int) -> None:
        static = [each for each in self.consumers if each.alive and each.instance_id is not None]
        if static:
            old = static[choice % len(static)]
            old.leave(for_now=True)
            again = self._make(old.library, (old.topics, old.pattern), old.instance_id)
            self._heartbeat(again)

    # ---- what happens around them

    @rule(ms=st.sampled_from([1, 300, 1_000, 5_000, 12_000, 30_000]))
    def time_passes(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule(topic=st.sampled_from(TOPICS), partitions=st.integers(1, 5))
    def a_topic_comes_or_grows(self, topic: str, partitions: int) -> None:
        known = self.world.topics.partitions(topic)
        if known is None:
            self.world.create_topic(topic, partitions)
        elif partitions > known:
            self.world.grow_topic(topic, partitions)

    @rule(topic=st.sampled_from(TOPICS))
    def a_topic_goes(self, topic: str) -> None:
        if self.world.topics.partitions(topic) is not None:
            self.world.delete_topic(topic)

    @rule()
    def the_coordinator_moves(self) -> None:
        self.world.fail_over()
        self.world.expire_timers()

    @rule(fails=st.booleans())
    def the_log_refuses_or_accepts(self, fails: bool) -> None:
        self.world.append_fails = fails

    # ---- what must hold

    @invariant()
    def live_equals_replay(self) -> None:
        self.world.assert_live_equals_replay()

    @invariant()
    def no_partition_is_owned_twice(self) -> None:
        held: dict[tuple[bytes, int], str] = {}
        for member in self._members().values():
            for place in _places(member):
                assert place not in held, f"{place} is {held[place]}'s and {member.id}'s at the coordinator"
                held[place] = member.id
        read: dict[tuple[bytes, int], str] = {}
        for consumer in self._consumers_in_group():
            for place in sorted(consumer.owned):
                assert place not in read, f"{place} is read by {read[place]} and by {consumer.member_id}"
                read[place] = consumer.member_id
                assert held.get(place) == consumer.member_id, (
                    f"{consumer.member_id} reads {place}, which is {held.get(place)}'s at the coordinator"
                )

    def teardown(self) -> None:
        """The faults stop."""
        self.world.append_fails = False
        for _ in range(ROUNDS_MAX):
            for consumer in self.consumers:
                consumer.receive_late()
                consumer.act()
                if consumer.alive:
                    self._heartbeat(consumer)
                consumer.act()
                self.no_partition_is_owned_twice()
            self.world.pass_time(HEARTBEAT_MS)
            if self._has_converged():
                self.live_equals_replay()
                return
        raise AssertionError(f"not converged after {ROUNDS_MAX} heartbeats of everybody (I38)")

    def _has_converged(self) -> bool:
        group = self.world.groups.get(GROUP)
        alive = [consumer for consumer in self.consumers if consumer.alive]
        if group is None or not group.members:
            return not alive
        if self.world.state() != "Stable" or set(group.members) != {each.member_id for each in alive}:
            return False
        if not all(_has_its_target(group, each) for each in alive):
            return False
        read = [place for consumer in alive for place in consumer.owned]
        return len(read) == len(set(read)) and set(read) == self._wanted(alive)

    def _wanted(self, consumers: list[Consumer]) -> set[tuple[bytes, int]]:
        topics = self.world.topics
        return {
            (topics.ids[name], partition)
            for name, count in topics.counts.items()
            for partition in range(count)
            if any(
                name in each.topics or (each.pattern and re.fullmatch(each.pattern, name))
                for each in consumers
            )
        }

    def _members(self) -> dict[str, Member]:
        group = self.world.groups.get(GROUP)
        return {} if group is None else group.members

    def _consumers_in_group(self) -> Iterator[Consumer]:
        """A consumer that was taken out of the group and does not know it yet reads on, and its commits are refused."""
        for consumer in self.consumers:
            if consumer.alive and consumer.member_id in self._members():
                yield consumer

    def _check_nothing_is_taken_back(self, before: Member, after: Member) -> None:
        """Incremental: what a member had and is meant to have, it keeps."""
        group = self.world.group()
        for topic_id, partitions in before.assigned.items():
            name = self.world.topics.name_of(topic_id)
            matched = group.patterns.get(after.pattern)
            wants = name is not None and (
                name in after.topic_names or (matched is not None and name in matched.topics)
            )
            for partition in partitions:
                if wants and partition in group.target(after.id).get(topic_id, frozenset()):
                    assert partition in after.assigned.get(topic_id, {}), (
                        f"{after.id} lost {name}-{partition}, which is meant for it"
                    )


def _places(member: Member) -> list[tuple[bytes, int]]:
    return [
        (topic_id, partition)
        for held in (member.assigned, member.revoking)
        for topic_id, partitions in held.items()
        for partition in partitions
    ]


def _has_its_target(group: ConsumerGroup, consumer: Consumer) -> bool:
    target = group.target(consumer.member_id)
    meant = {(topic_id, partition) for topic_id, partitions in target.items() for partition in partitions}
    return consumer.owned == meant == set(_places(group.members[consumer.member_id]))


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    use_engine(monkeypatch)


TestGroupModel = pytest.mark.timeout(300)(GroupModel.TestCase)
TestGroupModel.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


# ---- mutants: the model must notice


def _hand_out_early(member: Member, goal: Goal, *, subscription_changed: bool) -> Member:
    """M31: whatever the target says is taken, whoever has it."""
    return reconciliation.reconcile(
        member,
        replace(goal, is_anothers=lambda _topic_id, _partition: False),
        subscription_changed=subscription_changed,
    )


def test_a_coordinator_that_hands_out_what_another_member_has_stops_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "reconcile", _hand_out_early)
    expect_caught(GroupModel)


def test_a_coordinator_that_hands_out_what_another_member_has_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put: Callable[..., None] = ConsumerGroup.put_member

    def put_blindly(self: ConsumerGroup, member: Member, **_: Any) -> None:
        put(self, member, exclusive=False)

    monkeypatch.setattr(heartbeat, "reconcile", _hand_out_early)
    monkeypatch.setattr(ConsumerGroup, "put_member", put_blindly)
    expect_caught(GroupModel)


def _play_a_slow_member() -> None:
    """The first is told to give two partitions up, and is still at work on them when the second asks for them."""
    model = GroupModel()
    first, second = (model._make(Library.LIBRDKAFKA, (frozenset({"orders"}), ""), None) for _ in range(2))
    for _ in range(4):
        model._heartbeat(first)
        first.act()
        model.world.pass_time(1_000)
    assert len(first.owned) == 4
    for _ in range(6):
        for consumer in (second, first, second):
            model._heartbeat(consumer)
            second.act()
            model.no_partition_is_owned_twice()
        model.world.pass_time(1_000)
    assert len(first.owned) == 4 and first.target is not None and not second.owned


def test_nobody_gets_what_a_slow_member_has() -> None:
    _play_a_slow_member()


def test_a_coordinator_that_takes_silence_for_a_confirmation_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M31 as it is easiest to write: the partition is free at the coordinator, and its old owner still reads it."""
    still_owns = reconciliation._still_owns

    def believes_silence(partitions: Any, goal: Goal) -> bool:
        return goal.owned is not None and still_owns(partitions, goal)

    monkeypatch.setattr(reconciliation, "_still_owns", believes_silence)
    with pytest.raises(AssertionError, match=VIOLATION):
        _play_a_slow_member()
