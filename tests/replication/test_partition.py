"""A partition that leads: what is committed when, and who hears of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import RequestError
from tidelog.records.builder import BatchBuilder
from tidelog.records.validation import BatchRules
from tidelog.replication.assignment import Assignment
from tidelog.replication.partition import Partition
from tidelog.storage.log_config import LogConfig
from tidelog.storage.recovery import open_log
from tidelog.testing.sim.disk import SimDisk
from tidelog.wire.error_codes import ErrorCode

NOW_MS = 1_700_000_000_000


class FlushQueue:
    """A group commit that syncs when the test says so."""

    def __init__(self) -> None:
        self.wanted: dict[Partition, None] = {}

    def request(self, partition: Partition, /) -> None:
        self.wanted[partition] = None

    def run(self) -> None:
        wanted, self.wanted = self.wanted, {}
        for partition in wanted:
            ticket = partition.log.begin_flush()
            if ticket is not None:
                ticket.run()
                partition.flushed(ticket)


class Watcher:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


class World:
    def __init__(self, *, durable: bool, disk: SimDisk | None = None, leader_epoch: int = 0) -> None:
        self.disk = disk or SimDisk(random.Random(1))
        self.queue = FlushQueue()
        log = open_log(
            self.disk, "/data/t-0", "t", 0, config=LogConfig(), now_ms=NOW_MS, topic_id=bytes(range(16))
        )
        self.partition = Partition(
            "t",
            0,
            log.topic_id,
            log,
            broker_id=1,
            rules=BatchRules(),
            durable=durable,
            flush_queue=self.queue,
        )
        self.lead_in_epoch(leader_epoch)
        self.queue.run()
        self.codes: list[tuple[int, ErrorCode]] = []

    def lead_in_epoch(self, leader_epoch: int) -> None:
        self.partition.assign(Assignment.alone(1, leader_epoch))

    def append(self, count: int = 1, **settings: int) -> int:
        """The last offset of the batch."""
        builder = BatchBuilder(**settings)  # type: ignore[arg-type]
        for _ in range(count):
            builder.append(NOW_MS, None, b"v")
        return self.partition.append(builder.build(), now_ms=NOW_MS, produce_version=13).last_offset

    def wait_for(self, offset: int) -> None:
        self.partition.when_committed(offset, lambda code: self.codes.append((offset, code)))

    @property
    def high_watermark(self) -> int:
        return self.partition.log.high_watermark


def test_written_is_committed_when_replicated() -> None:
    world = World(durable=False)
    assert world.partition.is_committed(world.append(3))
    assert (world.high_watermark, world.queue.wanted) == (3, {})


def test_only_synced_is_committed_when_durable() -> None:
    world = World(durable=True)
    last = world.append(3)
    world.wait_for(last)
    assert (world.high_watermark, world.partition.is_committed(last), world.codes) == (0, False, [])
    world.queue.run()
    assert (world.high_watermark, world.codes) == (3, [(2, ErrorCode.NONE)])
    world.wait_for(last)
    assert world.codes[1:] == [(2, ErrorCode.NONE)], "known already"


def test_what_is_appended_during_a_sync_waits_for_the_next() -> None:
    world = World(durable=True)
    world.wait_for(world.append())
    ticket = world.partition.log.begin_flush()
    assert ticket is not None
    world.wait_for(world.append())
    ticket.run()
    world.partition.flushed(ticket)
    assert (world.high_watermark, [offset for offset, _ in world.codes]) == (1, [0])
    world.queue.run()
    assert (world.high_watermark, [offset for offset, _ in world.codes]) == (2, [0, 1])


def test_a_duplicate_waits_like_its_original() -> None:
    world = World(durable=True)
    numbered = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    world.append(**numbered)
    duplicate = world.append(**numbered)
    assert (duplicate, world.partition.is_committed(duplicate)) == (0, False)
    world.wait_for(duplicate)
    world.queue.run()
    assert world.codes == [(0, ErrorCode.NONE)]


def test_a_duplicate_of_a_committed_batch_is_committed() -> None:
    world = World(durable=False)
    numbered = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    world.append(**numbered)
    world.append()
    assert world.partition.is_committed(world.append(**numbered))
    assert world.high_watermark == 2


def test_watchers_are_woken_by_what_they_can_read() -> None:
    world, watcher = World(durable=True), Watcher()
    world.partition.watch(watcher)
    world.append()
    assert watcher.woken == 0, "written, not readable"
    world.queue.run()
    assert watcher.woken == 1
    world.partition.unwatch(watcher)
    world.append()
    world.queue.run()
    assert watcher.woken == 1
    world.partition.unwatch(watcher)


def test_durability_turned_off_commits_what_is_written() -> None:
    world = World(durable=True)
    world.wait_for(world.append())
    world.partition.set_durable(False)
    assert (world.high_watermark, world.codes) == (1, [(0, ErrorCode.NONE)])


def test_durability_turned_on_asks_for_a_sync() -> None:
    world = World(durable=False)
    world.append()
    world.partition.set_durable(True)
    world.queue.run()
    assert world.partition.log.recovery_point == 1
    assert not world.partition.is_committed(world.append())


def test_a_stopped_partition_tells_everybody() -> None:
    world, watcher = World(durable=True), Watcher()
    world.partition.watch(watcher)
    world.wait_for(world.append())
    world.partition.stop(ErrorCode.KAFKA_STORAGE_ERROR)
    world.wait_for(0)
    assert world.codes == [(0, ErrorCode.KAFKA_STORAGE_ERROR)] * 2
    assert watcher.woken == 1
    for refused in (
        world.append,
        lambda: world.partition.delete_records(0),
        lambda: world.partition.check_leader_epoch(-1),
    ):
        with pytest.raises(RequestError) as caught:
            refused()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_sync_that_ends_after_the_partition_stopped_commits_nothing() -> None:
    world = World(durable=True)
    world.wait_for(world.append())
    ticket = world.partition.log.begin_flush()
    assert ticket is not None
    world.partition.stop(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ticket.run()
    world.partition.flushed(ticket)
    assert world.high_watermark == 0
    assert world.codes == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


def test_leader_epochs() -> None:
    world = World(durable=False, leader_epoch=5)
    world.partition.check_leader_epoch(-1)
    world.partition.check_leader_epoch(5)
    for epoch, expected in ((4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(RequestError) as caught:
            world.partition.check_leader_epoch(epoch)
        assert caught.value.code == expected
    world.append(2)
    world.lead_in_epoch(7)
    world.lead_in_epoch(6)
    assert world.partition.leader_epoch == 7, "never backwards"
    world.append()
    assert world.partition.log.end_offset_for_epoch(5) == (5, 2)
    assert world.partition.log.end_offset_for_epoch(7) == (7, 3)


def test_deleting_records_stops_at_the_high_watermark() -> None:
    world, watcher = World(durable=True), Watcher()
    world.append(3)
    world.queue.run()
    world.append(2)
    world.partition.watch(watcher)
    assert world.partition.delete_records(2) == 2
    assert watcher.woken == 1, "whoever stands below must hear of it"
    for offset in (4, -2):
        with pytest.raises(RequestError) as caught:
            world.partition.delete_records(offset)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert world.partition.delete_records(-1) == 3


def test_what_recovery_found_is_committed_once_it_is_durable() -> None:
    """After a crash the log may hold what was never synced: readers see it only then, or it could vanish again (I26)."""
    first = World(durable=True)
    first.append(2)
    first.queue.run()
    first.append()
    again = World(durable=True, disk=first.disk.crash("keep_all"))
    assert (again.partition.log.log_end_offset, again.high_watermark) == (3, 3)


def test_transactional_batches_are_refused() -> None:
    world = World(durable=False)
    with pytest.raises(RequestError) as caught:
        world.append(is_transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    assert caught.value.code == ErrorCode.INVALID_TXN_STATE
    assert world.partition.log.log_end_offset == 0


@given(st.lists(st.sampled_from(["append", "sync", "begin", "end", "durable", "fast"]), max_size=30))
def test_the_watermark_is_never_wrong(steps: list[str]) -> None:
    """Whatever the order: it only rises, stays within the log, counts nothing unsynced while durable, and releases
    exactly those who wait below it, in order.
    """
    world = World(durable=True)
    log, ticket, before, promised = world.partition.log, None, 0, 0
    for step in steps:
        if step == "append":
            world.wait_for(world.append(2))
        elif step == "sync" and ticket is None:
            world.queue.run()
        elif step == "begin" and ticket is None:
            ticket = log.begin_flush()
        elif step == "end" and ticket is not None:
            ticket.run()
            world.partition.flushed(ticket)
            ticket = None
        elif step in ("durable", "fast"):
            world.partition.set_durable(step == "durable")
        if not world.partition.durable:
            promised = log.log_end_offset
        promised = max(promised, log.recovery_point if world.partition.durable else promised)
        assert before <= world.high_watermark <= log.log_end_offset
        assert world.high_watermark <= promised
        before = world.high_watermark
        released = [offset for offset, _ in world.codes]
        assert released == list(range(1, world.high_watermark, 2))


def test_flush_messages_asks_for_a_sync_in_time() -> None:
    world = World(durable=False)
    world.partition.log.update_config(LogConfig(flush_messages=5))
    world.append(4)
    assert world.queue.wanted == {}
    world.append(1)
    assert list(world.queue.wanted) == [world.partition]
    world.queue.run()
    assert world.partition.log.recovery_point == 5
