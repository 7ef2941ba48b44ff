"""Waiting requests: woken once per turn, given up in time, completed exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from tidelog.replication.partition import Partition, Watcher
from tidelog.replication.purgatory import CommitWait, FetchPurgatory
from tidelog.wire.error_codes import ErrorCode


class Timer:
    def __init__(self, due: float, callback: Callable[[], object]) -> None:
        self.due, self.callback, self.cancelled = due, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """A scheduler whose time a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], object]] = []
        self.timers: list[Timer] = []

    def call_soon(self, callback: Callable[[], object], /) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        self.timers.append(Timer(self.now + delay, callback))
        return self.timers[-1]

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for timer in [timer for timer in self.timers if timer.due <= self.now and not timer.cancelled]:
            timer.cancelled = True
            timer.callback()


class Place:
    """A partition as far as waiting sees it."""

    def __init__(self) -> None:
        self.watchers: dict[Watcher, None] = {}
        self.waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []
        self.committed = 0

    def watch(self, watcher: Watcher) -> None:
        self.watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self.watchers.pop(watcher, None)

    def wake(self) -> None:
        for watcher in self.watchers:
            watcher.wake()

    def when_committed(self, last_offset: int, done: Callable[[ErrorCode], None]) -> None:
        if last_offset < self.committed:
            done(ErrorCode.NONE)
        else:
            self.waiting.append((last_offset, done))

    def commit(self, code: ErrorCode = ErrorCode.NONE) -> None:
        waiting, self.waiting = self.waiting, []
        for _, done in waiting:
            done(code)


@pytest.fixture
def loop() -> Loop:
    return Loop()


class Parked:
    def __init__(self, loop: Loop, *places: Place, max_wait_ms: int = 500) -> None:
        self.ready = False
        self.looks = 0
        self.completed = 0
        self.purgatory = FetchPurgatory(loop)
        self.fetch = self.purgatory.park(
            cast("list[Partition]", list(places)),
            max_wait_ms=max_wait_ms,
            look=self.look,
            complete=self.complete,
        )

    def look(self) -> Callable[[], None] | None:
        self.looks += 1
        return self.complete if self.ready else None

    def complete(self) -> None:
        self.completed += 1


def test_a_fetch_is_looked_at_once_per_turn(loop: Loop) -> None:
    one, two = Place(), Place()
    parked = Parked(loop, one, two)
    for _ in range(10):
        one.wake()
        two.wake()
    assert parked.looks == 0, "not while the producer's turn lasts"
    loop.turn()
    assert (parked.looks, parked.completed) == (1, 0)
    parked.ready = True
    two.wake()
    loop.turn()
    assert (parked.looks, parked.completed, parked.purgatory.parked) == (2, 1, 0)
    assert not one.watchers and not two.watchers
    loop.advance(10)
    assert parked.completed == 1


def test_a_fetch_is_given_up_in_time_ready_or_not(loop: Loop) -> None:
    place = Place()
    parked = Parked(loop, place, max_wait_ms=500)
    loop.advance(0.499)
    assert parked.completed == 0
    loop.advance(0.001)
    assert (parked.looks, parked.completed, parked.purgatory.parked) == (0, 1, 0)
    assert not place.watchers


def test_a_fetch_that_was_woken_and_timed_out_in_the_same_turn_completes_once(loop: Loop) -> None:
    place = Place()
    parked = Parked(loop, place)
    parked.ready = True
    place.wake()
    loop.advance(1)
    loop.turn()
    assert parked.completed == 1


def test_a_cancelled_fetch_never_completes(loop: Loop) -> None:
    place = Place()
    parked = Parked(loop, place)
    parked.ready = True
    place.wake()
    parked.fetch.cancel()
    loop.turn()
    loop.advance(10)
    assert (parked.completed, parked.looks, parked.purgatory.parked) == (0, 0, 0)
    assert not place.watchers
    parked.fetch.cancel()
    assert parked.purgatory.parked == 0


def test_fetches_do_not_hold_each_other_up(loop: Loop) -> None:
    purgatory, place, order = FetchPurgatory(loop), Place(), list[int]()
    for number in range(3):
        purgatory.park(
            cast("list[Partition]", [place]),
            max_wait_ms=500,
            look=lambda number=number: (lambda: order.append(number)) if number != 1 else None,  # type: ignore[misc]
            complete=lambda: order.append(-1),
        )
    place.wake()
    loop.turn()
    assert (order, purgatory.parked) == ([0, 2], 1)


# ---- CommitWait


class Waiting:
    def __init__(self) -> None:
        self.completed = 0
        self.codes: dict[str, ErrorCode] = {}
        self.wait = CommitWait(self.complete)

    def complete(self) -> None:
        self.completed += 1

    def add(self, name: str, place: Place, last_offset: int = 0) -> None:
        self.wait.add(cast(Any, place), last_offset, lambda code: self.codes.__setitem__(name, code))


def test_all_batches_must_be_committed(loop: Loop) -> None:
    one, two, waiting = Place(), Place(), Waiting()
    waiting.add("one", one)
    waiting.add("two", two)
    waiting.wait.arm(loop, timeout_ms=1000)
    one.commit()
    assert waiting.completed == 0
    two.commit()
    assert (waiting.completed, waiting.codes) == (1, {"one": ErrorCode.NONE, "two": ErrorCode.NONE})
    assert all(timer.cancelled for timer in loop.timers)


def test_nothing_completes_before_all_are_added(loop: Loop) -> None:
    """The first batch may be committed at once; the second is not even known then."""
    done, waiting = Place(), Waiting()
    done.committed = 10
    waiting.add("one", done)
    assert waiting.completed == 0
    waiting.wait.arm(loop, timeout_ms=1000)
    assert (waiting.completed, loop.timers) == (1, [])


def test_a_timeout_fails_only_what_is_missing(loop: Loop) -> None:
    one, two, waiting = Place(), Place(), Waiting()
    waiting.add("one", one)
    waiting.add("two", two)
    waiting.wait.arm(loop, timeout_ms=1000)
    one.commit()
    loop.advance(1)
    assert (waiting.completed, waiting.codes) == (
        1,
        {"one": ErrorCode.NONE, "two": ErrorCode.REQUEST_TIMED_OUT},
    )
    two.commit()
    assert (waiting.completed, waiting.codes["two"]) == (1, ErrorCode.REQUEST_TIMED_OUT), "too late"


def test_an_error_is_an_answer(loop: Loop) -> None:
    one, waiting = Place(), Waiting()
    waiting.add("one", one)
    waiting.wait.arm(loop, timeout_ms=1000)
    one.commit(ErrorCode.KAFKA_STORAGE_ERROR)
    assert (waiting.completed, waiting.codes) == (1, {"one": ErrorCode.KAFKA_STORAGE_ERROR})


def test_followers_do_not_wait_when_their_leader_leads_more_than_before(loop: Loop) -> None:
    """They cannot ask for it as long as they wait, and nothing of it is committed before they do."""
    purgatory, done = FetchPurgatory(loop), list[str]()

    def park(name: str, *, is_follower: bool) -> None:
        purgatory.park(
            [], max_wait_ms=500, look=lambda: None, complete=lambda: done.append(name), whole_log=is_follower
        )

    park("follower", is_follower=True)
    park("consumer", is_follower=False)
    purgatory.hurry_followers()
    assert done == ["follower"]
    park("again", is_follower=True)  # it had not heard of it yet
    loop.advance(0.02)
    assert done == ["follower", "again"]
    loop.advance(1.0)
    assert done == ["follower", "again", "consumer"]
    park("later", is_follower=True)
    loop.advance(0.4)
    assert "later" not in done
    loop.advance(0.1)
    assert "later" in done
    assert purgatory.parked == 0
