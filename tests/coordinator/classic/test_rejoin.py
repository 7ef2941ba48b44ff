"""Members that join again: who disturbs the others by it, and who does not."""

from __future__ import annotations

from tests.coordinator.classic.world import Consumer, World, joined, stable, subscription
from tidelog.wire.error_codes import ErrorCode as E

OTHER = {"range": subscription("t", "u")}


def test_in_a_stable_group_a_follower_that_has_not_changed_gets_the_generation_there_is() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    asked = second.join()
    assert world.state() == "Stable"
    assert asked.error == E.NONE
    answer = asked.response
    assert (answer.generation_id, answer.leader, answer.protocol_name) == (1, first.member_id, "range")
    assert (answer.members, answer.skip_assignment) == ([], False)
    assert second.sync().response.assignment == b"to b"


def test_in_a_stable_group_a_follower_that_has_changed_makes_it_rebalance() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    assert second.join(protocols=OTHER).waits
    assert first.heartbeat() == E.REBALANCE_IN_PROGRESS
    first.join()
    assert [each.metadata for each in first.learn().members] == [subscription("t"), subscription("t", "u")]


def test_in_a_stable_group_the_leader_makes_it_rebalance_though_nothing_has_changed() -> None:
    """It may know of new partitions, which no subscription shows."""
    world = World()
    first, second = stable(world, "a", "b")
    assert first.join().waits
    assert second.heartbeat() == E.REBALANCE_IN_PROGRESS


def test_between_join_and_sync_who_missed_the_answer_gets_it_again() -> None:
    world = World()
    first, second = Consumer(world, "a"), Consumer(world, "b")
    joined(world, first, second)
    again = first.join()
    assert again.error == E.NONE
    assert again.response.generation_id == 1
    assert [each.member_id for each in again.response.members] == [first.member_id, second.member_id]
    assert second.join().response.members == []
    assert world.state() == "CompletingRebalance"


def test_between_join_and_sync_who_has_changed_makes_it_prepare_anew_and_waiting_syncs_are_called_off() -> (
    None
):
    world = World()
    first, second = Consumer(world, "a"), Consumer(world, "b")
    joined(world, first, second)
    waiting = second.sync()
    assert first.join(protocols=OTHER).waits
    assert world.state() == "PreparingRebalance"
    assert waiting.error == E.REBALANCE_IN_PROGRESS
    assert second.join().error == E.NONE
    assert second.learn().generation_id == first.learn().generation_id == 2


def test_while_the_group_prepares_a_join_brings_the_members_latest_word() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    second.join(protocols=OTHER)
    second.join(protocols={"range": subscription("w")}, session_ms=30_000, rebalance_ms=50_000)
    first.join()
    assert first.learn().members[1].metadata == subscription("w")
    member = world.group().members[second.member_id]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (30_000, 50_000)


def test_when_the_leader_does_not_come_back_the_first_who_did_leads() -> None:
    world = World()
    first, second, third = stable(world, "a", "b", "c")
    third.join(protocols=OTHER)
    second.join()
    first.leave()
    assert second.learn().leader == second.member_id
    assert len(second.learn().members) == 2
    assert third.learn().leader == second.member_id


def test_who_comes_back_after_it_was_removed_is_told_to_start_anew() -> None:
    world = World()
    first, second = stable(world, "a", "b")
    second.leave()
    assert second.join().error == E.UNKNOWN_MEMBER_ID
    first.leave()
    assert first.join().error == E.UNKNOWN_MEMBER_ID  # of an empty group as well
