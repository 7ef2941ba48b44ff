"""Members of both protocols against the broker's coordinator: partitions are shared, nobody reads what another one of the group reads, and it ends well."""

from __future__ import annotations

import os

import pytest

from tests.client.consumer.group_world import MAX_POLL_MS, SESSION_MS, GroupWorld
from tidelog.client.consumer.member import Change

SEEDS = 25 * int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))
TOPICS = frozenset(("orders", "bills"))
PROTOCOLS: dict[str, tuple[str, ...] | None] = {
    "range": ("range",),
    "roundrobin": ("roundrobin",),
    "sticky": ("sticky",),
    "cooperative-sticky": ("cooperative-sticky",),
    "KIP-848": None,
}


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_members_come_and_go(name: str, loss: float) -> None:
    for seed in range(SEEDS):
        world = GroupWorld(seed, loss=loss, orders=7, bills=2)
        chance = world.rng
        for _ in range(chance.randrange(1, 4)):
            world.add(PROTOCOLS[name], TOPICS)
            world.pass_time(chance.choice([0, 100, 2_000]))
        for _ in range(4):
            living = [consumer for consumer in world.consumers if consumer.is_alive]
            event = chance.randrange(4)
            if event == 0 and len(living) < 5:
                world.add(PROTOCOLS[name], TOPICS)
            elif event == 1 and len(living) > 1:
                chance.choice(living).is_alive = False  # kill -9
            elif event == 2:
                chance.choice(living).stalled_until = world.now + chance.choice([2, 2 * MAX_POLL_MS / 1000])
            else:
                world.server.fail_over()
            world.pass_time(chance.choice([500, 3_000, SESSION_MS + 1_000]))
        world.loss = 0.0
        for consumer in world.consumers:
            consumer.stalled_until = 0.0
        world.pass_time(2 * MAX_POLL_MS + SESSION_MS)
        world.assert_shared()


def test_cooperative_members_keep_what_they_keep() -> None:
    world = GroupWorld(1, orders=6)
    first = world.add(("cooperative-sticky",), frozenset(("orders",)))
    world.pass_time(5_000)
    before = first.holds
    given_up: list[int] = []
    done = first.member.done

    def noted(now: float) -> None:
        callback = first.member.pending
        assert callback is not None
        if callback.change is not Change.TAKE:
            given_up.append(len(callback.partitions))
        done(now)

    first.member.done = noted  # type: ignore[method-assign]
    world.add(("cooperative-sticky",), frozenset(("orders",)))
    world.pass_time(10_000)
    world.assert_shared()
    assert given_up == [3] and first.holds < before


def test_a_static_member_that_comes_back_costs_nobody_anything() -> None:
    world = GroupWorld(1, orders=6)
    topics = frozenset(("orders",))
    other = world.add(("range",), topics)
    first = world.add(("range",), topics, instance="kitchen-1")
    world.pass_time(10_000)
    world.assert_shared()
    held, rebalances = first.holds, other.rebalances
    first.is_alive = False
    world.pass_time(3_000)
    again = world.add(("range",), topics, instance="kitchen-1")
    world.pass_time(6_000)
    assert again.holds == held
    assert other.rebalances == rebalances


def test_who_does_not_poll_loses_its_partitions_and_gets_some_again() -> None:
    for protocol in PROTOCOLS.values():
        world = GroupWorld(1, orders=4)
        slow = world.add(protocol, frozenset(("orders",)))
        other = world.add(protocol, frozenset(("orders",)))
        world.pass_time(10_000)
        world.assert_shared()
        slow.stalled_until = world.now + 2 * MAX_POLL_MS / 1000
        world.pass_time(MAX_POLL_MS + SESSION_MS)
        assert len(other.holds) == 4
        world.pass_time(2 * MAX_POLL_MS)
        world.assert_shared()
        assert slow.holds


def test_a_subscription_that_changes_while_the_group_is_joined_is_not_forgotten() -> None:
    for delay_ms in (0, 50, 100, 600, 3_000):
        world = GroupWorld(1, orders=2, bills=2)
        consumer = world.add(("range",), frozenset(("orders",)))
        if delay_ms:
            world.pass_time(delay_ms)
        consumer.member.subscribe(TOPICS, world.now)
        world.pass_time(10_000)
        world.assert_shared()
