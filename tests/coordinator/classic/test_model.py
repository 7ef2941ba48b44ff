"""Any clients in any order, with writes that fail and coordinators that die: the books balance after every step, and nobody waits for ever.

The promises checked: what is live is what a replay of the log builds (I36); every request is answered once, or is held by exactly one member (I38);
a member has one assignment per generation, and only one that is in the log (I34).
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.coordinator.classic.world import DELAY_MS, REBALANCE_MS, SESSION_MS, Asked, World
from tidelog.coordinator.group.classic.group import ClassicGroup
from tidelog.coordinator.group.classic.state import State
from tidelog.coordinator.group.classic.stored import value_as_it_is
from tidelog.coordinator.group.records import GroupMetadataValue
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.leave_group import MemberIdentity

GROUPS = ("one", "two")
PROTOCOLS: tuple[dict[str, bytes], ...] = (
    {"range": b"1"},
    {"range": b"2"},
    {"range": b"1", "sticky": b"1"},
    {"sticky": b"1", "range": b"1"},
    {"sticky": b"2"},
)
FAILURES = (E.COORDINATOR_NOT_AVAILABLE, E.UNKNOWN_SERVER_ERROR)
TIMES = (0, 1, DELAY_MS - 1, DELAY_MS, SESSION_MS - 1, SESSION_MS, REBALANCE_MS - 1, REBALANCE_MS)
EVERYBODY_IS_GONE_MS = 20 * REBALANCE_MS


class Actor:
    """A client that does what it is told, in its own time."""

    def __init__(self, group: str, instance: str | None, version: int) -> None:
        self.group = group
        self.instance = instance
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.protocol: str | None = None
        self.protocols = PROTOCOLS[0]
        self.joins: list[Asked] = []

    def learn(self) -> None:
        """Read the answer to the latest join, if it is there."""
        if not self.joins or self.joins[-1].waits:
            return
        asked = self.joins.pop()
        if asked.error in (E.NONE, E.MEMBER_ID_REQUIRED):
            self.member_id = asked.response.member_id
        elif asked.error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID, E.GROUP_MAX_SIZE_REACHED):
            self.member_id = ""
        if asked.error == E.NONE:
            self.generation = asked.response.generation_id
            self.protocol = asked.response.protocol_name


class ClassicGroupsMachine(RuleBasedStateMachine):
    @initialize(
        max_size=st.sampled_from([2, 3, 2**31 - 1, 2**31 - 1]),
        delay_ms=st.sampled_from([0, DELAY_MS]),
        gather_ms=st.sampled_from([0, 50]),
    )
    def begin(self, max_size: int, delay_ms: int, gather_ms: int) -> None:
        self.world = World(
            GroupSettings(initial_rebalance_delay_ms=delay_ms, join_gather_ms=gather_ms, max_size=max_size)
        )
        self.actors: list[Actor] = []
        self.asked: list[Asked] = []
        self.syncs: list[tuple[Asked, str, str, int]] = []
        self.assignments: dict[tuple[str, str, int], bytes] = {}
        self.failed_writes = False

    def remember(self, asked: Asked) -> Asked:
        self.asked.append(asked)
        return asked

    def some(self, data: st.DataObject) -> Actor:
        actor: Actor = data.draw(st.sampled_from(self.actors))
        actor.learn()
        return actor

    # ---- clients

    @precondition(lambda self: len(self.actors) < 8)
    @rule(
        group=st.sampled_from(GROUPS),
        instance=st.sampled_from([None, None, "i-1", "i-2"]),
        version=st.sampled_from([0, 1, 3, 4, 5, 7, 9, 9]),
        protocols=st.sampled_from(PROTOCOLS),
    )
    def somebody_comes(
        self, group: str, instance: str | None, version: int, protocols: dict[str, bytes]
    ) -> None:
        actor = Actor(group, instance if version >= 5 else None, version)
        self.actors.append(actor)
        self.join(actor, protocols)

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), protocols=st.sampled_from([None, None, *PROTOCOLS]))
    def somebody_joins(self, data: st.DataObject, protocols: dict[str, bytes] | None) -> None:
        actor = self.some(data)
        self.join(actor, actor.protocols if protocols is None else protocols)

    def join(self, actor: Actor, protocols: dict[str, bytes]) -> None:
        actor.protocols = protocols
        asked = self.world.join(
            actor.member_id,
            group=actor.group,
            instance=actor.instance,
            protocols=protocols,
            version=actor.version,
        )
        actor.joins.append(self.remember(asked))

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), forgets=st.booleans())
    def somebody_syncs(self, data: st.DataObject, forgets: bool) -> None:
        self.sync(self.some(data), forgets)

    def sync(self, actor: Actor, forgets: bool) -> None:
        group = self.world.groups.get(actor.group)
        members = [] if group is None else sorted(group.members)[forgets:]
        count = len(self.asked)
        asked = self.world.sync(
            actor.member_id,
            actor.generation,
            {each: f"{count} {each}".encode() for each in members},
            group=actor.group,
            instance=actor.instance,
            protocol=actor.protocol or "range",
        )
        self.syncs.append((self.remember(asked), actor.group, actor.member_id, actor.generation))

    @precondition(lambda self: self.actors)
    @rule(data=st.data())
    def somebody_beats(self, data: st.DataObject) -> None:
        actor = self.some(data)
        self.world.heartbeat(actor.member_id, actor.generation, group=actor.group, instance=actor.instance)

    @rule()
    def everybody_beats(self) -> None:
        for actor in self.actors:
            actor.learn()
            self.world.heartbeat(
                actor.member_id, actor.generation, group=actor.group, instance=actor.instance
            )

    @rule()
    def everybody_joins(self) -> None:
        for actor in self.actors:
            actor.learn()
            self.join(actor, actor.protocols)

    @rule(late=st.booleans())
    def everybody_gets_on(self, late: bool) -> None:
        """What members do when nothing is in their way, all at the same time; one of them may be late for its assignment."""
        for _ in range(3):
            for actor in self.actors:
                actor.learn()
                if not actor.joins and actor.generation != self.generation_of(actor):
                    self.join(actor, actor.protocols)
            self.world.pass_time(2 * DELAY_MS)
        for actor in self.actors[late:]:
            actor.learn()
            self.sync(actor, forgets=False)

    def generation_of(self, actor: Actor) -> int:
        """Of the group, if this one is in it."""
        group = self.world.groups.get(actor.group)
        return group.generation if group is not None and actor.member_id in group.members else -2

    @precondition(lambda self: any(actor.instance for actor in self.actors))
    @rule(data=st.data(), in_peace=st.booleans(), protocols=st.sampled_from([None, None, *PROTOCOLS]))
    def a_static_member_is_restarted(
        self, data: st.DataObject, in_peace: bool, protocols: dict[str, bytes] | None
    ) -> None:
        """Its process before lives on for a while, and does not know."""
        if in_peace:
            self.everybody_gets_on(late=data.draw(st.booleans()))
        old = data.draw(st.sampled_from([actor for actor in self.actors if actor.instance]))
        new = Actor(old.group, old.instance, data.draw(st.sampled_from([5, 8, 9])))
        self.actors.append(new)
        self.join(new, old.protocols if protocols is None else protocols)
        if data.draw(st.booleans()):
            self.actors.remove(old)

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), by_instance=st.booleans())
    def somebody_leaves(self, data: st.DataObject, by_instance: bool) -> None:
        actor = self.some(data)
        member_id = "" if by_instance and actor.instance is not None else actor.member_id
        self.world.leave(MemberIdentity(member_id, actor.instance), group=actor.group)

    @precondition(lambda self: self.actors)
    @rule(data=st.data())
    def somebody_is_never_heard_of_again(self, data: st.DataObject) -> None:
        self.actors.remove(self.some(data))

    # ---- the world

    @rule(ms=st.sampled_from(TIMES))
    def time_passes(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule(turns=st.integers(1, 8))
    def time_passes_and_all_are_alive(self, turns: int) -> None:
        """Long enough for whoever does not join or sync to miss the rebalance, though its session lasts."""
        for _ in range(turns):
            self.everybody_beats()
            self.world.pass_time(SESSION_MS - 1)

    @rule(error=st.sampled_from([None, *FAILURES]))
    def writes_fail(self, error: E | None) -> None:
        self.world.refuses_writes = error
        self.failed_writes = self.failed_writes or error is not None

    @rule()
    def the_coordinator_dies(self) -> None:
        """Connections break with it, so nobody waits for an answer any more."""
        self.world.restart()
        self.asked.clear()
        self.syncs = [each for each in self.syncs if not each[0].waits]
        for actor in self.actors:
            actor.joins.clear()

    @precondition(lambda self: self.actors)
    @rule()
    def everybody_falls_silent(self) -> None:
        """Then nobody waits any more, nobody is a member, and no deadline is left."""
        self.world.pass_time(EVERYBODY_IS_GONE_MS)
        assert [each for each in self.asked if each.waits] == []
        assert {group.state for group in self.world.groups} <= {State.EMPTY}
        assert len(self.world.timers) == 0

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.everybody_falls_silent()

    # ---- what must be true after every step

    @invariant()
    def live_equals_replay(self) -> None:
        assert self.world.replayed().persistent_state() == self.world.groups.persistent_state()

    @invariant()
    def a_stable_group_is_what_the_log_says(self) -> None:
        for group in self.world.groups:
            assert group.written is not None
            if group.state is State.STABLE:
                assert _plain(value_as_it_is(group)) == _plain(group.written)
            elif group.state is State.EMPTY and not self.failed_writes:
                assert (group.generation, group.written.members) == (group.written.generation, [])
            assert group.on_written is None

    @invariant()
    def whoever_is_not_answered_is_held_by_one_member(self) -> None:
        held: list[Asked] = []
        for group in self.world.groups:
            for member in group.members.values():
                held += [each for each in (member.join_waiter, member.sync_waiter) if each is not None]
        waiting = [each for each in self.asked if each.waits]
        assert sorted(map(id, held)) == sorted(map(id, waiting))

    @invariant()
    def every_assignment_is_the_only_one_and_in_the_log(self) -> None:
        for asked, group_id, member_id, generation in self.syncs:
            if not asked.waits and asked.error == E.NONE:
                key = (group_id, member_id, generation)
                given = asked.response.assignment
                assert self.assignments.setdefault(key, given) == given
        self.syncs = [each for each in self.syncs if each[0].waits]

    @invariant()
    def the_books_balance(self) -> None:
        for group in self.world.groups:
            _check_books(group, self.world)


def _check_books(group: ClassicGroup, world: World) -> None:
    joins = [each for each in group.members.values() if each.join_waiter is not None]
    assert group.waiting_joins == len(joins)
    assert not joins or group.state is State.PREPARING_REBALANCE
    syncs = [each for each in group.members.values() if each.sync_waiter is not None]
    assert not syncs or group.state is State.COMPLETING_REBALANCE
    assert group.instances == {
        each.instance_id: each.member_id for each in group.members.values() if each.instance_id is not None
    }
    assert group.pending_syncs <= set(group.members)
    assert not group.pending_joins & set(group.members)
    assert (group.leader in group.members) if group.members else group.leader is None
    names = {name for each in group.members.values() for name, _ in each.protocols}
    assert group.common_protocols == sorted(
        name for name in names if all(name in dict(each.protocols) for each in group.members.values())
    )
    assert not group.members or group.common_protocols
    assert (group.state is State.EMPTY) <= (not group.members)
    # Whatever is waited for has an end.
    assert (("classic join", group.group_id) in world.timers) == (group.state is State.PREPARING_REBALANCE)
    assert (("classic sync", group.group_id) in world.timers) == bool(group.pending_syncs)
    assert group.state is not State.COMPLETING_REBALANCE or group.pending_syncs
    for member in group.members.values():
        watched = ("classic session", group.group_id, member.member_id) in world.timers
        assert watched or (member.waits and not member.is_new)
    for member_id in group.pending_joins:
        assert ("classic session", group.group_id, member_id) in world.timers


def _plain(value: GroupMetadataValue) -> Any:
    whole = (value.protocol_type, value.generation, value.protocol, value.leader)
    return whole, value.current_state_timestamp, {each.member_id: each for each in value.members}


TestClassicGroups = ClassicGroupsMachine.TestCase
TestClassicGroups.settings = settings(max_examples=120, stateful_step_count=50)
