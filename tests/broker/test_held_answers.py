"""Answers that wait for something to tell: what ends the wait, who is made to wait, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, code
from tests.broker.group_wire import (
    Consumer,
    Member,
    assignment,
    await_coordinators,
    commit_request,
    eventually,
    left,
    new_id,
    stable,
)
from tidelog.broker.connection import Connection
from tidelog.broker.held_answers import ASKED_AT_ONCE, HeldAnswers
from tidelog.broker.pending import Pending
from tidelog.coordinator.group import shard
from tidelog.wire.messages.api_versions import ApiVersionsRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity

LONG_MS = 15_000
"""Longer than any of these tests waits for an answer."""
AT_ONCE_SECONDS = 3.0
JAVA = ("apache-kafka-java", "4.3.1")
PYTHON = ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0")

ConnectAs = Callable[..., Wire]


@pytest.fixture
def broker(launch: Any) -> OwnBroker:
    broker: OwnBroker = launch(
        group_heartbeat_max_held_ms=LONG_MS,
        group_initial_rebalance_delay_ms=0,
        offsets_topic_num_partitions=3,
    )
    await_coordinators(broker.port)
    return broker


@pytest.fixture
def topic(broker: OwnBroker, name: str) -> Topic:
    with Wire(broker.port) as wire:
        return wire.create(name)


@pytest.fixture
def connect_as(broker: OwnBroker) -> Iterator[ConnectAs]:
    """A connection of a client that says what software it is."""
    wires: list[Wire] = []

    def connect(software: tuple[str, str] = JAVA) -> Wire:
        wires.append(Wire(broker.port))
        wires[-1].ask(
            ApiVersionsRequest(client_software_name=software[0], client_software_version=software[1])
        )
        return wires[-1]

    yield connect
    for wire in wires:
        wire.close()


def heartbeat_of(member: Member) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=member.group_id,
        generation_id=member.generation,
        member_id=member.id,
        group_instance_id=member.instance_id,
    )


def send_heartbeat(member: Member) -> None:
    member.wire.send(heartbeat_of(member))


def send_leave(member: Member) -> None:
    member.wire.send(
        LeaveGroupRequest(group_id=member.group_id, members=[MemberIdentity(member_id=member.id)])
    )


def waiting(connect: ConnectAs, **settings: Any) -> Member:
    """The only member of a group, with a heartbeat that is held back."""
    (member,) = stable(connect, new_id(), session_timeout_ms=60_000, **settings)
    send_heartbeat(member)
    assert member.wire.is_silent(), "it was not held back"
    return member


def answer(member: Member) -> str:
    return code(member.wire.receive(AT_ONCE_SECONDS))


# ---- what ends it


def test_a_rebalance_is_told_the_moment_it_begins(connect_as: ConnectAs) -> None:
    member = waiting(connect_as)
    other = Member(connect_as(), member.group_id)
    other.get_id()
    assert member.wire.is_silent(), "nothing has changed yet"
    other.send_join()
    assert answer(member) == "REBALANCE_IN_PROGRESS"
    member.send_join()
    assert [member.joined().generation_id, other.joined().generation_id] == [2, 2]


def test_every_member_is_told(connect_as: ConnectAs) -> None:
    members = stable(connect_as, new_id(), 5, session_timeout_ms=60_000)
    for member in members:
        send_heartbeat(member)
    assert all(member.wire.is_silent(0.05) for member in members)
    send_leave(members[4])
    assert [answer(members[4]), answer(members[4])] == ["NONE", "NONE"], "it was alive, and then it left"
    assert [answer(member) for member in members[:4]] == ["REBALANCE_IN_PROGRESS"] * 4


def hold_many(held: HeldAnswers, asked: list[Callable[[], None]]) -> None:
    nobody = cast("Connection", None)
    for number, ask_again in enumerate(asked):
        held.hold("group", f"member {number}", Pending(nobody), 60.0, lambda: None, ask_again)


def test_one_that_fails_keeps_nobody_else_waiting() -> None:
    told: list[int] = []
    failures: list[str] = []

    def tell(number: int) -> None:
        if number == 1:
            raise RuntimeError("a bug")
        told.append(number)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: failures.append(str(context["exception"])))
        held = HeldAnswers(loop)
        hold_many(held, [partial(tell, number) for number in range(4)])
        held.disturbed("group")
        await asyncio.sleep(0.01)
        assert len(held) == 0

    asyncio.run(scenario())
    assert (told, failures) == ([0, 2, 3], ["a bug"])


def test_a_large_group_is_told_in_turns() -> None:
    """Others are served in between."""
    told: list[int] = []
    seen: list[int] = []

    async def scenario() -> None:
        held = HeldAnswers(asyncio.get_running_loop())
        hold_many(held, [lambda: told.append(1)] * (5 * ASKED_AT_ONCE + 1))
        held.disturbed("group")
        while len(told) < 5 * ASKED_AT_ONCE + 1:
            await asyncio.sleep(0)
            seen.append(len(told))

    asyncio.run(scenario())
    assert seen == [*(ASKED_AT_ONCE * turn for turn in range(1, 6)), 5 * ASKED_AT_ONCE + 1]


def test_time(launch: Any) -> None:
    broker: OwnBroker = launch(
        group_heartbeat_max_held_ms=400,
        group_initial_rebalance_delay_ms=0,
        offsets_topic_num_partitions=3,
    )
    await_coordinators(broker.port)
    with Wire(broker.port) as wire:
        wire.ask(ApiVersionsRequest(client_software_name=JAVA[0], client_software_version=JAVA[1]))
        (member,) = stable(lambda: wire, new_id())
        for _ in range(3):
            began = time.monotonic()
            assert member.heartbeat() == "NONE"
            assert 0.35 < time.monotonic() - began < AT_ONCE_SECONDS


def test_a_third_of_the_session(connect_as: ConnectAs) -> None:
    (member,) = stable(connect_as, new_id(), session_timeout_ms=6000)
    began = time.monotonic()
    assert member.heartbeat() == "NONE"
    assert 1.9 < time.monotonic() - began < 2 + AT_ONCE_SECONDS


def test_the_clients_next_request(connect_as: ConnectAs, topic: Topic) -> None:
    """Answers keep their order, so that a commit would wait for the heartbeat before it."""
    member = waiting(connect_as)
    member.wire.send(
        commit_request(member.group_id, (topic, 0, 7), member_id=member.id, epoch=member.generation)
    )
    assert answer(member) == "NONE"
    assert member.wire.receive(AT_ONCE_SECONDS).topics[0].partitions[0].error_code == 0


def test_a_request_that_came_before_it_could_wait(connect_as: ConnectAs, topic: Topic) -> None:
    """A heartbeat behind a commit is judged when that is on the disk; the client may have sent more by then."""
    (member,) = stable(connect_as, new_id(), session_timeout_ms=60_000)
    commits = [
        commit_request(member.group_id, (topic, 0, offset), member_id=member.id, epoch=member.generation)
        for offset in (7, 8)
    ]
    member.wire.send_together(commits[0], heartbeat_of(member), commits[1])
    answers = [member.wire.receive(AT_ONCE_SECONDS) for _ in range(3)]
    assert answers[1].error_code == 0
    assert [answers[each].topics[0].partitions[0].error_code for each in (0, 2)] == [0, 0]


def test_the_clients_next_heartbeat_waits_instead(connect_as: ConnectAs) -> None:
    member = waiting(connect_as)
    send_heartbeat(member)
    assert answer(member) == "NONE"
    assert member.wire.is_silent()
    assert left(connect_as(), member.group_id, (member.id, None)) == ("NONE",)
    assert answer(member) == "UNKNOWN_MEMBER_ID"


def test_another_process_with_its_instance_id(connect_as: ConnectAs) -> None:
    member = waiting(connect_as, instance_id="till-1")
    other = Member(connect_as(), member.group_id, instance_id="till-1")
    assert other.join().generation_id == member.generation, "nothing changes for anybody else"
    assert answer(member) == "FENCED_INSTANCE_ID"


def test_a_group_that_moves_to_the_consumer_protocol(connect_as: ConnectAs, topic: Topic) -> None:
    member = Member(connect_as(), new_id(), topics=(topic.name,), session_timeout_ms=60_000)
    member.join()
    member.sync({member.id: assignment(topic.name, 0)})
    send_heartbeat(member)
    assert member.wire.is_silent()
    newcomer = Consumer(connect_as(), member.group_id, topic.name)
    newcomer.beat()
    assert answer(member) in ("NONE", "REBALANCE_IN_PROGRESS")
    eventually(lambda: member.heartbeat() == "REBALANCE_IN_PROGRESS", AT_ONCE_SECONDS)


def test_the_end_of_the_broker(connect_as: ConnectAs, broker: OwnBroker) -> None:
    member = waiting(connect_as)
    began = time.monotonic()
    broker.stop()
    assert time.monotonic() - began < LONG_MS / 1000 / 2
    with contextlib.suppress(EOFError, ConnectionError):  # or the connection went first
        assert answer(member) == "NOT_COORDINATOR"


# ---- who is made to wait


@pytest.mark.parametrize("software", [JAVA, PYTHON, ("librdkafka", "2.8.0")])
def test_clients_that_go_on_meanwhile(connect_as: ConnectAs, software: tuple[str, str]) -> None:
    (member,) = stable(lambda: connect_as(software), new_id(), session_timeout_ms=60_000)
    send_heartbeat(member)
    assert member.wire.is_silent()


@pytest.mark.parametrize("software", [("kafkajs", "2.2.4"), ("sarama", "1.43"), ("unknown", "1")])
def test_others_are_answered_at_once(connect_as: ConnectAs, software: tuple[str, str]) -> None:
    (member,) = stable(lambda: connect_as(software), new_id(), session_timeout_ms=60_000)
    send_heartbeat(member)
    assert answer(member) == "NONE"


def test_who_says_nothing_about_itself_is_answered_at_once(broker: OwnBroker) -> None:
    with Wire(broker.port) as wire:
        (member,) = stable(lambda: wire, new_id(), session_timeout_ms=60_000)
        send_heartbeat(member)
        assert answer(member) == "NONE"


def test_who_gave_up_once_is_answered_at_once(connect_as: ConnectAs, broker: OwnBroker) -> None:
    """A client with a request timeout of two seconds would otherwise lose its connection with every heartbeat."""
    member = waiting(connect_as)
    member.wire.close()
    eventually(lambda: not len(broker.broker.groups._held), AT_ONCE_SECONDS)
    member.wire = connect_as()
    send_heartbeat(member)
    assert answer(member) == "NONE"


def test_errors_are_told_at_once(connect_as: ConnectAs) -> None:
    member = waiting(connect_as)
    member.generation += 1
    send_heartbeat(member)
    assert [answer(member), answer(member)] == ["NONE", "ILLEGAL_GENERATION"]


def test_it_is_a_sign_of_life_of_when_it_came(connect_as: ConnectAs, broker: OwnBroker) -> None:
    member = waiting(connect_as)
    groups = broker.broker.groups
    its_shard = groups._runtime.shard(groups.partition_of(member.group_id))
    (name,) = (name for name in its_shard.timers._deadlines if member.id in name)
    deadline = its_shard.timers.deadline_ms(name)
    time.sleep(0.3)
    other = Member(connect_as(), member.group_id)
    other.get_id()
    other.send_join()
    assert answer(member) == "REBALANCE_IN_PROGRESS"
    assert its_shard.timers.deadline_ms(name) == deadline


# ---- assignments that change nothing, while another rebalance is about to follow


def owning(topic: str, *partitions: int) -> bytes:
    """A subscription of version 1, with what its member owns."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    numbers = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    owned = struct.pack(">i", 1) + name + numbers if partitions else struct.pack(">i", 0)
    return struct.pack(">hi", 1, 1) + name + struct.pack(">i", -1) + owned


class Pair:
    """Two members that own two partitions each, and a third that has just joined: one has to give up a partition, the other keeps its own."""

    def __init__(self, connect: ConnectAs, *, eager: bool = False) -> None:
        group = new_id()
        shares = [(0, 1), (2, 3), ()]
        self.members = [Member(connect(), group, session_timeout_ms=60_000) for _ in shares]
        for member, owned in zip(self.members, shares, strict=True):
            member.protocols = {"cooperative-sticky": owning("t", *(() if eager else owned))}
        first, *others = self.members
        first.join()
        for member in others:
            member.get_id()
            member.send_join()
        eventually(lambda: first.heartbeat() != "NONE")
        first.send_join()
        for member in self.members:
            member.joined()
        self.gives_up, self.keeps, self.new = self.members

    def sync(self) -> None:
        """The leader, which is the one that gives up a partition, hands out."""
        shares = {
            self.gives_up.id: assignment("t", 0),
            self.keeps.id: assignment("t", 2, 3),
            self.new.id: assignment("t"),
        }
        for member in (self.keeps, self.new):
            member.send_sync()
        assert code(self.gives_up.sync(shares)) == "NONE", "who has something to do is told at once"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "_FOLLOW_UP_MS", LONG_MS)


@pytest.mark.usefixtures("patient")
def test_whom_an_assignment_changes_nothing_for_joins_again_with_the_others(connect_as: ConnectAs) -> None:
    pair = Pair(connect_as)
    pair.sync()
    assert pair.keeps.wire.is_silent(0.05) and pair.new.wire.is_silent(0.05)
    pair.gives_up.send_join()
    assert [answer(pair.keeps), answer(pair.new)] == ["REBALANCE_IN_PROGRESS"] * 2
    for member in (pair.keeps, pair.new):
        member.send_join()
    assert {member.joined().generation_id for member in pair.members} == {pair.keeps.generation}


def test_it_is_told_its_assignment_when_nobody_joins_again(connect_as: ConnectAs) -> None:
    pair = Pair(connect_as)
    began = time.monotonic()
    pair.sync()
    for member, expected in ((pair.keeps, assignment("t", 2, 3)), (pair.new, assignment("t"))):
        told = member.wire.receive(AT_ONCE_SECONDS)
        assert (code(told), told.assignment) == ("NONE", expected)
    assert 1.4 < time.monotonic() - began < 1.5 + AT_ONCE_SECONDS


@pytest.mark.usefixtures("patient")
def test_newcomers_of_librdkafka_are_told_at_once(connect_as: ConnectAs) -> None:
    pair = Pair(lambda: connect_as(PYTHON))
    pair.sync()
    assert answer(pair.new) == "NONE"
    assert pair.keeps.wire.is_silent()


@pytest.mark.usefixtures("patient")
def test_it_is_told_its_assignment_when_the_client_asks_for_something_else(connect_as: ConnectAs) -> None:
    pair = Pair(connect_as)
    pair.sync()
    send_heartbeat(pair.keeps)
    assert pair.keeps.wire.receive(AT_ONCE_SECONDS).assignment == assignment("t", 2, 3)


@pytest.mark.usefixtures("patient")
def test_eager_members_are_told_at_once(connect_as: ConnectAs) -> None:
    pair = Pair(connect_as, eager=True)
    pair.sync()
    assert [answer(member) for member in (pair.keeps, pair.new)] == ["NONE", "NONE"]
