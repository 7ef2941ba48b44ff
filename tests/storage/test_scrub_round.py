"""Every sealed segment gets its turn, restarts or not, at little cost and no faster than allowed."""

from __future__ import annotations

import json
import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.log_world import NOW_MS, append, make_batch
from tidelog.errors import CorruptDataError
from tidelog.storage import files
from tidelog.storage.log_config import LogConfig
from tidelog.storage.log_manager import LogManager
from tidelog.storage.recovery_report import Damage
from tidelog.storage.scrub_round import Round, Target
from tidelog.storage.throttle import Throttle
from tidelog.testing.sim.clock import SimClock
from tidelog.testing.sim.disk import SimDisk

WEEK_MS = 7 * 86_400_000
CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=100, file_delete_delay_ms=0)


def manager_with(partitions: int, batches: int) -> LogManager:
    manager = LogManager(SimDisk(Random(1)), SimClock(), Random(1), ["/d0"], node_id=0)
    manager.open()
    for partition in range(partitions):
        log = manager.create("orders", partition, bytes([1 + partition]) * 16, CONFIG)
        for _ in range(batches):
            append(log, make_batch(value=bytes(100)))
        log.flush()
        log.set_high_watermark(log.log_end_offset)
    return manager


def sealed(manager: LogManager) -> list[tuple[int, int]]:
    return [
        (partition, segment.base_offset)
        for (_, partition), log in sorted(manager.logs.items())
        for segment in log.segments[:-1]
    ]


def turns(
    each: Round, manager: LogManager, *, now_ms: int = NOW_MS, count: int = 1_000_000
) -> list[tuple[int, int]]:
    """Whose turn it is, one after the other, until the round is over."""
    found = []
    for _ in range(100_000):
        target = each.next(manager, now_ms=now_ms, interval_ms=WEEK_MS)
        if target is None:
            if each.is_idle:
                break
            continue
        assert each.next(manager, now_ms=now_ms, interval_ms=WEEK_MS) == target, (
            "its turn until it is finished"
        )
        each.finished(target)
        found.append((target.key[1], target.facts.base_offset))
        if len(found) == count:
            break
    return found


def test_a_round_passes_every_sealed_segment_once_and_the_next_begins_after_the_interval() -> None:
    manager = manager_with(5, 12)
    each = Round("/d0")
    assert len(sealed(manager)) > 20
    assert turns(each, manager) == sealed(manager)
    assert (each.is_idle, each.rounds) == (True, 1)
    assert turns(each, manager, now_ms=NOW_MS + WEEK_MS - 1) == []
    assert turns(each, manager, now_ms=NOW_MS + WEEK_MS) == sealed(manager)


def test_a_wall_clock_that_is_put_back_does_not_stop_the_rounds() -> None:
    manager = manager_with(1, 12)
    each = Round("/d0")
    turns(each, manager, now_ms=NOW_MS + 10 * WEEK_MS)
    assert turns(each, manager, now_ms=NOW_MS) == []
    assert turns(each, manager, now_ms=NOW_MS + WEEK_MS) == sealed(manager)


def test_what_is_not_durable_or_not_sealed_is_left_alone() -> None:
    manager = manager_with(1, 12)
    log = manager.logs["orders", 0]
    before = sealed(manager)
    for _ in range(9):
        append(log, make_batch(value=bytes(100)))
    assert len(sealed(manager)) > len(before) + 2
    durable = [turn for turn in sealed(manager) if turn[1] < log.recovery_point]
    assert turns(Round("/d0"), manager) == durable != sealed(manager)
    log.flush()
    assert turns(Round("/d0"), manager) == sealed(manager)


def test_another_directory_is_another_round() -> None:
    assert turns(Round("/d1"), manager_with(2, 12)) == []


def test_deletions_on_the_way_lose_nobody_a_turn() -> None:
    manager = manager_with(4, 12)
    each = Round("/d0")
    everything = sealed(manager)
    seen = turns(each, manager, count=2)
    first = manager.logs["orders", 0]
    first.advance_log_start_offset(first.segments[3].base_offset)
    first.apply_retention(NOW_MS)  # the last one checked is gone, and one that was not
    manager.delete("orders", 2)
    rest = turns(each, manager)
    gone = {everything[2]} | {turn for turn in everything if turn[0] == 2}
    assert seen + rest == [turn for turn in everything if turn not in gone]


def target_in(manager: LogManager) -> Target:
    target = Round("/d0").next(manager, now_ms=NOW_MS, interval_ms=WEEK_MS)
    assert target is not None
    return target


def test_a_target_knows_when_it_is_gone() -> None:
    manager = manager_with(1, 12)
    log = manager.logs["orders", 0]
    assert target_in(manager).is_there(manager)
    target = target_in(manager)
    append(log)
    assert target.is_there(manager), "what is appended does not matter"
    log.truncate_to(log.segments[2].base_offset + 1)
    assert not target.is_there(manager), "anything may have been replaced"
    target = target_in(manager)
    log.flush()
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start_offset(log.segments[1].base_offset)
    assert target.is_there(manager)
    log.apply_retention(NOW_MS)
    assert not target.is_there(manager)
    target = target_in(manager)
    manager.fail_dir("/d0", OSError())
    assert not target.is_there(manager)


# ---- restarts

DAMAGE = Damage("/d0/orders-2/00000000000000000004.log", 100, 50, 4, 6, 'it says "no"')


def test_a_restart_goes_on_where_the_round_was_and_knows_what_was_found() -> None:
    manager = manager_with(4, 12)
    everything = sealed(manager)
    for count in range(1, len(everything)):
        each = Round("/d0")
        seen = turns(each, manager, count=count)
        again = Round("/d0")
        known = again.load(each.encoded([(("orders", 2), 4, DAMAGE)]), "checkpoint")
        assert known == {(("orders", 2), 4): (DAMAGE,)}
        assert seen + turns(again, manager, now_ms=NOW_MS + 5) == everything
        assert again.began_ms == NOW_MS, "one round, not two halves"


def test_a_restart_between_two_rounds_waits_for_the_next() -> None:
    manager = manager_with(2, 12)
    each = Round("/d0")
    turns(each, manager)
    again = Round("/d0")
    again.load(each.encoded([]), "checkpoint")
    assert turns(again, manager, now_ms=NOW_MS + WEEK_MS - 1) == []
    assert turns(again, manager, now_ms=NOW_MS + WEEK_MS) == sealed(manager)


def test_a_restart_without_the_partition_at_hand_goes_on_behind_it() -> None:
    manager = manager_with(3, 12)
    each = Round("/d0")
    turns(each, manager, count=len(manager.logs["orders", 0].segments))
    manager.delete("orders", 1)
    again = Round("/d0")
    again.load(each.encoded([]), "checkpoint")
    assert {partition for partition, _ in turns(again, manager)} == {2}


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_a_checkpoint_that_is_garbage_says_so(text: bytes) -> None:
    with pytest.raises(CorruptDataError, match="scrub-checkpoint"):
        Round("/d0").load(text, files.SCRUB_CHECKPOINT)


@pytest.mark.parametrize(
    "change", [{"version": 1}, {"position": [1]}, {"damages": [{}]}, {"damages": [{"topic": "../x"}]}]
)
def test_a_checkpoint_of_another_shape_says_so(change: dict[str, object]) -> None:
    content = json.loads(Round("/d0").encoded([])) | change
    with pytest.raises(CorruptDataError):
        Round("/d0").load(json.dumps(content).encode(), "checkpoint")


# ---- cost


def test_ten_thousand_partitions_cost_little_per_look() -> None:
    """Most have nothing to check. No look at them takes the loop long, and a round is through in a fraction of a second."""
    manager = manager_with(1, 1)
    log = manager.logs["orders", 0]
    manager.logs.update({("more", number): log for number in range(10_000)})
    each = Round("/d0")
    looks, slowest, began = 0, 0.0, time.process_time()
    while True:
        start = time.process_time()
        assert each.next(manager, now_ms=NOW_MS, interval_ms=WEEK_MS) is None
        if looks:  # the first one makes the list, once a round
            slowest = max(slowest, time.process_time() - start)
        looks += 1
        if each.is_idle:
            break
    assert looks >= 20
    assert slowest < 0.02
    assert time.process_time() - began < 1


# ---- pace


@given(
    spent=st.lists(st.integers(1, 1 << 20), min_size=1, max_size=50),
    rate=st.integers(1 << 10, 1 << 24),
    work_seconds=st.floats(0, 0.2),
)
def test_the_rate_is_kept_whatever_is_spent_at_once(spent: list[int], rate: int, work_seconds: float) -> None:
    clock, throttle = SimClock(), Throttle()
    began = clock.monotonic()
    for amount in spent:
        clock.advance(work_seconds * 1000)
        clock.advance(throttle.spend(amount, now=clock.monotonic(), per_second=rate) * 1000)
    seconds = clock.monotonic() - began
    burst = 0.25 * rate
    assert sum(spent) <= rate * seconds + burst + 1
    assert seconds <= max(sum(spent) / rate, work_seconds * len(spent)) + work_seconds * len(spent) + 0.001
