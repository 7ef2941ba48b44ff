"""Which way to assign a group agrees on: one that every member supports, by vote."""

from __future__ import annotations

import pytest

from tests.coordinator.classic.world import Consumer, World, assigned, joined, stable
from tidelog.coordinator.group.classic.group import ClassicGroup, ClassicMember, SupportedProtocol
from tidelog.coordinator.group.world import Client
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol


def group_of(*preferences: str) -> ClassicGroup:
    """Members that prefer protocols in this order: "ab" likes a best and b second."""
    group = ClassicGroup("g", state_since_ms=0)
    for number, names in enumerate(preferences):
        protocols = tuple(SupportedProtocol(name, b"") for name in names)
        group.add(ClassicMember(f"m{number}", None, "c", "h", 1, 1, protocols))
    return group


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (["a"], "a"),
        (["ab", "ba", "ba"], "b"),
        (["ab", "ab", "ba"], "a"),
        (["abc", "cb", "cab"], "c"),  # a is not supported by all
        (["abc", "bc", "cab"], "b"),
        (["ab", "ba"], "a"),  # of equals, the one that got a vote first
        (["ba", "ab"], "b"),
    ],
)
def test_each_member_votes_for_what_it_likes_best_of_what_all_support(
    preferences: list[str], chosen: str
) -> None:
    assert group_of(*preferences).vote() == chosen


def test_votes_follow_members_that_come_change_and_go() -> None:
    group = group_of("ab", "ba", "b")
    assert group.vote() == "b"
    group.remove(group.members["m2"])
    group.update(
        group.members["m1"], (SupportedProtocol("a", b""),), session_timeout_ms=1, rebalance_timeout_ms=1
    )
    assert group.common_protocols == ["a"]
    assert group.vote() == "a"


def test_the_metadata_that_the_leader_sees_is_that_of_the_chosen_protocol() -> None:
    world = World()
    first = Consumer(world, "a", protocols={"x": b"x of a", "y": b"y of a"})
    second = Consumer(world, "b", protocols={"y": b"y of b"})
    joined(world, first, second)
    answer = first.learn()
    assert answer.protocol_name == second.learn().protocol_name == "y"
    assert [each.metadata for each in answer.members] == [b"y of a", b"y of b"]


def test_eager_and_cooperative_members_without_a_common_protocol_are_told_apart_clearly() -> None:
    """The group goes on with those who are in it: whoever comes with something else is refused."""
    world = World()
    (eager,) = stable(world, "a", protocols={"range": b"", "roundrobin": b""})
    assert world.join(protocols={"cooperative-sticky": b""}).error == E.INCONSISTENT_GROUP_PROTOCOL
    assert (world.state(), eager.heartbeat()) == ("Stable", E.NONE)
    with pytest.raises(RequestError) as refused:
        world.groups.join(
            JoinGroupRequest(
                group_id="orders",
                session_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol("cooperative-sticky")],
            ),
            Client("b", "h", 9),
            object(),
            world.now,
        )
    assert "supports range, roundrobin" in refused.value.message
    assert "cooperative-sticky" in refused.value.message
    assert "partition.assignment.strategy" in refused.value.message


def test_a_rolling_upgrade_from_eager_to_cooperative_uses_the_common_protocol_until_the_last_member() -> None:
    """First each member learns the new protocol, then each forgets the old one."""
    world = World()
    first, second = stable(world, "a", "b", protocols={"range": b""})
    both = {"cooperative-sticky": b"", "range": b""}
    for changed, other in ((first, second), (second, first)):
        changed.join(protocols=both)
        other.join(protocols=both if other is first else {"range": b""})
        chosen = changed.learn().protocol_name
        other.learn()
        assigned(first, second)
    assert chosen == "cooperative-sticky"
    third = Consumer(world, "c", protocols={"cooperative-sticky": b""})
    third.join()
    first.join(protocols=both)
    second.join(protocols=both)
    assert third.learn().protocol_name == "cooperative-sticky"


def test_a_group_has_one_protocol_type() -> None:
    world = World()
    stable(world, "a")
    assert world.join(protocol_type="connect").error == E.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_may_change_its_protocol_type() -> None:
    world = World()
    (first,) = stable(world, "a")
    first.leave()
    worker = Consumer(world, "w", protocol_type="connect", protocols={"sessioned": b""})
    joined(world, worker)
    assert worker.learn().protocol_type == "connect"


def test_a_member_that_no_longer_supports_what_the_group_has_in_common_is_refused() -> None:
    world = World()
    first, _ = stable(world, "a", "b")
    asked = first.join(protocols={"roundrobin": b""})
    assert (asked.error, asked.response.member_id) == (E.INCONSISTENT_GROUP_PROTOCOL, first.member_id)
    assert world.state() == "Stable"


def test_a_protocol_that_is_named_twice_counts_once() -> None:
    world = World()
    request = JoinGroupRequest(
        group_id="orders",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"1"), JoinGroupRequestProtocol("range", b"2")],
    )
    world.act(world.groups.join(request, Client("a", "h", 3), object(), world.now))
    (member,) = world.group().members.values()
    assert member.protocols == (SupportedProtocol("range", b"1"),)
    assert world.group().common_protocols == ["range"]
