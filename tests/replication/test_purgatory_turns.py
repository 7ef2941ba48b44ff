"""A crowd of parked fetches is looked at in turns: what each turn may cost is bounded, and nobody is left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tidelog.replication.purgatory import PARTITIONS_PER_TURN, WIDE, FetchPurgatory


class Loop:
    """Turns by hand; timers fire when they are told to."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], object]] = deque()
        self.timers: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object], /) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Any:
        self.timers.append(callback)
        return self

    def cancel(self) -> None:
        pass

    def turn(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()


class Place:
    def watch(self, watcher: object) -> None:
        pass

    def unwatch(self, watcher: object) -> None:
        pass


class Crowd:
    def __init__(self, count: int, width: int) -> None:
        self.loop = Loop()
        self.purgatory = FetchPurgatory(self.loop)
        self.looks = [0] * count
        self.done: list[int] = []
        places: list[Any] = [Place() for _ in range(width)]
        self.fetches = [
            self.purgatory.park(
                places,
                max_wait_ms=500,
                look=lambda number=number: self.look(number),  # type: ignore[misc]
                complete=lambda number=number: self.done.append(number),  # type: ignore[misc]
            )
            for number in range(count)
        ]

    def look(self, number: int) -> None:
        self.looks[number] += 1

    def wake_all(self) -> None:
        for fetch in self.fetches:
            fetch.wake()


def test_a_turn_looks_at_so_many_partitions_and_the_next_goes_on() -> None:
    crowd = Crowd(count=10, width=PARTITIONS_PER_TURN // 2)
    crowd.wake_all()
    turns = 0
    while crowd.loop.soon:
        before = sum(crowd.looks)
        crowd.loop.turn()
        turns += 1
        assert 1 <= sum(crowd.looks) - before <= 2
    assert crowd.looks == [1] * 10
    assert turns >= 5


def test_whoever_is_woken_meanwhile_has_its_turn_and_none_is_looked_at_twice_for_one_waking() -> None:
    crowd = Crowd(count=4, width=PARTITIONS_PER_TURN)
    crowd.wake_all()
    crowd.loop.turn()
    assert crowd.looks == [1, 0, 0, 0]
    crowd.wake_all()  # the first is woken anew, the others are still waiting for their look
    while crowd.loop.soon:
        assert len(crowd.loop.soon) == 1, "one look is scheduled, not one for every waking"
        crowd.loop.turn()
    assert crowd.looks == [2, 1, 1, 1]


def test_small_fetches_are_all_looked_at_in_one_turn() -> None:
    crowd = Crowd(count=300, width=1)
    crowd.wake_all()
    crowd.loop.turn()
    assert crowd.looks == [1] * 300
    assert not crowd.loop.soon


def test_wide_fetches_that_expire_together_leave_in_turns() -> None:
    crowd = Crowd(count=6, width=PARTITIONS_PER_TURN)
    for expire in crowd.loop.timers:
        expire()
    assert crowd.done == []
    for number in range(6):
        crowd.loop.turn()
        assert crowd.done == list(range(number + 1))
    assert crowd.purgatory.parked == 0


def test_small_fetches_leave_at_the_moment_they_expire() -> None:
    crowd = Crowd(count=5, width=WIDE - 2)
    for expire in crowd.loop.timers:
        expire()
    assert crowd.done == [0, 1, 2, 3, 4]


def test_one_that_is_cancelled_before_its_turn_is_left_alone() -> None:
    crowd = Crowd(count=3, width=PARTITIONS_PER_TURN)
    for expire in crowd.loop.timers:
        expire()
    crowd.fetches[1].cancel()
    for _ in range(4):
        crowd.loop.turn()
    assert crowd.done == [0, 2]
    assert crowd.looks == [0, 0, 0]
