"""An answer that is lost costs a member nothing but the time to its next heartbeat, whichever library it uses.

librdkafka says nothing anew when it has lost an answer; so the coordinator does.
"""

from __future__ import annotations

import pytest

from tests.coordinator.consumer.clients import Consumer, Library, Network
from tests.coordinator.consumer.world import World
from tidelog.coordinator.group.consumer import heartbeat
from tidelog.coordinator.group.consumer.member import MemberState
from tidelog.coordinator.group.history import Event
from tidelog.coordinator.group.settings import GroupSettings

ORDERS = frozenset({"orders"})


def two(library: Library, *, interval_ms: int = 0) -> tuple[World, Consumer, Consumer]:
    """The first has everything, and the second has joined."""
    world = World(GroupSettings(consumer_assignment_interval_ms=interval_ms), orders=4)
    first, second = (Consumer(world, name, library, topics=ORDERS) for name in ("a", "b"))
    first.heartbeat()
    first.act()
    first.heartbeat()
    second.heartbeat()
    second.act()
    return world, first, second


def settle(world: World, *consumers: Consumer) -> None:
    for _ in range(3):
        for consumer in consumers:
            consumer.heartbeat()
            consumer.act()
            world.pass_time(1_000)


@pytest.mark.parametrize("library", Library)
def test_to_give_up_a_partition(library: Library) -> None:
    world, first, second = two(library)
    first.heartbeat(Network.LOSES_ANSWER)
    assert world.member("a").state is MemberState.UNREVOKED_PARTITIONS
    settle(world, first, second)
    assert (len(first.owned), len(second.owned), world.state()) == (2, 2, "Stable")
    assert Event.MISSED_REBALANCE not in world.events()


@pytest.mark.parametrize("library", Library)
def test_that_a_partition_was_given_up_and_others_are_there(library: Library) -> None:
    """The epoch is the same before and after: nothing else would tell the member that it missed something."""
    world, first, second = two(library)
    second.heartbeat()
    assert world.member("b").state is MemberState.UNRELEASED_PARTITIONS
    first.heartbeat()
    first.act()
    first.heartbeat()
    second.heartbeat(Network.LOSES_ANSWER)
    assert world.member("b").state is MemberState.STABLE
    assert second.owned == frozenset()
    settle(world, first, second)
    assert (len(first.owned), len(second.owned), world.state()) == (2, 2, "Stable")


def test_a_coordinator_that_says_an_assignment_once_leaves_a_partition_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What Kafka does. This is the mutant that the tests above are there for."""
    monkeypatch.setattr(
        heartbeat, "_knows_its_assignment", lambda draft: draft.before.assigned == draft.after.assigned
    )
    with pytest.raises(AssertionError):
        test_that_a_partition_was_given_up_and_others_are_there(Library.LIBRDKAFKA)
    test_that_a_partition_was_given_up_and_others_are_there(Library.JAVA)


@pytest.mark.parametrize("library", Library)
def test_to_join(library: Library) -> None:
    world = World(orders=2)
    consumer = Consumer(world, "a", library, instance_id="one", topics=ORDERS)
    consumer.heartbeat(Network.LOSES_ANSWER)
    settle(world, consumer)
    assert (len(consumer.owned), len(world.group().members)) == (2, 1)


@pytest.mark.parametrize("library", Library)
def test_of_a_new_epoch(library: Library) -> None:
    """librdkafka does not say what it owns, so it is fenced and begins anew; Kafka's library goes on."""
    world, first, second = two(library)
    first.heartbeat()
    first.act()
    first.heartbeat(Network.LOSES_ANSWER)
    assert (first.epoch, world.member("a").epoch) == (2, 3)
    settle(world, first, second)
    assert (len(first.owned), len(second.owned), world.state()) == (2, 2, "Stable")
