"""Ten thousand members in one group: what one of them does costs the same as in a group of ten."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from tests.coordinator.classic.world import DELAY_MS, REBALANCE_MS, World
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.wire.error_codes import ErrorCode as E

FEW, MANY = 10, 1_000


def lines_run(action: Callable[[], object]) -> int:
    """How many lines of Python an action takes, the turns of loops included: a measure that no busy machine disturbs."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def group_of(size: int) -> tuple[World, list[str]]:
    """Stable, and made by joins that came one after the other."""
    world = World(GroupSettings(initial_rebalance_delay_ms=DELAY_MS))
    joins = [world.join(version=3, session_ms=600_000, rebalance_ms=REBALANCE_MS) for _ in range(size)]
    world.pass_time(2 * DELAY_MS)
    ids = [each.response.member_id for each in joins]
    waiting = [world.sync(each, 1, version=3) for each in ids[1:]]
    world.sync(ids[0], 1, {each: each.encode() for each in ids})
    assert [each.response.assignment for each in waiting] == [each.encode() for each in ids[1:]]
    assert world.state() == "Stable"
    return world, ids


def cost_of(action: Callable[[World, list[str]], object], size: int) -> int:
    world, ids = group_of(size)
    action(world, ids)  # whatever is compiled or cached when first used
    return lines_run(lambda: action(world, ids))


def same_for_all_sizes(action: Callable[[World, list[str]], object]) -> None:
    assert cost_of(action, MANY) <= cost_of(action, FEW) + 20


def test_a_heartbeat() -> None:
    same_for_all_sizes(lambda world, ids: world.heartbeat(ids[-1], 1))


def test_a_commit() -> None:
    same_for_all_sizes(
        lambda world, ids: world.groups.check_commit("orders", ids[-1], None, 1, False, world.now)
    )


def test_a_sync_in_a_stable_group() -> None:
    same_for_all_sizes(lambda world, ids: world.sync(ids[-1], 1))


def test_a_join_into_a_rebalance_that_goes_on() -> None:
    same_for_all_sizes(lambda world, _ids: world.join(version=3))


def test_joining_again_in_a_rebalance_that_goes_on() -> None:
    def again(world: World, ids: list[str]) -> None:
        world.join(ids[0], protocols={"range": b"changed"})

    same_for_all_sizes(again)


def test_leaving_in_a_rebalance_that_goes_on() -> None:
    def leave(world: World, ids: list[str]) -> None:
        world.leave_alone(ids.pop())

    same_for_all_sizes(leave)


def test_asking_for_a_member_id() -> None:
    same_for_all_sizes(lambda world, _ids: world.join())


def test_a_rebalance_of_ten_thousand() -> None:
    world, ids = group_of(10_000)
    held = [world.join(each, version=3, session_ms=600_000) for each in ids]
    assert {each.error for each in held} == {E.NONE}
    assert {each.response.generation_id for each in held} == {2}
    assert len(held[0].response.members) == 10_000
    assert world.group().pending_syncs == set(ids)
