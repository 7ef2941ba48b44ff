"""What an operator asks about groups: FindCoordinator, ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, code
from tests.broker.group_wire import (
    NOTHING,
    Connect,
    Consumer,
    Member,
    await_coordinators,
    commit,
    committed,
    eventually,
    group_broker,
    joined_together,
    new_id,
    stable,
    subscription,
)
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.list_groups import ListGroupsRequest

GROUP_OPERATIONS = 3400
NOT_ASKED = -(2**31)


@pytest.fixture(scope="module")
def shared_broker(foreign: bool) -> Iterator[tuple[str, int]]:
    yield from group_broker(foreign)


@pytest.fixture
def group() -> str:
    return new_id()


# ---- FindCoordinator


@pytest.mark.parametrize("version", range(7))
def test_coordinators_in_every_version(wire: Wire, version: int) -> None:
    """The answer names a broker that Metadata names, too (CLIENTS trap 18)."""
    (broker,) = wire.metadata().brokers
    keys = ["one", "two", ""]
    request = FindCoordinatorRequest(key="one", coordinator_keys=keys)
    response = wire.ask(request, version)
    found = [response] if version < 4 else response.coordinators
    for answer in found:
        assert (code(answer), answer.node_id) == ("NONE", broker.node_id)
        assert (answer.host, answer.port) == (broker.host, broker.port)
    if version >= 4:
        assert [answer.key for answer in found] == keys
        assert wire.ask(FindCoordinatorRequest(coordinator_keys=[]), version).coordinators == []


# ---- ListGroups


class Zoo:
    """A group in each state and of each kind, under names of its own."""

    def __init__(self, connect: Connect, topic: Topic) -> None:
        self.wire = connect()
        self.prefix = new_id("zoo")
        assert commit(self.wire, self.name("simple"), topic, 1) == "NONE"
        self.members = [
            *stable(connect, self.name("stable")),
            *joined_together(connect, self.name("completing"), 1),
            *stable(connect, self.name("connect"), protocol_type="connect", protocols={"default": b"x"}),
        ]
        (alone,) = stable(connect, self.name("left"))
        assert alone.leave() == "NONE"
        preparing = stable(connect, self.name("preparing"), 2)
        preparing[0].send_join()
        eventually(lambda: preparing[1].heartbeat() == "REBALANCE_IN_PROGRESS")
        self.consumer = Consumer(connect(), self.name("consumer"), topic.name)
        eventually(lambda: self.consumer.beat() and self.consumer.owned)
        gone = Consumer(connect(), self.name("consumer-left"), topic.name)
        gone.beat()
        assert gone.leave() == "NONE"

    def name(self, what: str) -> str:
        return f"{self.prefix}-{what}"

    def listed(self, version: int | None = None, **filters: Any) -> dict[str, tuple[str, str, str]]:
        """Protocol type, state and type by name, of our own groups."""
        answer = self.wire.ask(ListGroupsRequest(**filters), version)
        assert code(answer) == "NONE"
        return {
            each.group_id.removeprefix(self.prefix + "-"): (
                each.protocol_type,
                each.group_state,
                each.group_type,
            )
            for each in answer.groups
            if each.group_id.startswith(self.prefix)
        }


EVERYTHING = {
    "simple": ("", "Empty", "classic"),
    "stable": ("consumer", "Stable", "classic"),
    "completing": ("consumer", "CompletingRebalance", "classic"),
    "preparing": ("consumer", "PreparingRebalance", "classic"),
    "connect": ("connect", "Stable", "classic"),
    "left": ("consumer", "Empty", "classic"),
    "consumer": ("consumer", "Stable", "consumer"),
    "consumer-left": ("consumer", "Empty", "consumer"),
}


def test_listing(connect: Connect, topic: Topic) -> None:
    zoo = Zoo(connect, topic)
    for version in range(6):
        expected = {
            name: (protocol_type, state if version >= 4 else "", kind if version >= 5 else "")
            for name, (protocol_type, state, kind) in EVERYTHING.items()
        }
        assert zoo.listed(version) == expected, version

    def named(**filters: Any) -> set[str]:
        return set(zoo.listed(**filters))

    assert named(states_filter=["Stable"]) == {"stable", "connect", "consumer"}
    assert named(states_filter=["stable", "EMPTY"]) == {
        "stable", "connect", "consumer", "simple", "left", "consumer-left",
    }  # fmt: skip
    assert named(states_filter=["PreparingRebalance"]) == {"preparing"}
    assert named(states_filter=["CompletingRebalance"]) == {"completing"}
    assert named(states_filter=["Dead"]) == named(states_filter=["Nonesuch"]) == set()
    assert named(types_filter=["classic"]) == EVERYTHING.keys() - {"consumer", "consumer-left"}
    assert named(types_filter=["Consumer"]) == {"consumer", "consumer-left"}
    assert named(types_filter=["classic", "consumer"]) == EVERYTHING.keys()
    assert named(types_filter=["share"]) == set()
    assert named(types_filter=["consumer"], states_filter=["Empty"]) == {"consumer-left"}
    assert set(zoo.listed(4, states_filter=["PreparingRebalance"])) == {"preparing"}


def test_a_group_is_listed_once_somebody_has_joined(connect: Connect, wire: Wire, group: str) -> None:
    def is_listed() -> bool:
        return group in {each.group_id for each in wire.ask(ListGroupsRequest()).groups}

    assert not is_listed()
    stable(connect, group)
    assert is_listed()


# ---- DescribeGroups


def describe(wire: Wire, *group_ids: str, version: int | None = None, **more: Any) -> list[Any]:
    """In the order of the question: Kafka answers in whatever order its partitions do."""
    answers = wire.ask(DescribeGroupsRequest(groups=list(group_ids), **more), version).groups
    found = {each.group_id: each for each in answers}
    assert len(answers) == len(found)
    return [found[group_id] for group_id in group_ids]


@pytest.mark.parametrize("version", range(7))
def test_describing_in_every_version(connect: Connect, wire: Wire, group: str, version: int) -> None:
    members = stable(connect, group, 2)
    (found,) = describe(wire, group, version=version)
    assert (code(found), found.error_message) == ("NONE", None)
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    assert {each.member_id: each.member_assignment for each in found.members} == {
        members[0].id: b"0",
        members[1].id: b"1",
    }
    for each in found.members:
        assert (each.client_id, each.client_host) == ("wire", "/127.0.0.1")
        assert (each.member_metadata, each.group_instance_id) == (subscription("t"), None)
    unknown, known = describe(wire, "no-such-group", group, version=version)
    assert (unknown.group_state, unknown.members) == ("Dead", [])
    assert code(unknown) == ("GROUP_ID_NOT_FOUND" if version >= 6 else "NONE")
    assert bool(unknown.error_message) == (version >= 6)
    assert known.group_state == "Stable"


def test_describing_the_states_of_a_group(connect: Connect, wire: Wire, group: str, topic: Topic) -> None:
    assert commit(wire, group, topic, 1) == "NONE"
    (found,) = describe(wire, group)
    assert (found.group_state, found.protocol_type, found.members) == ("Empty", "", [])
    (member,) = joined_together(connect, group, 1)
    (found,) = describe(wire, group)
    assert (found.group_state, found.protocol_type) == ("CompletingRebalance", "consumer")
    assert [(each.member_id, each.member_metadata) for each in found.members] == [(member.id, b"")]
    member.sync({member.id: b"yours"})
    second = Member(connect(), group)
    second.get_id()
    assert len(describe(wire, group)[0].members) == 1, "who was only given an id is no member"
    second.send_join()
    eventually(lambda: member.heartbeat() == "REBALANCE_IN_PROGRESS")
    (found,) = describe(wire, group)
    assert (found.group_state, found.protocol_data) == ("PreparingRebalance", "")
    assert {each.member_id for each in found.members} == {member.id, second.id}
    assert member.leave() == "NONE"
    second.joined()
    assert second.leave() == "NONE"
    (found,) = describe(wire, group)
    assert (found.group_state, found.protocol_type, found.members) == ("Empty", "consumer", [])


def test_describing_static_members(connect: Connect, wire: Wire, group: str) -> None:
    member = Member(connect(), group, instance_id="i")
    member.join()
    assert [each.group_instance_id for each in describe(wire, group)[0].members] == ["i"]
    assert [each.group_instance_id for each in describe(wire, group, version=3)[0].members] == [None]


def test_operations_are_told_on_request(connect: Connect, wire: Wire, group: str) -> None:
    stable(connect, group)
    assert describe(wire, group)[0].authorized_operations == NOT_ASKED
    for version in (3, 6):
        (found,) = describe(wire, group, version=version, include_authorized_operations=True)
        assert found.authorized_operations == GROUP_OPERATIONS


# ---- DeleteGroups


def delete(wire: Wire, *group_ids: str, version: int | None = None) -> dict[str, str]:
    results = wire.ask(DeleteGroupsRequest(groups_names=list(group_ids)), version).results
    return {result.group_id: code(result) for result in results}


@pytest.mark.parametrize("version", range(3))
def test_deleting_in_every_version(connect: Connect, wire: Wire, topic: Topic, version: int) -> None:
    simple, left, alive, nobody = (new_id() for _ in range(4))
    assert commit(wire, simple, topic, 3) == "NONE"
    (gone,) = stable(connect, left)
    assert gone.commit(topic, 4) == "NONE"
    assert gone.leave() == "NONE"
    (member,) = stable(connect, alive)
    assert member.commit(topic, 5) == "NONE"
    assert delete(wire, simple, left, alive, nobody, version=version) == {
        simple: "NONE",
        left: "NONE",
        alive: "NON_EMPTY_GROUP",
        nobody: "GROUP_ID_NOT_FOUND",
    }
    for group_id in (simple, left):
        assert committed(wire, group_id, {topic: [0]}) == {(topic.id, 0): NOTHING}
        assert describe(wire, group_id)[0].group_state == "Dead"
    listed = {each.group_id for each in wire.ask(ListGroupsRequest()).groups}
    assert listed & {simple, left, alive} == {alive}
    assert member.heartbeat() == "NONE"


def test_a_deleted_group_begins_anew(connect: Connect, wire: Wire, group: str) -> None:
    (member,) = stable(connect, group)
    assert delete(wire, group) == {group: "NON_EMPTY_GROUP"}
    assert member.leave() == "NONE"
    assert delete(wire, group) == {group: "NONE"}
    assert delete(wire, group) == {group: "GROUP_ID_NOT_FOUND"}
    (member,) = stable(connect, group)
    assert member.generation == 1


def test_consumer_groups_are_deleted_alike(connect: Connect, wire: Wire, group: str, topic: Topic) -> None:
    member = Consumer(connect(), group, topic.name)
    eventually(lambda: member.beat() and member.owned)
    who = {"member_id": member.id, "epoch": member.epoch}
    assert commit(wire, group, topic, 5, **who) == "NONE"
    assert delete(wire, group) == {group: "NON_EMPTY_GROUP"}
    assert member.leave() == "NONE"
    assert delete(wire, group) == {group: "NONE"}
    assert committed(wire, group, {topic: [0]}) == {(topic.id, 0): NOTHING}
    (again,) = stable(connect, group)
    assert again.generation == 1, "of whichever kind"


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_deleted_groups_stay_deleted(launch: Any, group: str, clean: bool) -> None:
    broker: OwnBroker = launch(group_initial_rebalance_delay_ms=0)
    await_coordinators(broker.port)
    wire = broker.connect()
    topic = wire.create("t")
    (member,) = stable(broker.connect, group)
    assert member.commit(topic, 5) == "NONE"
    assert member.leave() == "NONE"
    assert delete(wire, group) == {group: "NONE"}
    broker.restart(clean=clean)
    await_coordinators(broker.port)
    wire = broker.connect()
    assert wire.ask(ListGroupsRequest()).groups == []
    assert committed(wire, group, None) == {}
