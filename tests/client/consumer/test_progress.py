"""What may be committed when records are finished out of order, and who may be worked on."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.consumer.progress import Lanes, Progress, lane_of
from tidelog.client.consumer.records import ConsumerRecord


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_nothing_is_safe_behind_what_is_not_done(steps: list[int], chance: object) -> None:
    offsets, offset = [], 10
    for step in steps:
        offset += step
        offsets.append(offset)
    progress = Progress(11)
    for each in offsets:
        progress.begin(each)
    finished = list(offsets)
    chance.shuffle(finished)  # type: ignore[attr-defined]
    left = set(offsets)
    for each in finished:
        progress.finish(each)
        left.discard(each)
        assert progress.safe_offset == (min(left) if left else offsets[-1] + 1)
        assert progress.in_work == len(left)


def test_who_goes_back_begins_anew_from_there() -> None:
    progress = Progress(0)
    for offset in range(6):
        progress.begin(offset)
    for offset in (0, 1, 3, 5):
        progress.finish(offset)
    progress.go_back(4)
    assert (progress.safe_offset, progress.in_work, progress.next_offset) == (2, 1, 4)
    progress.begin(4)
    progress.begin(5)
    progress.finish(2)
    assert (progress.safe_offset, progress.in_work) == (4, 2)
    progress.go_back(1)
    assert (progress.safe_offset, progress.in_work) == (1, 0)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=60), st.randoms(use_true_random=False)
)
def test_lanes_keep_their_order_and_one_is_out_at_a_time(
    items: list[tuple[int, int]], chance: object
) -> None:
    lanes: Lanes[tuple[int, int]] = Lanes()
    out: dict[object, tuple[int, int]] = {}
    seen: dict[int, list[int]] = {}
    number = 0
    for lane, action in [*items, *[(0, 1)] * 200]:
        if action == 0:
            lanes.put(lane, (lane, number))
            number += 1
        while (taken := lanes.take()) is not None:
            key, item = taken
            assert key not in out, "one at a time"
            out[key] = item
            seen.setdefault(item[0], []).append(item[1])
        if out and action:
            key = chance.choice(sorted(out))  # type: ignore[attr-defined]
            del out[key]
            lanes.finish(key)
    assert len(lanes) == 0
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert sum(map(len, seen.values())) == number


def test_what_is_dropped_never_comes_out() -> None:
    lanes: Lanes[str] = Lanes()
    for item in ("a1", "a2", "a3", "b1", "b2"):
        lanes.put(item[0], item)
    assert lanes.take() == ("a", "a1")
    assert sorted(lanes.drop(lambda item: item in ("a2", "b1"))) == ["a2", "b1"]
    assert lanes.take() == ("b", "b2")
    lanes.finish("a")
    assert lanes.take() == ("a", "a3")
    lanes.finish("a")
    lanes.finish("b")
    assert len(lanes) == 0


def test_lanes_of_records() -> None:
    def record(offset: int, key: bytes | None, partition: int = 0) -> ConsumerRecord:
        return ConsumerRecord("t", partition, offset, 0, 0, key, None, (), 0)

    assert (
        lane_of(record(1, b"k"), "key") == lane_of(record(2, b"k"), "key") != lane_of(record(3, b"l"), "key")
    )
    assert lane_of(record(1, b"k"), "key") != lane_of(record(1, b"k", 1), "key")
    assert lane_of(record(1, None), "key") != lane_of(record(2, None), "key")
    assert lane_of(record(1, b"k"), "partition") == lane_of(record(2, b"l"), "partition")
    assert lane_of(record(1, b"k"), None) != lane_of(record(2, b"k"), None)


class CommitsWhatWasBegun(Progress):
    """A mutant: what was begun counts as done."""

    __slots__ = ()

    @property
    def safe_offset(self) -> int:
        return self.next_offset


@pytest.mark.parametrize(("kind", "is_caught"), [(Progress, False), (CommitsWhatWasBegun, True)])
def test_a_commit_beyond_what_is_done_loses_records_in_a_crash(kind: type[Progress], is_caught: bool) -> None:
    """Records finish in any order, the consumer commits and dies at any moment, and its successor reads on from the commit."""
    lost = 0
    for seed in range(50):
        chance = random.Random(seed)
        done: set[int] = set()
        committed = 0
        while committed < 30:
            progress, begun = kind(committed), list[int]()
            for offset in range(committed, min(30, committed + 10)):
                progress.begin(offset)
                begun.append(offset)
            for offset in chance.sample(begun, chance.randrange(len(begun) + 1)):
                progress.finish(offset)
                done.add(offset)
            committed = max(committed, progress.safe_offset)  # and now it dies
        lost += 30 - len(done)
    assert (lost > 0) == is_caught
