"""Partitions with several replicas for tests: real logs on simulated disks, and ports that do what the test says."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tidelog.records.builder import BatchBuilder
from tidelog.records.validation import BatchRules
from tidelog.replication.assignment import Assignment
from tidelog.replication.isr import IsrAnswer, Proposal
from tidelog.replication.leader import ReplicaFetch, ReplicationSettings
from tidelog.replication.partition import Partition
from tidelog.storage.log import AppendResult
from tidelog.storage.log_config import LogConfig
from tidelog.storage.recovery import open_log
from tidelog.testing.sim.disk import SimDisk
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import EpochEndOffset, PartitionData

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
BROKERS = (1, 2, 3)
LAG_S = 10.0


class Timer:
    def __init__(self, due: float, callback: Callable[[], object]) -> None:
        self.due = due
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """A scheduler and a clock that move when told."""

    def __init__(self) -> None:
        self.now = 100.0
        self._soon: list[Callable[[], object]] = []
        self._timers: list[Timer] = []

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return NOW_MS

    def call_soon(self, callback: Callable[[], object], /) -> None:
        self._soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        timer = Timer(self.now + delay, callback)
        self._timers.append(timer)
        return timer

    def turn(self) -> None:
        while self._soon:
            self._soon.pop(0)()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due, self._timers = (
            [timer for timer in self._timers if timer.due <= self.now],
            [timer for timer in self._timers if timer.due > self.now],
        )
        for timer in due:
            if timer.callback is not None:
                timer.callback()
        self.turn()


class Peers:
    """Requests wait here until the test answers them."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Any, Callable[[Any], None]]] = []

    def ask(
        self, node_id: int, request: Any, answered: Callable[[Any], None], /, *, timeout_s: float
    ) -> None:
        self.asked.append((node_id, request, answered))

    def take(self) -> Any:
        return self.asked[0][1]

    def answer(self, response: Any) -> None:
        _, _, answered = self.asked.pop(0)
        answered(response)


class FlushQueue:
    def __init__(self) -> None:
        self.wanted: list[Partition] = []

    def request(self, partition: Partition, /) -> None:
        if partition not in self.wanted:
            self.wanted.append(partition)

    def run(self) -> None:
        wanted, self.wanted = self.wanted, []
        for partition in wanted:
            ticket = partition.log.begin_flush()
            if ticket is not None:
                ticket.run()
                partition.flushed(ticket)


class Proposals:
    def __init__(self) -> None:
        self.made: list[Proposal] = []

    def propose(self, partition: Partition, proposal: Proposal, /) -> None:
        self.made.append(proposal)


class Brokers:
    def __init__(self) -> None:
        self.away: set[int] = set()

    def may_join(self, broker_id: int, broker_epoch: int, /) -> bool:
        return broker_id not in self.away


class Replica:
    """One broker's replica of the partition."""

    def __init__(
        self, broker_id: int = 1, *, durable: bool = False, min_isr: int = 1, disk: SimDisk | None = None
    ) -> None:
        self.disk = disk or SimDisk(Random(broker_id))
        self.queue = FlushQueue()
        self.proposals = Proposals()
        self.brokers = Brokers()
        self.now = 100.0
        log = open_log(self.disk, "/data/t-0", "t", 0, config=LogConfig(), now_ms=NOW_MS, topic_id=TOPIC_ID)
        self.partition = Partition(
            "t",
            0,
            TOPIC_ID,
            log,
            broker_id=broker_id,
            rules=BatchRules(),
            durable=durable,
            flush_queue=self.queue,
            min_isr=min_isr,
            settings=ReplicationSettings(
                broker_epoch=lambda: 5, lag_seconds_max=LAG_S, proposals=self.proposals, brokers=self.brokers
            ),
        )
        self.log = log
        self.codes: list[ErrorCode] = []

    def assign(
        self, leader: int, epoch: int, isr: tuple[int, ...] = BROKERS, *, partition_epoch: int = 1
    ) -> None:
        self.partition.assign(Assignment(leader, epoch, partition_epoch, BROKERS, isr), now=self.now)

    def append(self, count: int = 1, *, acks_all: bool = False, **producer: int) -> AppendResult:
        builder = BatchBuilder(**producer)  # type: ignore[arg-type]
        for _ in range(count):
            builder.append(NOW_MS, None, b"v")
        return self.partition.append(builder.build(), now_ms=NOW_MS, produce_version=13, acks_all=acks_all)

    def wait_for(self, offset: int) -> None:
        self.partition.when_committed(offset, self.codes.append)

    def fetch(
        self,
        broker_id: int,
        offset: int,
        *,
        epoch: int | None = None,
        broker_epoch: int = 1,
        last_epoch: int = -1,
    ) -> Any:
        """A follower's fetch at an offset; where it diverges, if it does."""
        fetch = ReplicaFetch(
            broker_id,
            broker_epoch,
            self.partition.leader_epoch if epoch is None else epoch,
            offset,
            last_epoch,
            0,
        )
        diverging = self.partition.check_replica_fetch(fetch)
        if diverging is None:
            self.partition.replica_fetched(fetch, now=self.now)
        return diverging

    def accept(self, *, partition_epoch: int) -> None:
        proposal = self.proposals.made[-1]
        answer = IsrAnswer(ErrorCode.NONE, proposal.leader_epoch, partition_epoch, proposal.broker_ids)
        self.partition.isr_answered(proposal, answer, now=self.now)

    def answer_to(self, follower: Replica) -> PartitionData:
        """What this leader answers to that follower's fetch."""
        role = follower.partition.follower
        assert role is not None
        offset, last_epoch, _ = role.position()
        diverging = self.fetch(follower.partition.broker_id, offset, epoch=role.epoch, last_epoch=last_epoch)
        if diverging is not None:
            return PartitionData(diverging_epoch=EpochEndOffset(*diverging))
        found = self.log.read(offset, 1 << 20, end_offset=self.log.log_end_offset)
        data = PartitionData(
            high_watermark=self.log.high_watermark, log_start_offset=self.log.log_start_offset
        )
        if found.range is not None:
            data.records = found.range.read()
            found.range.release()
        return data

    def follow(self, leader: Replica) -> None:
        """One fetch and its answer."""
        assert self.partition.follower is not None
        self.partition.apply_fetched(self.partition.follower, leader.answer_to(self), now_ms=NOW_MS)

    @property
    def ends(self) -> tuple[int, int]:
        return self.log.high_watermark, self.log.log_end_offset
