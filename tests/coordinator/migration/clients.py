"""Consumers that speak the classic protocol, as their libraries behave: one request at a time, in a world that loses requests and answers.

An eager one gives up everything before it joins. A cooperative one reads on, says what it has, gives up what it is not assigned any more, and joins
again if that was anything. Whoever leads divides up the topics in runs, and holds back what somebody else still has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

from tests.coordinator.consumer.clients import Consumer, Network
from tests.coordinator.migration.world import REBALANCE_MS, SESSION_MS, Asked, World
from tidelog.wire.codec import decode, encode
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages import consumer_protocol_assignment as assignment_wire
from tidelog.wire.messages import consumer_protocol_subscription as subscription_wire
from tidelog.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from tidelog.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.leave_group import MemberIdentity

Places = frozenset[tuple[str, int]]
NOTHING: Final[Places] = frozenset()


class Kind(Enum):
    """How it rebalances, what it offers, and in which version it subscribes."""

    EAGER = ("range", "cooperative-sticky"), 0
    COOPERATIVE = ("cooperative-sticky",), 2

    @property
    def offers(self) -> tuple[str, ...]:
        return self.value[0]

    @property
    def version(self) -> int:
        return self.value[1]


class Phase(Enum):
    OUT = "must join"
    SYNCS = "has joined, and must ask for its assignment"
    IN = "reads"


class Classic:
    def __init__(
        self,
        world: World,
        name: str,
        *topics: str,
        kind: Kind = Kind.EAGER,
        instance: str | None = None,
        offers: Iterable[str] | None = None,
    ) -> None:
        self.world = world
        self.name = name
        self.topics = frozenset(topics)
        self.kind = kind
        self.instance = instance
        self.offers = tuple(kind.offers if offers is None else offers)
        self.member_id = ""
        self.generation = -1
        self.owned = NOTHING
        self.phase = Phase.OUT
        self.alive = True
        self.protocol: str | None = None
        self.leads = False
        self.others: list[Any] = []
        """What the leader was told of the members."""
        self.asked: Asked | None = None
        self._reads: Callable[[Asked], None] = self._read_join
        self.revoked: list[Places] = []
        """What it gave up because of an assignment, each time."""
        self.errors: list[E] = []
        self._planned: dict[str, int | None] = {}  # partitions of each topic when it last planned

    # ---- one step after the other

    def step(self, network: Network = Network.DELIVERS) -> None:
        """Read the answer that has come, if any, and do what is next. One that waits for an answer waits, unless it is lost."""
        if not self.alive:
            return
        self.read()
        if self.asked is not None:
            if network is Network.LOSES_ANSWER:
                self._lost()
            return
        if network is Network.LOSES_REQUEST:
            return
        if self.phase is Phase.IN and self.leads and self._planned != self._counts(self._planned):
            self.phase = Phase.OUT  # a topic has grown, which is the leader's to notice
        if self.phase is Phase.OUT:
            self.join()
        elif self.phase is Phase.SYNCS:
            self.sync()
        else:
            self.heartbeat(network)
        if network is Network.LOSES_ANSWER and self.asked is not None:
            self._lost()
        self.read()

    def _lost(self) -> None:
        """It never hears of the answer, and asks anew from the start."""
        self.asked = None
        self.phase = Phase.OUT

    def join(self) -> Asked:
        if self.kind is Kind.EAGER:
            self.owned = NOTHING
        self.asked = self.world.join(
            self.member_id,
            {name: self.subscription() for name in self.offers},
            instance=self.instance,
            client=self.name,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )
        self._reads = self._read_join
        return self.asked

    def sync(self) -> Asked:
        plan = self._plan() if self.leads else None
        self.asked = self.world.sync(self.member_id, self.generation, plan, instance=self.instance)
        self._reads = self._read_sync
        return self.asked

    def heartbeat(self, network: Network = Network.DELIVERS) -> E:
        error = self.world.heartbeat(self.member_id, self.generation, instance=self.instance)
        if network is Network.DELIVERS:
            self._on_error(error)
        return error

    def leave(self) -> None:
        """It gives up everything, says so, and does not wait for an answer. A static one says nothing: it may be back."""
        self.owned, self.alive = NOTHING, False
        if self.member_id and self.instance is None:
            self.world.leave_alone(self.member_id)

    def removed(self) -> Any:
        """As an administrator removes a member."""
        return self.world.leave(MemberIdentity(self.member_id, self.instance, "tests"))

    # ---- answers

    def read(self) -> None:
        if self.asked is not None and not self.asked.waits:
            asked, self.asked = self.asked, None
            self._reads(asked)

    def _read_join(self, asked: Asked) -> None:
        response = asked.response
        if asked.error == E.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        if asked.error != E.NONE:
            self._on_error(asked.error)
            return
        self.member_id, self.generation = response.member_id, response.generation_id
        self.protocol = response.protocol_name
        self.leads = response.leader == response.member_id
        self.others = response.members
        self.phase = Phase.SYNCS

    def _read_sync(self, asked: Asked) -> None:
        if asked.error != E.NONE:
            self._on_error(asked.error)
            return
        assigned = read_assignment(asked.response.assignment)
        gone = self.owned - assigned
        self.owned = assigned
        self.phase = Phase.IN
        if gone:
            self.revoked.append(gone)
            self.phase = Phase.OUT

    def _on_error(self, error: E) -> None:
        if error == E.NONE:
            return
        self.errors.append(error)
        self.phase = Phase.OUT
        if error == E.FENCED_INSTANCE_ID:
            self.owned, self.alive = NOTHING, False
        elif error == E.UNKNOWN_MEMBER_ID:
            self.owned, self.member_id, self.generation = NOTHING, "", -1
        elif error == E.ILLEGAL_GENERATION:
            self.owned, self.generation = NOTHING, -1

    # ---- the embedded protocol

    def subscription(self) -> bytes:
        return subscription(
            self.topics, version=self.kind.version, owned=self.owned, generation=self.generation
        )

    def _counts(self, topics: Iterable[str]) -> dict[str, int | None]:
        return {topic: self.world.topics.partitions(topic) for topic in topics}

    def _plan(self) -> dict[str, bytes]:
        """Runs of each topic, in the order of the members. What another one says it has is not given away before that one lets go."""
        read = {each.member_id: read_subscription(each.metadata) for each in self.others}
        claims = {place: who for who, (_, owned) in read.items() for place in owned}
        self._planned = self._counts({topic for topics, _ in read.values() for topic in topics})
        given: dict[str, set[tuple[str, int]]] = {who: set() for who in read}
        for topic in {topic for topics, _ in read.values() for topic in topics}:
            interested = sorted(who for who, (topics, _) in read.items() if topic in topics)
            for partition in range(self.world.topics.partitions(topic) or 0):
                who = interested[partition * len(interested) // (self.world.topics.partitions(topic) or 1)]
                if claims.get((topic, partition), who) == who:
                    given[who].add((topic, partition))
        return {who: assignment(places) for who, places in given.items()}


def subscription(
    topics: Iterable[str],
    *,
    version: int = 0,
    owned: Iterable[tuple[str, int]] = (),
    generation: int = -1,
    user_data: bytes | None = None,
) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=[
            subscription_wire.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in _by_topic(owned).items()
        ]
        if version >= 1
        else [],
        generation_id=generation if version >= 2 else -1,
    )
    return version.to_bytes(2, "big") + encode(message, version)


def assignment(
    places: Iterable[tuple[str, int]], *, version: int = 0, user_data: bytes | None = None
) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            assignment_wire.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in _by_topic(places).items()
        ],
        user_data=user_data,
    )
    return version.to_bytes(2, "big") + encode(message, version)


def read_assignment(data: bytes) -> Places:
    if not data:
        return NOTHING
    version = int.from_bytes(data[:2], "big")
    read = decode(ConsumerProtocolAssignment, version, data[2:])
    return frozenset((each.topic, index) for each in read.assigned_partitions for index in each.partitions)


def read_subscription(data: bytes) -> tuple[frozenset[str], Places]:
    version = int.from_bytes(data[:2], "big")
    read = decode(ConsumerProtocolSubscription, version, data[2:])
    owned = frozenset((each.topic, index) for each in read.owned_partitions for index in each.partitions)
    return frozenset(read.topics), owned


def _by_topic(places: Iterable[tuple[str, int]]) -> Mapping[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


# ---- members of both protocols together

Member = Classic | Consumer


def go_on(member: Member) -> None:
    """What a member does by itself in a moment: some steps of one protocol, a heartbeat of the other."""
    if isinstance(member, Classic):
        for _ in range(4):
            member.step()
    else:
        member.act()
        member.heartbeat()
        member.act()


def reads(world: World, member: Member) -> Places:
    if isinstance(member, Classic):
        return member.owned
    return frozenset((world.topics.name_of(topic_id) or "", index) for topic_id, index in member.owned)


def settle(world: World, *members: Member, seconds: int = 60) -> None:
    """Everybody goes on, second by second, until every partition is read by one of them and nothing changes any more."""
    quiet = 0
    for _ in range(seconds):
        before = [reads(world, member) for member in members]
        for member in members:
            go_on(member)
            assert_read_once(world, *members)
        world.pass_time(1_000)
        same = before == [reads(world, member) for member in members]
        quiet = quiet + 1 if same and is_shared(world, *members) else 0
        if quiet == 4:
            world.assert_live_equals_replay()
            return
    said = [(member.member_id, sorted(reads(world, member))) for member in members]
    raise AssertionError(f"not settled, {world.state()}: {said}")


def assert_read_once(world: World, *members: Member) -> None:
    """I34, as the consumers see it. One that was taken out of the group reads on until it hears of it, and its commits are refused."""
    seen: dict[tuple[str, int], str] = {}
    for member in members:
        if not member.alive or member.member_id not in world.members() or _is_behind(world, member):
            continue
        for place in reads(world, member):
            assert place not in seen, f"{place} is read by {seen[place]} and by {member.member_id}"
            seen[place] = member.member_id


def _is_behind(world: World, member: Member) -> bool:
    """A static member keeps its place in a classic group without joining again: what it reads on is another generation's."""
    return (
        isinstance(member, Classic)
        and member.instance is not None
        and world.classic is not None
        and member.generation != world.classic.generation
    )


def is_shared(world: World, *members: Member) -> bool:
    """Every partition of every topic that somebody wants is read once."""
    alive = [member for member in members if member.alive]
    wanted = {
        (topic, index)
        for topic in {topic for member in alive for topic in member.topics}
        for index in range(world.topics.partitions(topic) or 0)
    }
    read = [place for member in alive for place in reads(world, member)]
    return (
        len(read) == len(set(read))
        and set(read) == wanted
        and world.members() == {member.member_id for member in alive}
    )
