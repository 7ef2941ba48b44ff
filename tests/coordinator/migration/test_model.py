"""Consumers of both protocols in one group: they come, go, bounce from one protocol to the other, lose answers, die; the log refuses, the
coordinator moves, topics grow.

After every step: what is live is what a replay of the log gives, also of the compacted log (I36); an id is one kind of group; no partition is
owned by two members at the coordinator, nor read by two consumers that are in the group (I34); offsets are what was committed (I35). And when the
faults stop, every partition is read by one consumer within a bounded time, in a group of the right kind, and nobody waits any more (I38).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.coordinator.consumer.clients import Consumer, Library, Network
from tests.coordinator.migration.clients import (
    Classic,
    Kind,
    Member,
    assert_read_once,
    go_on,
    is_shared,
    reads,
)
from tests.coordinator.migration.clients import Phase as Stage
from tests.coordinator.migration.world import DELAY_MS, World
from tests.coordinator.mutants import expect_caught
from tidelog.coordinator.group.classic.group import ClassicGroup
from tidelog.coordinator.group.consumer.member import Member as Stored
from tidelog.coordinator.group.migration import conversion, embedded
from tidelog.coordinator.group.settings import GroupSettings, MigrationPolicy
from tidelog.wire.error_codes import ErrorCode

TOPICS = ("orders", "payments")
INSTANCES = ("i-1", "i-2")
MEMBERS_MAX = 5
SECONDS_MAX = 240
"""Until the silent are gone, the slow are, static members that died are, and what is left is divided up, in groups that change their kind meanwhile."""

choices = st.integers(0, 1_000)
instances = st.sampled_from([None, None, None, None, *INSTANCES])
wishes = st.sampled_from([("orders",), ("orders",), ("orders",), ("payments",), TOPICS])
networks = st.sampled_from([Network.DELIVERS] * 4 + [Network.LOSES_REQUEST, Network.LOSES_ANSWER])


class MigrationModel(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from([MigrationPolicy.BIDIRECTIONAL] * 3 + [MigrationPolicy.UPGRADE]),
        is_classic=st.sampled_from([True, True, False]),
        crew=st.lists(st.tuples(choices, wishes, instances), min_size=2, max_size=4),
        seconds=st.integers(0, 15),
    )
    def begin(
        self,
        policy: MigrationPolicy,
        is_classic: bool,
        crew: list[tuple[int, tuple[str, ...], str | None]],
        seconds: int,
    ) -> None:
        """Some are there already, and have had some time or none."""
        self.policy = policy
        self.world = World(
            GroupSettings(
                initial_rebalance_delay_ms=DELAY_MS,
                consumer_session_timeout_ms=12_000,
                consumer_migration_policy=policy,
            ),
            orders=4,
            payments=2,
        )
        self.members: list[Member] = []
        self.offsets: dict[tuple[str, int], int] = {}
        self.made = 0
        self.is_classic = is_classic
        for each in crew:
            self.somebody_comes(*each)
        self.all_is_well_for_a_while(seconds)

    # ---- who comes and goes

    def _pick(self, choice: int) -> Member | None:
        alive = [member for member in self.members if member.alive]
        return alive[choice % len(alive)] if alive else None

    def _instance_of(self, member: Member) -> str | None:
        return member.instance if isinstance(member, Classic) else member.instance_id

    def _start(self, choice: int, topics: tuple[str, ...], instance: str | None) -> Member:
        self.made += 1
        name = f"m{self.made}"
        member: Member
        if self.is_classic:
            kind = (Kind.COOPERATIVE, Kind.COOPERATIVE, Kind.EAGER)[choice % 3]
            member = Classic(self.world, name, *topics, kind=kind, instance=instance)
        else:
            member = Consumer(
                self.world,  # type: ignore[arg-type]
                name,
                list(Library)[choice % 2],
                instance_id=instance,
                topics=frozenset(topics),
            )
        self.members.append(member)
        self._step(member, Network.DELIVERS)
        return member

    @precondition(lambda self: sum(member.alive for member in self.members) < MEMBERS_MAX)
    @rule(choice=choices, topics=wishes, instance=instances)
    def somebody_comes(self, choice: int, topics: tuple[str, ...], instance: str | None) -> None:
        if instance in {self._instance_of(member) for member in self.members if member.alive}:
            instance = None  # an instance id is one process's
        self._start(choice, topics, instance)

    @rule(choice=choices, in_order=st.booleans())
    def somebody_goes(self, choice: int, in_order: bool) -> None:
        member = self._pick(choice)
        if member is not None and in_order:
            member.leave()
        elif member is not None:
            member.alive = False

    @rule(
        bounces=st.lists(st.tuples(choices, st.booleans(), st.integers(0, 4)), min_size=1, max_size=5),
    )
    def a_deployment_rolls(self, bounces: list[tuple[int, bool, int]]) -> None:
        """From now on processes are started with the other protocol; some or all of those that run are started anew."""
        self.is_classic = not self.is_classic
        for choice, in_order, seconds in bounces:
            self.somebody_bounces(choice, in_order)
            self.no_partition_is_owned_twice()
            self.all_is_well_for_a_while(seconds)

    @rule(choice=choices, in_order=st.booleans())
    def somebody_bounces(self, choice: int, in_order: bool) -> None:
        """The process is started anew, under its instance id if it has one. Those come first that are behind the fashion."""
        behind = [
            member
            for member in self.members
            if member.alive and isinstance(member, Classic) is not self.is_classic
        ]
        member = behind[choice % len(behind)] if behind else self._pick(choice)
        if member is None:
            return
        instance = self._instance_of(member)
        if in_order and isinstance(member, Consumer):
            member.leave(for_now=instance is not None)
        elif in_order:
            member.leave()
        member.alive = False
        self._start(choice, tuple(sorted(member.topics)), instance)

    # ---- what they do

    def _step(self, member: Member, network: Network) -> None:
        if isinstance(member, Classic):
            member.step(network)
        else:
            member.act()
            member.heartbeat(network)
            if network is Network.DELIVERS:
                member.act()

    @rule(choice=choices, networks=st.lists(networks, min_size=1, max_size=3))
    def somebody_goes_on(self, choice: int, networks: list[Network]) -> None:
        member = self._pick(choice)
        for network in networks:
            if member is not None:
                self._step(member, network)

    @rule()
    def everybody_takes_a_step(self) -> None:
        for member in self.members:
            self._step(member, Network.DELIVERS)
            self.no_partition_is_owned_twice()

    @rule(seconds=st.integers(1, 8))
    def all_is_well_for_a_while(self, seconds: int) -> None:
        for _ in range(seconds):
            for member in self.members:
                go_on(member)
                self.no_partition_is_owned_twice()
            self.world.pass_time(1_000)
            self.no_partition_is_owned_twice()

    @rule(choice=choices)
    def somebody_joins_again(self, choice: int) -> None:
        """As classic members do when they see fit: to the coordinator it comes out of the blue."""
        member = self._pick(choice)
        if isinstance(member, Classic):
            member.phase, member.asked = Stage.OUT, None
            member.step()

    @rule()
    def all_classic_members_join_again(self) -> None:
        """And nobody asks for an assignment yet."""
        for member in self.members:
            if isinstance(member, Classic) and member.alive and member.asked is None:
                member.join()
        for member in self.members:
            if isinstance(member, Classic) and member.alive:
                member.read()

    @rule(choice=choices, topics=wishes)
    def a_subscription_changes(self, choice: int, topics: tuple[str, ...]) -> None:
        member = self._pick(choice)
        if isinstance(member, Classic):
            member.topics = frozenset(topics)
            member.phase, member.asked = Stage.OUT, None
        elif member is not None:
            member.subscribe(frozenset(topics))

    @rule(choice=choices, offset=st.integers(0, 1_000))
    def somebody_commits(self, choice: int, offset: int) -> None:
        member = self._pick(choice)
        if member is None:
            return
        generation = member.generation if isinstance(member, Classic) else member.epoch
        for place in reads(self.world, member):
            if self.world.commit(member.member_id, generation, place, offset) == ErrorCode.NONE:
                self.offsets[place] = offset

    # ---- what happens around them

    @rule(ms=st.sampled_from([1, 300, 1_000, 1_000, 3_000, 3_000, 6_000, 11_000]))
    def time_passes(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule(topic=st.sampled_from(TOPICS), partitions=st.integers(3, 6))
    def a_topic_grows(self, topic: str, partitions: int) -> None:
        if partitions > (self.world.topics.partitions(topic) or 0):
            self.world.grow_topic(topic, partitions)

    @rule()
    def the_coordinator_moves(self) -> None:
        self.world.fail_over()

    @rule()
    def the_log_refuses_a_write(self) -> None:
        self.world.refuses = ErrorCode.NOT_COORDINATOR

    # ---- what must hold

    @invariant()
    def live_equals_replay(self) -> None:
        self.world.assert_live_equals_replay()

    @invariant()
    def a_group_is_of_one_kind(self) -> None:
        assert self.world.classic is None or self.world.consumer is None

    @invariant()
    def no_partition_is_owned_twice(self) -> None:
        group = self.world.consumer
        if group is not None:
            held: dict[tuple[bytes, int], str] = {}
            for stored in group.members.values():
                for place in _places(stored):
                    assert place not in held, (
                        f"{place} is {held[place]}'s and {stored.id}'s at the coordinator"
                    )
                    held[place] = stored.id
        assert_read_once(self.world, *self.members)

    @invariant()
    def offsets_are_what_was_committed(self) -> None:
        assert {place: self.world.committed(place) for place in self.offsets} == self.offsets

    def teardown(self) -> None:
        """The faults stop."""
        if not hasattr(self, "world"):
            return
        self.world.refuses = None
        for _ in range(SECONDS_MAX):
            self.all_is_well_for_a_while(1)
            if self._has_converged():
                self.live_equals_replay()
                self.offsets_are_what_was_committed()
                return
        said = [
            (member.member_id, sorted(reads(self.world, member))) for member in self.members if member.alive
        ]
        raise AssertionError(f"not converged after {SECONDS_MAX} seconds, {self.world.state()}: {said} (I38)")

    def _has_converged(self) -> bool:
        alive = [member for member in self.members if member.alive]
        if not is_shared(self.world, *alive) or not alive:
            return not alive and not self.world.members()
        if any(isinstance(member, Classic) and member.phase is not Stage.IN for member in alive):
            return False
        if any(asked.waits for asked in self.world.waiting):
            return False
        expected = {self.world.state()}
        if any(isinstance(member, Consumer) for member in alive):
            expected = {"consumer Stable"}
        elif self.policy.downgrades:
            expected = {"classic Stable"}
        return self.world.state() in expected and self.world.state().endswith("Stable")


def _places(member: Stored) -> list[tuple[bytes, int]]:
    return [
        (topic_id, partition)
        for held in (member.assigned, member.revoking)
        for topic_id, partitions in held.items()
        for partition in partitions
    ]


SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
TestMigrationModel = pytest.mark.timeout(600)(MigrationModel.TestCase)
TestMigrationModel.settings = SETTINGS


# ---- mutants: the model must notice


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_conversion_that_believes_a_wiped_assignment_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka's does."""

    def live(_group: ClassicGroup, member: Any) -> bytes:
        return bytes(member.assignment)

    monkeypatch.setattr(conversion, "_last_assignment", live)
    monkeypatch.setattr(conversion, "_held", lambda _group, assigned, _claims, _topics: assigned)
    expect_caught(MigrationModel)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_join_that_takes_a_cooperative_member_for_an_eager_one_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = embedded.read_subscription

    def without_owned(protocols: Any) -> embedded.Subscription:
        return read(protocols)._replace(owned={})

    monkeypatch.setattr(embedded, "read_subscription", without_owned)
    expect_caught(MigrationModel)
