"""A whole shard where its parts meet: groups that nobody needs any more, topics that go, and a log that takes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.coordinator.migration.clients import Classic, settle
from tests.coordinator.migration.world import GROUP, Asked, World
from tidelog.coordinator.group import refusals
from tidelog.coordinator.group import shard as module
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.wire.error_codes import ErrorCode as E

CHECK_MS = GroupSettings().offsets_retention_check_interval_ms


def test_a_classic_group_that_everybody_left_goes_when_it_has_no_offsets() -> None:
    world = World(orders=2)
    member = Classic(world, "a", "orders")
    settle(world, member)
    world.leave_alone(member.member_id)
    assert world.state() == "classic Empty"
    world.pass_time(CHECK_MS)
    assert world.state() == "none"
    world.assert_live_equals_replay()


def test_a_consumer_group_that_everybody_left_goes_when_it_has_no_offsets() -> None:
    world = World(orders=2)
    world.enter("a", "orders")
    world.beat("a", -1)
    assert world.state() == "consumer Empty"
    world.pass_time(CHECK_MS)
    assert world.state() == "none"
    world.assert_live_equals_replay()


def test_a_group_with_offsets_or_members_stays() -> None:
    world = World(orders=2)
    response = world.enter("a", "orders")
    assert world.commit("a", response.member_epoch, ("orders", 0), 5) == E.NONE
    world.beat("a", -1)
    world.pass_time(CHECK_MS)
    assert world.state() == "consumer Empty"
    settings = GroupSettings(consumer_session_timeout_ms=10 * CHECK_MS)
    world = World(settings, orders=2)
    world.enter("a", "orders")
    world.pass_time(CHECK_MS)
    assert world.state() == "consumer Stable"


class Batches:
    """How many records each write had."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        act = world.act

        def counted(outcome: Any, **options: Any) -> None:
            if outcome.records:
                self.sizes.append(len(outcome.records))
            act(outcome, **options)

        monkeypatch.setattr(world, "act", counted)


def committed_to_all(world: World, partitions: int) -> None:
    for partition in range(partitions):
        assert world.commit("", -1, ("orders", partition), 7) == E.NONE


def delete_topic(world: World) -> None:
    topic_id = world.topics.ids["orders"]
    world.topics.delete("orders")
    world.act(world.shard.topics_changed([("orders", topic_id)], world.now))


def test_the_offsets_of_a_topic_go_with_it_in_batches_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOGETHER", 200)
    world = World(orders=20)
    committed_to_all(world, 20)
    batches = Batches(world, monkeypatch)
    delete_topic(world)
    world.pass_time(0)
    assert sum(batches.sizes) == 20 and len(batches.sizes) > 3
    assert not world.shard.offsets.has_any(GROUP)
    world.assert_live_equals_replay()


def test_what_the_log_does_not_take_goes_later_and_costs_no_shard() -> None:
    world = World(orders=3)
    committed_to_all(world, 3)
    shard = world.shard
    world.refuses = E.COORDINATOR_NOT_AVAILABLE
    delete_topic(world)
    assert world.shard is shard and shard.offsets.has_any(GROUP)
    world.pass_time(module._AGAIN_MS)
    assert not shard.offsets.has_any(GROUP)


def test_offsets_expire_in_batches_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOGETHER", 200)
    world = World(GroupSettings(offsets_retention_ms=1000), orders=20)
    committed_to_all(world, 20)
    batches = Batches(world, monkeypatch)
    world.pass_time(CHECK_MS)
    assert sum(batches.sizes) == 20 and len(batches.sizes) > 3
    assert world.state() == "none"


def ask_to_delete(world: World) -> Asked:
    return world.ask(
        lambda asked: world.shard.delete_group(GROUP, asked, world.now), 2, refusals.delete_group(GROUP)
    )


def test_a_group_with_very_many_offsets_is_deleted_in_batches_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_TOGETHER", 200)
    world = World(orders=20)
    committed_to_all(world, 20)
    batches = Batches(world, monkeypatch)
    first, second = ask_to_delete(world), ask_to_delete(world)
    assert first.waits and second.waits
    world.pass_time(0)
    assert [first.response.error_code, second.response.error_code] == [E.NONE, E.GROUP_ID_NOT_FOUND]
    assert sum(batches.sizes) == 20 and len(batches.sizes) > 3
    assert world.state() == "none"
    world.assert_live_equals_replay()


@pytest.mark.parametrize("written", [0, 1, 3])
def test_a_deletion_that_cannot_be_written_to_its_end_says_so(
    written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TOGETHER", 200)
    world = World(orders=20)
    committed_to_all(world, 20)
    shard, act = world.shard, world.act
    acts = 0

    def refuse_once(outcome: Any, **options: Any) -> None:
        nonlocal acts
        world.refuses = E.COORDINATOR_NOT_AVAILABLE if acts == written else None
        acts += 1
        act(outcome, **options)

    monkeypatch.setattr(world, "act", refuse_once)
    asked = ask_to_delete(world)
    world.pass_time(0)
    assert asked.response.error_code == E.COORDINATOR_NOT_AVAILABLE
    assert world.shard is shard
    world.assert_live_equals_replay()
    again = ask_to_delete(world)
    world.pass_time(0)
    assert again.response.error_code == E.NONE
    assert world.state() == "none"


def test_a_group_that_somebody_joins_while_it_is_deleted_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOGETHER", 200)
    world = World(orders=20)
    committed_to_all(world, 20)
    asked = ask_to_delete(world)
    world.enter("a", "orders")
    world.pass_time(0)
    assert asked.response.error_code == E.NON_EMPTY_GROUP
    assert world.state().startswith("consumer")


def test_an_expiry_that_cannot_be_written_is_tried_again() -> None:
    world = World(GroupSettings(offsets_retention_ms=1000), orders=3)
    committed_to_all(world, 3)
    shard = world.shard
    world.refuses = E.COORDINATOR_NOT_AVAILABLE
    world.pass_time(CHECK_MS)
    assert world.shard is shard and shard.offsets.has_any(GROUP)
    world.pass_time(CHECK_MS)
    assert world.shard is shard and not shard.offsets.has_any(GROUP)


def test_offsets_of_an_earlier_topic_of_the_name_are_not_told() -> None:
    """Its tombstones may never have been written: the coordinator was away, or the power failed."""
    world = World(orders=2)
    committed_to_all(world, 2)
    world.topics.delete("orders")
    world.topics.create("orders", 2)
    world.fail_over()
    assert world.committed(("orders", 0)) == -1
    assert world.commit("", -1, ("orders", 0), 3) == E.NONE
    assert world.committed(("orders", 0)) == 3
    assert world.committed(("orders", 1)) == -1


def test_a_session_that_ends_when_nothing_can_be_written_ends_later() -> None:
    settings = GroupSettings(consumer_session_timeout_ms=5_000)
    world = World(settings, orders=2)
    world.enter("a", "orders")
    shard = world.shard
    world.refuses = E.COORDINATOR_NOT_AVAILABLE
    world.pass_time(5_000)
    assert world.shard is shard and world.members() == {"a"}
    world.pass_time(5_000)
    assert world.shard is shard and world.members() == set()
