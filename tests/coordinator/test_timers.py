"""Deadlines by name: each is called once, when it has come, earliest first."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidelog.coordinator.outcome import CoordinatorRecord, Now, Outcome
from tidelog.coordinator.timers import Timers


def at(ms: int) -> Now:
    return Now(ms, 0)


def noted(name: str) -> Callable[[Now], Outcome]:
    return lambda now: Outcome([CoordinatorRecord(name, now.ms)])


def expired(timers: Timers, ms: int) -> list[str]:
    return [outcome.records[0].key for outcome in timers.expire(at(ms))]


def test_each_is_called_when_its_moment_has_come() -> None:
    timers = Timers()
    for name, ms in (("c", 30), ("a", 10), ("b", 20)):
        timers.schedule(name, ms, noted(name))
    assert timers.next_deadline_ms() == 10
    assert expired(timers, 9) == []
    assert expired(timers, 20) == ["a", "b"]
    assert "a" not in timers
    assert "c" in timers
    assert timers.deadline_ms("c") == 30
    assert expired(timers, 100) == ["c"]
    assert timers.next_deadline_ms() is None
    assert len(timers) == 0


def test_a_deadline_that_moves_later_costs_no_room() -> None:
    timers = Timers()
    for ms in range(10_000):
        timers.schedule("session", 45_000 + ms, noted("session"))
    assert len(timers._heap) == 1
    assert expired(timers, 54_998) == []
    assert expired(timers, 54_999) == ["session"]


def test_a_deadline_that_moves_earlier_comes_once() -> None:
    timers = Timers()
    timers.schedule("a", 100, noted("late"))
    timers.schedule("a", 50, noted("early"))
    assert timers.next_deadline_ms() == 50
    assert expired(timers, 200) == ["early"]


def test_deadlines_that_moved_keep_the_order_when_time_was_lost() -> None:
    """As after a pause of the process: everything is due at once, and a session that was renewed still ends after the other one."""
    timers = Timers()
    timers.schedule("renewed", 10, noted("renewed"))
    timers.schedule("silent", 20, noted("silent"))
    timers.schedule("renewed", 30, noted("renewed"))
    assert expired(timers, 100) == ["silent", "renewed"]


def test_the_last_one_under_a_name_counts() -> None:
    timers = Timers()
    timers.schedule("a", 10, noted("first"))
    timers.cancel("a")
    timers.cancel("a")
    timers.schedule("a", 10, noted("second"))
    assert expired(timers, 10) == ["second"]
    assert expired(timers, 10) == []


def test_what_happens_at_a_deadline_may_change_the_others() -> None:
    timers = Timers()

    def first(now: Now) -> Outcome:
        timers.cancel("cancelled")
        timers.schedule("moved", now.ms + 100, noted("moved"))
        timers.schedule("first", now.ms + 10, noted("first again"))
        timers.schedule("now", now.ms, noted("now"))
        return noted("first")(now)

    timers.schedule("first", 10, first)
    timers.schedule("cancelled", 10, noted("cancelled"))
    timers.schedule("moved", 10, noted("moved"))
    assert expired(timers, 10) == ["first", "now"]
    assert expired(timers, 20) == ["first again"]
    assert expired(timers, 110) == ["moved"]


def test_the_next_deadline_is_not_looked_at_before_the_last_one_is_dealt_with() -> None:
    timers = Timers()
    for name in "ab":
        timers.schedule(name, 10, noted(name))
    for outcome in timers.expire(at(10)):
        assert outcome.records[0].key == "a"
        timers.clear()
    assert timers.next_deadline_ms() is None


class Deadlines(RuleBasedStateMachine):
    """Against a dictionary."""

    NAMES = st.sampled_from("abcd")

    def __init__(self) -> None:
        super().__init__()
        self.timers = Timers()
        self.expected: dict[str, int] = {}
        self.ms = 0

    @rule(name=NAMES, delay=st.integers(0, 20))
    def schedule(self, name: str, delay: int) -> None:
        self.timers.schedule(name, self.ms + delay, noted(name))
        self.expected[name] = self.ms + delay

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        self.timers.cancel(name)
        self.expected.pop(name, None)

    @rule()
    def clear(self) -> None:
        self.timers.clear()
        self.expected.clear()

    @rule(ms=st.integers(0, 15))
    def pass_time(self, ms: int) -> None:
        self.ms += ms
        due = {name: deadline for name, deadline in self.expected.items() if deadline <= self.ms}
        found = expired(self.timers, self.ms)
        assert sorted(found) == sorted(due)
        assert [due[name] for name in found] == sorted(due.values())
        for name in due:
            del self.expected[name]

    @invariant()
    def says_what_is_planned(self) -> None:
        assert {
            name: self.timers.deadline_ms(name) for name in "abcd" if name in self.timers
        } == self.expected
        assert len(self.timers) == len(self.expected)
        soonest = self.timers.next_deadline_ms()
        if self.expected:
            assert soonest is not None
            assert soonest <= min(self.expected.values())


TestDeadlines = Deadlines.TestCase
TestDeadlines.settings = settings(max_examples=100, stateful_step_count=40)
