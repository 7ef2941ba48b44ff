"""Classic groups with a log in memory: what they write is encoded, stored, decoded and replayed, answers are delivered, and time passes when told.

`World` is the runtime and the clock. `Consumer` is a well-behaved member that remembers what it was told. Every answer is encoded in the version
that was asked in, so that one which no client could read fails the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from tidelog.coordinator.group import refusals
from tidelog.coordinator.group.classic.group import ClassicGroup
from tidelog.coordinator.group.classic.groups import ClassicGroups
from tidelog.coordinator.group.history import Event, GroupHistory
from tidelog.coordinator.group.record_serde import decode_record, encode_key, encode_value
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import CoordinatorRecord, Now, Outcome
from tidelog.coordinator.timers import Timers
from tidelog.errors import RequestError
from tidelog.wire.codec import encode
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

GROUP: Final = "orders"
SESSION_MS: Final = 10_000
REBALANCE_MS: Final = 60_000
DELAY_MS: Final = 3_000
WALL_MS: Final = 1_700_000_000_000
LATEST: Final = {"join": 9, "sync": 5, "heartbeat": 4, "leave": 5}


def subscription(*topics: str, version: int = 0) -> bytes:
    return version.to_bytes(2, "big") + encode(ConsumerProtocolSubscription(topics=list(topics)), version)


class Asked:
    """One request under way. Doubles as the waiter."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.response: Any = None

    @property
    def waits(self) -> bool:
        return self.response is None

    @property
    def error(self) -> ErrorCode:
        assert self.response is not None, "still waits"
        return ErrorCode(self.response.error_code)


class World:
    def __init__(self, settings: GroupSettings | None = None, log: Iterable[CoordinatorRecord] = ()) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=DELAY_MS)
        self.log: list[tuple[bytes, bytes | None]] = []
        for record in log:
            self._append(record)
        self.rng = random.Random(7)
        self.now = Now(1_000, WALL_MS)
        self.refuses_writes: ErrorCode | None = None
        self.holds_commits = False
        self._uncommitted: list[Outcome] = []
        self.restart()

    # ---- the runtime

    def restart(self) -> None:
        """The coordinator is lost, and with it whatever the log does not hold."""
        self._uncommitted.clear()
        self.timers = Timers()
        self.history = GroupHistory()
        self.groups = self._replay(self.timers, self.history)
        self.act(self.groups.loaded(self.now))

    def replayed(self) -> ClassicGroups:
        """A fresh instance with everything that was written."""
        return self._replay(Timers(), GroupHistory())

    def _replay(self, timers: Timers, history: GroupHistory) -> ClassicGroups:
        groups = ClassicGroups(self.settings, self.rng, timers, history)
        for stored in self.log:
            groups.replay_group(*_decoded(*stored))
        return groups

    def act(self, outcome: Outcome) -> None:
        if outcome.records and self.refuses_writes is not None:
            assert outcome.on_failed is not None, "what happens if this is not written?"
            outcome = outcome.on_failed(self.refuses_writes, self.now)
            assert not outcome.records
        for record in outcome.records:
            self._append(record)
            self.groups.replay_group(*_decoded(*self.log[-1]))
        self._uncommitted.append(outcome)
        if not self.holds_commits:
            self.commit()

    def commit(self) -> None:
        """Everything that was written is committed now, so answers leave."""
        for outcome in self._uncommitted:
            for waiter, response in outcome.answers:
                assert waiter.waits, f"answered twice: {waiter.response}, {response}"
                encode(response, waiter.version)
                waiter.response = response
        self._uncommitted.clear()

    def _append(self, record: CoordinatorRecord) -> None:
        self.log.append(
            (encode_key(record.key), None if record.value is None else encode_value(record.value))
        )

    def pass_time(self, ms: int) -> None:
        """Every deadline on the way is met at its own moment."""
        until_ms = self.now.ms + ms
        while (due_ms := self.timers.next_deadline_ms()) is not None and due_ms <= until_ms:
            self._at(max(due_ms, self.now.ms))
            for outcome in self.timers.expire(self.now):
                self.act(outcome)
        self._at(until_ms)

    def _at(self, ms: int) -> None:
        self.now = Now(ms, self.now.wall_ms + ms - self.now.ms)

    # ---- requests

    def join(
        self,
        member_id: str = "",
        *,
        group: str = GROUP,
        instance: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = LATEST["join"],
        client: str = "app",
        host: str = "10.0.0.1",
        reason: str | None = None,
    ) -> Asked:
        offered = {"range": subscription("t")} if protocols is None else protocols
        request = JoinGroupRequest(
            group_id=group,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name, metadata) for name, metadata in offered.items()],
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=-1 if version == 0 else rebalance_ms,
            reason=reason,
        )
        return self._ask(
            self.groups.join, request, Client(client, host, version), refusals.join_group(request)
        )

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = GROUP,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
        version: int = LATEST["sync"],
    ) -> Asked:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[SyncGroupRequestAssignment(*each) for each in (assignments or {}).items()],
        )
        return self._ask(self.groups.sync, request, Client("app", "h", version), refusals.sync_group)

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = GROUP, instance: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(group, generation, member_id, instance)
        client = Client("app", "h", LATEST["heartbeat"])
        return self._ask(self.groups.heartbeat, request, client, refusals.heartbeat).error

    def leave(self, *who: MemberIdentity, group: str = GROUP) -> Asked:
        request = LeaveGroupRequest(group, members=list(who))
        return self._ask(
            self.groups.leave, request, Client("app", "h", LATEST["leave"]), refusals.leave_group
        )

    def leave_alone(self, member_id: str, *, group: str = GROUP, version: int = 2) -> ErrorCode:
        request = LeaveGroupRequest(group, member_id)
        return self._ask(self.groups.leave, request, Client("app", "h", version), refusals.leave_group).error

    def _ask(
        self,
        handler: Callable[[Any, Client, Asked, Now], Outcome],
        request: Any,
        client: Client,
        refuse: Callable[[ErrorCode, str], Any],
    ) -> Asked:
        asked = Asked(client.version)
        try:
            self.act(handler(request, client, asked, self.now))
        except RequestError as error:
            self.act(Outcome().answer(asked, refuse(error.code, error.message)))
        return asked

    # ---- what there is to see

    def group(self, group_id: str = GROUP) -> ClassicGroup:
        found = self.groups.get(group_id)
        assert found is not None
        return found

    def state(self, group_id: str = GROUP) -> str:
        return self.groups.state_name(group_id)

    def written(self, group_id: str = GROUP) -> Any:
        """The value of the group's last record."""
        return self.group(group_id).written

    def events(self, *which: Event, group_id: str = GROUP) -> list[str]:
        """Details of what happened."""
        return [each.detail for each in self.history.of(group_id) if not which or each.event in which]


class Consumer:
    """Joins, remembers what it is told, and joins again with it."""

    def __init__(self, world: World, name: str, *, instance: str | None = None, **options: Any) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.options = options
        self.member_id = ""
        self.generation = -1
        self.asked: Asked | None = None

    def join(self, **changes: Any) -> Asked:
        """Held, or answered. A member id that is given out is used at once."""
        options = {"client": self.name, "instance": self.instance, **self.options, **changes}
        self.asked = self.world.join(self.member_id, **options)
        if not self.asked.waits and self.asked.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = self.asked.response.member_id
            self.asked = self.world.join(self.member_id, **options)
        return self.asked

    def learn(self) -> Any:
        """Read the answer to the last join."""
        assert self.asked is not None
        assert self.asked.error == ErrorCode.NONE, self.asked.error.name
        self.member_id = self.asked.response.member_id
        self.generation = self.asked.response.generation_id
        return self.asked.response

    @property
    def leads(self) -> bool:
        return self.world.group().leader == self.member_id

    def sync(self, assignments: dict[str, bytes] | None = None, **changes: Any) -> Asked:
        options = {"instance": self.instance, **changes}
        return self.world.sync(self.member_id, self.generation, assignments, **options)

    def heartbeat(self) -> ErrorCode:
        return self.world.heartbeat(self.member_id, self.generation, instance=self.instance)

    def leave(self, reason: str | None = None) -> ErrorCode:
        asked = self.world.leave(MemberIdentity(self.member_id, self.instance, reason))
        return ErrorCode(asked.response.members[0].error_code)


def joined(world: World, *consumers: Consumer) -> None:
    """All of them wait in a join; the first one's generation comes, and they read it."""
    for each in consumers:
        each.join()
    world.pass_time(2 * DELAY_MS)  # of those that come together, all but the first make it wait once more
    for each in consumers:
        each.learn()


def assigned(*consumers: Consumer) -> None:
    """Followers sync first, and wait for the leader."""
    followers = [each for each in consumers if not each.leads]
    (leader,) = (each for each in consumers if each.leads)
    protocol = leader.world.group().protocol
    waiting = [each.sync(protocol=protocol) for each in followers]
    plan = {each.member_id: f"to {each.name}".encode() for each in consumers}
    assert leader.sync(plan, protocol=protocol).error == ErrorCode.NONE
    assert [each.error for each in waiting] == [ErrorCode.NONE] * len(waiting)


def stable(world: World, *names: str, **options: Any) -> list[Consumer]:
    """A Stable group of consumers with these names."""
    consumers = [Consumer(world, name, **options) for name in names]
    joined(world, *consumers)
    assigned(*consumers)
    assert world.state() == "Stable"
    return consumers


def static(world: World, *names: str, **options: Any) -> list[Consumer]:
    """A Stable group of static members; the instance ids are the names."""
    consumers = [Consumer(world, name, instance=name, **options) for name in names]
    joined(world, *consumers)
    assigned(*consumers)
    return consumers


def _decoded(key: bytes, value: bytes | None) -> CoordinatorRecord:
    record = decode_record(key, value)
    assert record is not None
    return record
