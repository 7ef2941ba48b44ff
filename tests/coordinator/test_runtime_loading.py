"""Coordinator partitions that come and go: loading from the log, leadership, and beginning again after a loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.coordinator.runtime_world import (
    NOBODYS,
    FakeJournal,
    StoredLog,
    TinyShard,
    World,
    get,
    park,
    put,
    reloaded,
)
from tidelog.coordinator import runtime
from tidelog.coordinator.outcome import CoordinatorRecord, Now, Outcome
from tidelog.records.batch import HEADER_SIZE
from tidelog.records.builder import BatchBuilder
from tidelog.records.compression import Codec
from tidelog.records.control import LeaderChange, build_leader_change
from tidelog.wire.error_codes import ErrorCode as E

PAUSE_MS = runtime.PAUSE_MS


def unled() -> World:
    return World(lead=False)


def lead(world: World, epoch: int = 0) -> None:
    world.runtime.become_leader(0, epoch, world.journal)


def steps_to_load(world: World) -> int:
    steps = 1
    while world.runtime.load_some(world.now):
        steps += 1
    return steps


# ---- loading


def test_the_state_is_what_the_log_says() -> None:
    log = StoredLog()
    log.write(("a", 1), ("b", 2))
    log.write(("a", 3), ("b", None), (NOBODYS, 7))
    assert reloaded(log).numbers == {"a": 3}


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_may_be_compressed(codec: Codec) -> None:
    log = StoredLog()
    log.write(*((f"name {number}", number) for number in range(100)), codec=codec)
    assert reloaded(log).numbers == {f"name {number}": number for number in range(100)}


def test_a_large_partition_is_loaded_in_small_steps_and_partitions_take_turns() -> None:
    world = unled()
    world.log.write(*((number, number) for number in range(5000)), codec=Codec.LZ4)
    lead(world)
    small = StoredLog()
    small.write(("a", 1))
    world.runtime.become_leader(1, 0, FakeJournal(small))
    world.runtime.load_some(world.now)
    world.runtime.load_some(world.now)
    assert world.runtime.load_some(world.now)
    assert world.runtime.load_some(world.now)
    assert world.runtime.shard(0) is None
    assert world.runtime.shard(1) is not None
    assert steps_to_load(world) > 5
    assert len(world.shard.numbers) == 5000


def test_the_log_is_read_in_bounded_chunks() -> None:
    world = World(lead=False, chunk_bytes=1000)
    for number in range(50):
        world.log.write((number, "x" * 100))
    world.log.write(("large", "x" * 5000))  # a batch that is larger than a chunk comes whole
    world.log.write(("last", 1))
    lead(world)
    world.load()
    assert len(world.shard.numbers) == 52
    assert len(world.journal.reads) > 5


def test_transactions_wait_for_their_markers() -> None:
    log = StoredLog()
    log.write(("a", 1), producer_id=7)
    log.write(("b", 1), producer_id=8)
    log.write(("c", 1), producer_id=9)
    log.mark(7, commit=True)
    log.mark(8, commit=False)
    shard = reloaded(log)
    assert shard.numbers == {"a": 1}
    assert shard.staged == {9: {"c": 1}}


def test_other_control_batches_are_skipped() -> None:
    log = StoredLog()
    log.write(("a", 1))
    log.add(build_leader_change(LeaderChange(1), leader_epoch=2, timestamp=0, base_offset=1))
    log.write(("b", 2))
    assert reloaded(log).numbers == {"a": 1, "b": 2}


def test_a_log_that_begins_in_the_middle_of_a_batch() -> None:
    log = StoredLog()
    log.write(("a", 1), ("b", 2), ("c", 3))
    log.start_offset = 1
    assert reloaded(log).numbers == {"b": 2, "c": 3}


def test_a_log_with_holes_where_compaction_was() -> None:
    log = StoredLog()
    for number in range(5):
        log.write((number, number))
    del log.batches[2]
    assert set(reloaded(log).numbers) == {0, 1, 3, 4}
    del log.batches[2:]  # nothing is left up to the end
    assert set(reloaded(log).numbers) == {0, 1}


def test_records_that_come_while_the_log_is_read_are_read_too() -> None:
    world = World(lead=False, chunk_bytes=1)
    world.log.write(("a", 1))
    lead(world)
    assert world.runtime.load_some(world.now)
    world.log.write(("b", 2))
    world.load()
    assert world.shard.numbers == {"a": 1, "b": 2}


def flip_a_bit(batch: bytes) -> bytes:
    return batch[:-1] + bytes((batch[-1] ^ 1,))


def another_value(batch: bytes) -> bytes:
    """Reads well, and says something that nobody wrote: only the CRC knows."""
    return batch[:-2] + bytes((batch[-2] ^ 2,)) + batch[-1:]


def without_a_key(batch: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(0, None, b"1")
    return builder.build()


def undecodable(batch: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(0, b"{", b"1")
    return builder.build()


@pytest.mark.parametrize(
    "spoil", [flip_a_bit, another_value, without_a_key, undecodable, lambda batch: batch[:-1], lambda batch: batch[:HEADER_SIZE // 2]]
)  # fmt: skip
def test_what_cannot_be_read_is_not_skipped(spoil: Callable[[bytes], bytes]) -> None:
    world = unled()
    world.log.write(("a", 1))
    good = world.log.batches[0]
    world.log.batches[0] = spoil(good)
    lead(world)
    world.load()
    assert world.runtime.shard(0) is None
    assert len(world.lost) == 1
    assert world.lost[0][1].startswith("CorruptDataError")
    assert world.ask(get("a")).answer is E.COORDINATOR_LOAD_IN_PROGRESS
    world.log.batches[0] = good  # somebody mended it
    world.pass_time(PAUSE_MS)
    world.load()
    assert world.shard.numbers == {"a": 1}


def test_a_mistake_in_replay_ends_the_load_and_is_heard_of_above() -> None:
    world = unled()
    world.log.write(("unreplayable", 1))
    lead(world)
    with pytest.raises(RuntimeError):
        world.load()
    assert not world.runtime.is_loading
    assert len(world.lost) == 1


def test_what_was_written_but_not_committed_before_the_load_is_told_to_nobody() -> None:
    world = unled()
    world.log.write(("a", 1))
    lead(world)
    world.load()
    read = world.ask(get("a"))
    assert read.answers == []
    world.journal.commit()
    assert read.answer == 1


def test_a_loaded_shard_may_have_something_to_write() -> None:
    world = unled()
    world.log.write(("member", 1))
    world.log.commit_all()

    def remove_member(shard: TinyShard, now: Now) -> Outcome:
        return Outcome([CoordinatorRecord("member", None)])

    def make(partition: int) -> TinyShard:
        shard = TinyShard(partition)
        shard.when_loaded = remove_member
        return shard

    world.make_shard = make
    lead(world)
    world.load()
    assert world.shard.numbers == {}
    read = world.ask(get("member"))
    assert read.answers == []
    world.journal.commit()
    assert read.answer is None
    assert reloaded(world.log).numbers == {}


# ---- leadership


def test_who_waits_is_sent_away_when_the_partition_is_led_elsewhere() -> None:
    world = World()
    waiting = [world.ask(put(("a", 1))), world.ask(get("a")), world.ask(park)]
    world.runtime.resign(0, 1)
    assert world.given == waiting
    assert {question.answer for question in waiting} == {E.NOT_COORDINATOR}
    assert world.ask(get("a")).answer is E.NOT_COORDINATOR
    world.journal.commit()  # late news of a shard that is gone
    assert len(world.given) == 4
    assert world.lost == []


def test_old_news_of_leadership_is_ignored() -> None:
    world = World()
    lead(world, epoch=5)
    world.runtime.resign(0, 4)
    assert world.ask(get("a")).answer is None
    world.runtime.resign(0, 6)
    lead(world, epoch=5)
    lead(world, epoch=6)
    assert world.ask(get("a")).answer is E.NOT_COORDINATOR
    lead(world, epoch=7)
    assert world.ask(get("a")).answer is E.COORDINATOR_LOAD_IN_PROGRESS


def test_a_new_epoch_without_a_break_keeps_the_shard() -> None:
    world = World()
    waiting, shard = world.ask(park), world.shard
    lead(world, epoch=3)
    assert world.shard is shard
    assert waiting.answers == []
    world.runtime.resign(0, 2)
    assert world.shard is shard


def test_leadership_that_comes_back_is_loaded_anew() -> None:
    world = World()
    waiting = world.ask(put(("a", 1)))
    world.log.truncate()
    world.log.write(("b", 2))  # another broker did
    world.log.commit_all()
    world.runtime.become_leader(0, 2, FakeJournal(world.log))
    assert waiting.answer is E.NOT_COORDINATOR
    world.load()
    assert world.shard.numbers == {"b": 2}


def test_a_partition_that_was_deleted_and_made_again_counts_its_epochs_anew() -> None:
    world = World()
    lead(world, epoch=9)
    world.runtime.resign(0)
    world.runtime.become_leader(0, 0, FakeJournal(StoredLog()))
    world.load()
    assert world.ask(get("a")).answer is None


def test_resigning_ends_a_load() -> None:
    world = unled()
    world.log.write(("a", 1))
    lead(world)
    world.runtime.resign(0, 0)
    assert not world.runtime.is_loading
    assert not world.runtime.load_some(world.now)
    assert world.ask(get("a")).answer is E.NOT_COORDINATOR


# ---- after a loss


def test_a_commit_that_fails_sends_everybody_away_and_the_log_decides_what_was_written() -> None:
    world = World()
    asked = [world.ask(put(("a", 1))), world.ask(park), world.ask(put(("a", 2)))]
    world.journal.fail(E.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert world.given == asked
    assert {question.answer for question in asked} == {E.NOT_COORDINATOR}
    assert world.lost[0][1] == (
        "what was written up to offset 0 was not committed: NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    )
    assert world.ask(get("a")).answer is E.COORDINATOR_LOAD_IN_PROGRESS
    world.journal.commit()
    world.pass_time(PAUSE_MS)
    world.load()
    assert world.ask(get("a")).answer == 2


def test_there_is_a_pause_before_the_next_load_and_it_grows() -> None:
    world = unled()
    world.log.write(("a", 1))
    world.log.batches[0] = flip_a_bit(world.log.batches[0])
    lead(world)
    world.load()
    pauses, loads = [], []
    for _ in range(8):
        due = world.runtime.next_deadline_ms()
        assert due is not None
        pauses.append(due - world.ms)
        world.pass_time(due - world.ms - 1)
        loads.append(world.runtime.is_loading)
        world.pass_time(1)
        loads.append(world.runtime.is_loading)
        assert world.runtime.next_deadline_ms() is None
        world.load()
    assert loads == [False, True] * 8
    assert pauses == [1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]


def test_a_log_that_commits_again_is_trusted_again() -> None:
    world = unled()
    world.log.write(("of before", 1))
    world.log.commit_all()
    lead(world)
    world.load()
    for pause in (1000, 2000, 4000):
        world.refuse_next(E.KAFKA_STORAGE_ERROR)
        world.ask(put(("a", 1)))
        assert world.runtime.next_deadline_ms() == world.ms + pause
        world.pass_time(pause)
        world.load()
    world.ask(put(("a", 1)))
    world.journal.commit()
    world.refuse_next(E.KAFKA_STORAGE_ERROR)
    world.ask(put(("a", 2)))
    assert world.runtime.next_deadline_ms() == world.ms + 1000


def test_a_shard_that_is_lost_has_no_deadlines() -> None:
    world = World()
    shard = world.shard
    shard.timers.schedule("session", world.ms + 10, lambda now: pytest.fail("of a shard that is gone"))
    world.ask(put(("a", 1)))
    world.journal.fail(E.KAFKA_STORAGE_ERROR)
    assert world.runtime.next_deadline_ms() == world.ms + PAUSE_MS
    world.pass_time(100)


def test_a_shard_that_fails_as_soon_as_it_is_loaded_pauses_too() -> None:
    world = unled()

    def make(partition: int) -> TinyShard:
        shard = TinyShard(partition)
        shard.when_loaded = lambda shard, now: Outcome([CoordinatorRecord("a", 1)])
        return shard

    world.make_shard = make
    world.refuse_next(E.MESSAGE_TOO_LARGE)
    lead(world)
    world.load()
    assert world.runtime.next_deadline_ms() == world.ms + PAUSE_MS
    world.pass_time(PAUSE_MS)
    world.load()
    assert world.shard.numbers == {"a": 1}
