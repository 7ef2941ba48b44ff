"""What a group looks like from outside: commits, descriptions, subscriptions, and whether it may be deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.coordinator.classic.world import (
    GROUP,
    SESSION_MS,
    Consumer,
    World,
    joined,
    stable,
    static,
    subscription,
)
from tidelog.errors import RequestError
from tidelog.wire.codec import encode
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.describe_groups import DescribeGroupsResponse


def commit(
    world: World,
    member_id: str = "",
    generation: int = -1,
    *,
    instance: str | None = None,
    transactional: bool = False,
    version: int = 9,
) -> E:
    try:
        world.groups.check_commit(
            GROUP, member_id, instance, generation, transactional, world.now, version=version
        )
    except RequestError as error:
        return E(error.code)
    return E.NONE


# ---- commits


def test_without_a_group_only_those_without_a_generation_may_commit() -> None:
    world = World()
    assert commit(world) == E.NONE
    assert commit(world, "m", 1) == E.GROUP_ID_NOT_FOUND
    assert commit(world, "m", 1, version=8) == E.ILLEGAL_GENERATION
    assert commit(world, "m", 1, transactional=True) == E.ILLEGAL_GENERATION


def test_to_an_empty_group_anybody_without_a_generation_may_commit() -> None:
    world = World()
    (first,) = stable(world, "a")
    first.leave()
    assert commit(world) == E.NONE
    assert commit(world, "somebody") == E.NONE
    assert commit(world, first.member_id, 1) == E.UNKNOWN_MEMBER_ID


def test_to_a_group_with_members_only_they_may_commit() -> None:
    world = World()
    (first,) = stable(world, "a")
    assert commit(world, first.member_id, 1) == E.NONE
    assert commit(world) == E.UNKNOWN_MEMBER_ID
    assert commit(world, "stranger", 1) == E.UNKNOWN_MEMBER_ID
    assert commit(world, first.member_id, 0) == E.ILLEGAL_GENERATION
    assert commit(world, first.member_id) == E.ILLEGAL_GENERATION
    assert commit(world, first.member_id, 1, instance="i") == E.UNKNOWN_MEMBER_ID


def test_a_fenced_static_member_may_not_commit() -> None:
    world = World()
    (first,) = static(world, "i-1")
    Consumer(world, "i-1", instance="i-1").join()
    assert commit(world, first.member_id, 1, instance="i-1") == E.FENCED_INSTANCE_ID
    assert commit(world, first.member_id, 1, instance="i-1", transactional=True) == E.FENCED_INSTANCE_ID


def test_commits_of_the_last_generation_are_taken_until_the_next_one_begins() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    first.join()
    assert commit(world, second.member_id, 1) == E.NONE
    second.join()
    assert commit(world, second.member_id, 1) == E.ILLEGAL_GENERATION
    assert commit(world, second.member_id, 2) == E.REBALANCE_IN_PROGRESS
    assert commit(world, second.member_id, 2, transactional=True) == E.NONE


def test_old_transactional_commits_do_not_say_who_they_are() -> None:
    world = World()
    stable(world, "a")
    assert commit(world, transactional=True) == E.NONE


@pytest.mark.parametrize("transactional", [False, True])
def test_a_commit_is_a_sign_of_life_unless_a_producer_sends_it(transactional: bool) -> None:
    world = World()
    (first,) = stable(world, "a")
    world.pass_time(SESSION_MS - 1)
    assert commit(world, first.member_id, 1, transactional=transactional) == E.NONE
    world.pass_time(SESSION_MS - 1)
    assert first.heartbeat() == (E.UNKNOWN_MEMBER_ID if transactional else E.NONE)


# ---- descriptions


def test_a_stable_group_is_described_with_what_each_member_said_and_got() -> None:
    world = World()
    (first,) = static(world, "i-1")
    told = world.groups.describe(GROUP, 6)
    assert (told.error_code, told.group_id, told.group_state) == (0, GROUP, "Stable")
    assert (told.protocol_type, told.protocol_data) == ("consumer", "range")
    (member,) = told.members
    assert (member.member_id, member.group_instance_id) == (first.member_id, "i-1")
    assert (member.client_id, member.client_host) == ("i-1", "10.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"to i-1")


def test_in_a_rebalance_there_is_no_protocol_to_tell() -> None:
    world = World()
    first, _ = stable(world, "a", "b")
    first.join()
    told = world.groups.describe(GROUP, 6)
    assert (told.group_state, told.protocol_type, told.protocol_data) == (
        "PreparingRebalance",
        "consumer",
        "",
    )
    assert [each.member_metadata for each in told.members] == [b"", b""]
    assert [each.member_assignment for each in told.members] == [b"to a", b"to b"]


@pytest.mark.parametrize("version", range(7))
def test_a_group_that_does_not_exist_is_dead_and_from_version_6_on_an_error(version: int) -> None:
    told = World().groups.describe("nothing", version)
    assert told.group_state == "Dead"
    assert told.error_code == (E.GROUP_ID_NOT_FOUND if version >= 6 else E.NONE)
    assert bool(told.error_message) == (version >= 6)
    encode(DescribeGroupsResponse(groups=[told]), version)


def test_an_empty_group_is_described_as_empty() -> None:
    world = World()
    stable(world, "a")[0].leave()
    told = world.groups.describe(GROUP, 0)
    assert (told.group_state, told.members, told.protocol_type) == ("Empty", [], "consumer")


def test_groups_can_be_listed() -> None:
    world = World()
    stable(world, "a")
    world.join(group="another")
    assert [(each.group_id, each.protocol_type, each.state.value) for each in world.groups] == [
        (GROUP, "consumer", "Stable"),
        ("another", None, "Empty"),
    ]
    assert "another" in world.groups
    assert "nothing" not in world.groups


# ---- subscriptions


def test_the_topics_of_a_group_are_those_of_all_its_members() -> None:
    world = World()
    first = Consumer(world, "a", protocols={"range": subscription("t", "u")})
    second = Consumer(world, "b", protocols={"range": subscription("u", "w", version=3)})
    joined(world, first, second)
    assert world.groups.subscribed_topics(GROUP) is None  # in a rebalance
    first.sync()
    assert world.groups.subscribed_topics(GROUP) == frozenset({"t", "u", "w"})
    assert world.groups.is_subscribed(GROUP, "w")
    assert not world.groups.is_subscribed(GROUP, "x")
    world.restart()
    assert world.groups.subscribed_topics(GROUP) == frozenset({"t", "u", "w"})
    first.leave()
    second.leave()
    assert world.groups.subscribed_topics(GROUP) == frozenset()
    assert not world.groups.is_subscribed(GROUP, "w")


def test_topics_change_with_the_generation() -> None:
    world = World()
    (first,) = stable(world, "a")
    assert world.groups.subscribed_topics(GROUP) == frozenset({"t"})
    first.join(protocols={"range": subscription("x")})
    first.learn()
    first.sync()
    assert world.groups.subscribed_topics(GROUP) == frozenset({"x"})


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\0", b"\0\0\0\0\0\x05abc", b"\0\0\xff\xff\xff\xfe"])
def test_a_subscription_that_cannot_be_read_may_be_of_any_topic(metadata: bytes) -> None:
    world = World()
    stable(world, "a", protocols={"range": metadata})
    assert world.groups.subscribed_topics(GROUP) is None
    assert world.groups.is_subscribed(GROUP, "any")


def test_nobody_can_say_what_other_protocols_read() -> None:
    world = World()
    worker = Consumer(world, "w", protocol_type="connect", protocols={"x": subscription("t")})
    joined(world, worker)
    worker.sync(protocol_type="connect", protocol="x")
    assert world.groups.subscribed_topics(GROUP) is None
    assert not world.groups.is_subscribed(GROUP, "t")
    assert world.groups.subscribed_topics("nothing") is None
    assert not world.groups.is_subscribed("nothing", "t")


# ---- deletion


def refusal(check: Callable[[str], None], group_id: str) -> E:
    try:
        check(group_id)
    except RequestError as error:
        return E(error.code)
    return E.NONE


def test_only_an_empty_group_may_be_deleted() -> None:
    world = World()
    (first,) = stable(world, "a")
    assert refusal(world.groups.check_delete, "nothing") == E.GROUP_ID_NOT_FOUND
    assert refusal(world.groups.check_delete, GROUP) == E.NON_EMPTY_GROUP
    assert not world.groups.is_empty(GROUP)
    assert world.groups.tombstone_if_empty(GROUP) == []
    first.leave()
    assert refusal(world.groups.check_delete, GROUP) == E.NONE
    assert world.groups.is_empty(GROUP)
    (tombstone,) = world.groups.tombstone_if_empty(GROUP)
    assert (tombstone.key.group, tombstone.value) == (GROUP, None)


def test_offsets_of_a_group_with_members_may_go_only_if_they_are_consumers() -> None:
    world = World()
    stable(world, "a")
    other = Consumer(world, "w", group="connect", protocol_type="connect", protocols={"x": b""})
    joined(world, other)
    assert refusal(world.groups.check_delete_offsets, "nothing") == E.GROUP_ID_NOT_FOUND
    assert refusal(world.groups.check_delete_offsets, GROUP) == E.NONE
    assert refusal(world.groups.check_delete_offsets, "connect") == E.NON_EMPTY_GROUP
