"""Subscriptions by pattern: matched as a whole, in slices, once for all members that share one, and never by the loop for long."""

from __future__ import annotations

import sys
from time import perf_counter

import pytest

from tests.coordinator.consumer.engine import HAS_RE2, use_engine
from tests.coordinator.consumer.world import World
from tidelog.coordinator.group import records as types
from tidelog.coordinator.group.consumer import patterns
from tidelog.coordinator.group.consumer.patterns import compile_pattern
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.outcome import Now
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode as E

AT_ONCE = GroupSettings(consumer_assignment_interval_ms=0)
needs_re2 = pytest.mark.skipif(not HAS_RE2, reason="google-re2 is not installed")


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    use_engine(monkeypatch)


def topics(world: World, *names: str) -> frozenset[tuple[str, int]]:
    return frozenset((name, partition) for name in names for partition in range(world.topics.counts[name]))


def test_a_pattern_is_matched_beside_the_heartbeat_and_told_with_the_next() -> None:
    world = World(AT_ONCE, orders=1, orders_eu=2, other_orders=1)
    joined = world.join("a", pattern="orders.*")
    assert (joined.member_epoch, world.told(joined)) == (1, frozenset())
    assert world.group().patterns == {}
    world.pass_time(0)
    assert [type(record.key) for record in world.written] == [
        types.ConsumerGroupRegularExpressionKey,
        types.ConsumerGroupMetadataKey,
    ]
    matched = world.group().patterns["orders.*"]
    assert matched.topics == {"orders", "orders_eu"}, "the whole name, not a part of it"
    assert (matched.version, matched.timestamp_ms) == (world.topics.offset, world.now.wall_ms)
    assert world.told(world.heartbeat("a", 1)) == topics(world, "orders", "orders_eu")
    assert world.groups.subscribed_topics("orders-readers") == {"orders", "orders_eu"}
    world.assert_live_equals_replay()


def test_internal_topics_match_like_others() -> None:
    world = World(AT_ONCE, __consumer_offsets=1, orders=1)
    world.join("a", pattern=".*")
    world.pass_time(0)
    assert world.group().patterns[".*"].topics == {"__consumer_offsets", "orders"}


def test_names_and_a_pattern_add_up() -> None:
    world = World(AT_ONCE, orders=1, refunds=1, visits=1)
    world.join("a", "visits", pattern="orders|refunds")
    world.pass_time(0)
    assert world.told(world.heartbeat("a", world.member("a").epoch)) == topics(
        world, "orders", "refunds", "visits"
    )


def test_who_takes_a_pattern_that_is_matched_already_is_assigned_at_once() -> None:
    world = World(AT_ONCE, orders=2)
    world.join("a", pattern="orders")
    world.pass_time(0)
    world.heartbeat("a", 1)
    world.join("b", pattern="orders")
    assert world.group().epoch == world.group().assignment_epoch == 3
    assert not world.target("a") & world.target("b")
    assert world.group().pattern_users == {"orders": 2}


def test_a_pattern_that_nobody_uses_any_more_goes() -> None:
    world = World(AT_ONCE, orders=1, refunds=1)
    world.join("a", pattern="orders")
    world.join("b", pattern="orders")
    world.pass_time(0)
    world.heartbeat("a", world.member("a").epoch, subscribed_topic_regex="refunds")
    assert "orders" in world.group().patterns
    world.heartbeat("b", -1)
    assert any(
        record.key == types.ConsumerGroupRegularExpressionKey("orders-readers", "orders")
        and record.value is None
        for record in world.written
    )
    assert "orders" not in world.group().patterns
    world.heartbeat("a", world.member("a").epoch, subscribed_topic_regex="")
    assert world.group().pattern_users == {}
    world.assert_live_equals_replay()


def test_new_topics_are_matched_but_not_more_often_than_every_ten_seconds() -> None:
    world = World(AT_ONCE, orders=1)
    world.join("a", pattern="o.*")
    world.pass_time(0)
    world.heartbeat("a", 1)
    world.create_topic("offers", 1)
    for _ in range(2):
        world.pass_time(5_000)
        world.heartbeat("a", 2)
        world.pass_time(0)
        assert world.group().patterns["o.*"].topics == {"orders"}
    world.pass_time(1)
    world.heartbeat("a", 2)
    world.pass_time(0)
    assert world.group().patterns["o.*"].topics == {"offers", "orders"}
    assert world.told(world.heartbeat("a", 2)) == topics(world, "offers", "orders")


def test_without_new_topics_patterns_rest_until_the_refresh_interval_is_over() -> None:
    world = World(GroupSettings(consumer_regex_refresh_interval_ms=40_000), orders=1, offers=1)
    world.join("a", pattern="o.*")
    world.pass_time(0)
    first = world.group().patterns["o.*"].timestamp_ms
    world.delete_topic("offers")
    world.pass_time(40_000)
    world.heartbeat("a", world.member("a").epoch)
    world.pass_time(0)
    assert world.group().patterns["o.*"].timestamp_ms == first
    world.pass_time(1)
    world.heartbeat("a", world.member("a").epoch)
    world.pass_time(0)
    assert world.group().patterns["o.*"].timestamp_ms == world.now.wall_ms
    assert world.group().patterns["o.*"].topics == {"orders"}


def test_a_new_coordinator_matches_anew_since_topics_may_have_come() -> None:
    world = World(AT_ONCE, orders=1)
    world.join("a", pattern="o.*")
    world.pass_time(0)
    world.topics.create("offers", 1)
    world.pass_time(20_000)
    world.fail_over()
    world.heartbeat("a", world.member("a").epoch)
    world.pass_time(0)
    assert world.group().patterns["o.*"].topics == {"offers", "orders"}


def test_a_pattern_that_comes_to_match_nothing_frees_what_was_meant_for_its_member() -> None:
    """The topics of the group are the same as before, so nothing but the pattern says that a new target is needed."""
    world = World(AT_ONCE, orders=2)
    world.join("a", pattern="orders")
    world.pass_time(0)
    world.heartbeat("a", 1)
    world.heartbeat("a", 2, owned=topics(world, "orders"))
    world.join("b", "orders")
    world.heartbeat("a", 2, subscribed_topic_regex="nothing")
    world.heartbeat("a", 2, owned=())
    world.pass_time(11_000)
    world.heartbeat("a", world.member("a").epoch)
    world.pass_time(100)
    world.heartbeat("a", world.member("a").epoch)
    assert world.told(world.heartbeat("b", world.member("b").epoch)) == topics(world, "orders")


def test_a_wall_clock_that_was_set_back_does_not_keep_a_pattern_waiting() -> None:
    world = World(AT_ONCE, orders=1, refunds=1)
    world.join("a", pattern="orders")
    world.pass_time(0)
    world.now = Now(world.now.ms + 1, world.now.wall_ms - 3_600_000)
    world.join("b", pattern="refunds")
    world.pass_time(0)
    assert set(world.group().patterns) == {"orders", "refunds"}


# ---- limits


def test_what_is_no_pattern_is_refused_and_leaves_no_trace() -> None:
    world = World(orders=1)
    response = world.join("a", pattern="orders(")
    assert response.error_code == E.INVALID_REGULAR_EXPRESSION
    assert "orders(" in (response.error_message or "")
    assert not world.log


def test_a_pattern_of_absurd_length_is_refused() -> None:
    response = World(orders=1).join("a", pattern="a" * 100_000)
    assert response.error_code == E.INVALID_REGULAR_EXPRESSION


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    response = World(orders=1).join("a", pattern="orders")
    assert response.error_code == E.INVALID_REGULAR_EXPRESSION
    assert "google-re2" in (response.error_message or "")


def test_without_the_package_what_was_matched_elsewhere_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(AT_ONCE, orders=1)
    world.join("a", pattern="o.*")
    world.pass_time(0)
    monkeypatch.setitem(sys.modules, "re2", None)
    world.create_topic("offers", 1)
    world.pass_time(20_000)
    world.fail_over()
    world.heartbeat("a", world.member("a").epoch)
    world.pass_time(0)
    assert world.group().patterns["o.*"].topics == {"orders"}


def test_many_topics_are_matched_in_slices_and_one_group_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(AT_ONCE)
    for number in range(100):
        world.topics.create(f"topic-{number}", 1)
    world.topics_changed()
    monkeypatch.setattr(patterns, "SLICE_WORK", 30 * patterns.MATCH_WORK)
    world.join("a", pattern="topic-.*", group_id="one")
    world.join("b", pattern="topic-1.*", group_id="two")
    slices = 0
    while world.groups.get("two").patterns == {}:  # type: ignore[union-attr]
        deadline = world.timers.next_deadline_ms()
        assert deadline is not None
        world.now = Now(max(deadline, world.now.ms), world.now.wall_ms)
        world.expire_timers()
        slices += 1
    assert slices >= 8, "four for each group, at least"
    assert len(world.groups.get("one").patterns["topic-.*"].topics) == 100  # type: ignore[union-attr]
    assert len(world.groups.get("two").patterns["topic-1.*"].topics) == 11  # type: ignore[union-attr]


def test_a_small_pattern_does_not_wait_for_all_of_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(AT_ONCE)
    for number in range(100):
        world.topics.create(f"topic-{number}", 1)
    world.topics_changed()
    monkeypatch.setattr(patterns, "SLICE_WORK", 100 * patterns.MATCH_WORK)
    world.join("a", pattern="topic-.*|" + "x{900}", group_id="large")
    world.join("b", pattern="topic-1", group_id="small")
    while world.groups.get("small").patterns == {}:  # type: ignore[union-attr]
        deadline = world.timers.next_deadline_ms()
        assert deadline is not None
        world.now = Now(max(deadline, world.now.ms), world.now.wall_ms)
        world.expire_timers()
    assert world.groups.get("large").patterns == {}  # type: ignore[union-attr]


def test_matches_that_the_log_does_not_take_are_not_made_again_at_once() -> None:
    world = World(AT_ONCE, orders=1)
    world.join("a", pattern="orders")
    world.append_fails = True
    world.pass_time(0)
    world.append_fails = False
    world.heartbeat("a", world.member("a").epoch)
    world.pass_time(patterns.REFRESH_INTERVAL_MIN_MS - 1)
    world.heartbeat("a", world.member("a").epoch)
    world.pass_time(0)
    assert world.group().patterns == {}
    world.pass_time(1)
    world.heartbeat("a", world.member("a").epoch)
    world.pass_time(0)
    assert set(world.group().patterns) == {"orders"}


def test_a_group_that_went_meanwhile_is_no_trouble() -> None:
    world = World(AT_ONCE, orders=1)
    world.join("a", pattern="orders")
    for record in world.groups.tombstone("orders-readers"):
        world.groups.replay(record)
    world.pass_time(0)
    assert "orders-readers" not in world.groups


@needs_re2
@pytest.mark.parametrize("pattern", ["(a+)+$", "(x+x+)+y", "(a|aa)+b", "(.*)*(.*)*(.*)*z", "(?:a?){30}a{30}"])
def test_patterns_that_stall_others_do_not_stall_re2(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    began = perf_counter()
    for _ in range(20):
        compiled.fullmatch(b"a" * 249)
    assert perf_counter() - began < 1


@needs_re2
@pytest.mark.parametrize("pattern", ["((a{100}){100}){100}", "(" * 2_000, "\\1", "(?=a)", "a{1001}", "[z-a]"])
def test_patterns_that_re2_does_not_take_are_refused(pattern: str) -> None:
    began = perf_counter()
    with pytest.raises(RequestError):
        compile_pattern(pattern)
    assert perf_counter() - began < 1
