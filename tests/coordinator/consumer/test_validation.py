"""What a ConsumerGroupHeartbeat must be, before anybody looks at the group."""

from __future__ import annotations

from typing import Any

import pytest

from tests.coordinator.consumer.world import World
from tidelog.wire.error_codes import ErrorCode as E

JOIN: dict[str, Any] = {"topics": ["orders"], "rebalance_timeout_ms": 1_000, "owned": ()}


@pytest.mark.parametrize(
    ("fields", "version", "word"),
    [
        ({"member_id": "", **JOIN}, 1, "MemberId"),
        ({"member_id": "  ", **JOIN}, 1, "MemberId"),
        ({"member_id": "", "epoch": 3}, 0, "MemberId"),
        ({"member_id": "", "epoch": -1}, 0, "MemberId"),
        ({"member_id": "a", "group_id": " ", **JOIN}, 1, "GroupId"),
        ({"member_id": "a", "instance_id": "", **JOIN}, 1, "InstanceId"),
        ({"member_id": "a", "rack_id": "", **JOIN}, 1, "RackId"),
        ({"member_id": "a", **JOIN, "rebalance_timeout_ms": -1}, 1, "RebalanceTimeoutMs"),
        ({"member_id": "a", **JOIN, "owned": None}, 1, "TopicPartitions"),
        ({"member_id": "a", **JOIN, "owned": [("orders", 0)]}, 1, "TopicPartitions"),
        ({"member_id": "a", **JOIN, "topics": None}, 1, "SubscribedTopicNames"),
        ({"member_id": "a", "epoch": -2}, 1, "InstanceId"),
        ({"member_id": "a", "epoch": -3}, 1, "MemberEpoch"),
    ],
)
def test_a_request_that_makes_no_sense_is_invalid(fields: dict[str, Any], version: int, word: str) -> None:
    world = World(orders=1)
    response = world.heartbeat(version=version, **fields)
    assert response.error_code == E.INVALID_REQUEST
    assert response.error_message is not None
    assert word in response.error_message
    assert not world.log


def test_before_version_1_the_server_chooses_the_id_of_a_member_that_joins() -> None:
    world = World(orders=1)
    response = world.join("", "orders", version=0)
    assert response.error_code == E.NONE
    assert response.member_id in world.group().members
    assert len(response.member_id or "") == 36


def test_an_empty_subscription_joins() -> None:
    """Java's consumer subscribes to nothing for a moment."""
    world = World(orders=1)
    assert world.join("a").error_code == E.NONE
    assert (
        world.heartbeat(
            "b", topics=None, subscribed_topic_regex="", rebalance_timeout_ms=1, owned=()
        ).error_code
        == 0
    )


def test_an_assignor_that_is_not_known_is_refused_with_those_that_are() -> None:
    world = World(orders=1)
    response = world.join("a", "orders", server_assignor="mine")
    assert response.error_code == E.UNSUPPORTED_ASSIGNOR
    assert "uniform, range" in (response.error_message or "")


@pytest.mark.parametrize("epoch", [1, -1])
def test_a_group_that_is_not_there_has_no_members(epoch: int) -> None:
    assert World(orders=1).heartbeat("a", epoch).error_code == E.GROUP_ID_NOT_FOUND


def test_a_member_that_is_not_there_must_join() -> None:
    world = World(orders=1)
    world.join("a", "orders")
    assert world.heartbeat("b", 2).error_code == E.UNKNOWN_MEMBER_ID
    assert world.heartbeat("b", -1).error_code == E.UNKNOWN_MEMBER_ID
