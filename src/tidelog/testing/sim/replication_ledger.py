"""What has happened to the simulated partition, seen from outside: every replica's log as it grew, what was committed, told and read.

Looks at a broker after each of its steps and tells the invariants what is new. It never asks the product what is right: a batch is committed
when a leader has said so, by its high watermark, and from then on it is held against everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tidelog.errors import CorruptDataError
from tidelog.records.batch import BatchHeader, iter_headers
from tidelog.replication.assignment import Assignment
from tidelog.replication.leader import Leader, ReplicaFetch
from tidelog.replication.partition import Partition
from tidelog.storage.log import Log
from tidelog.testing.sim.events import EventHeap, Process
from tidelog.testing.sim.replication_checks import Invariant
from tidelog.testing.sim.storage_checks import Violation


class ObservedBroker(Protocol):
    """One run of a broker, as far as one partition goes."""

    on_counted: Callable[[ReplicaFetch], None]

    @property
    def broker_id(self) -> int: ...

    @property
    def incarnation(self) -> Any: ...

    @property
    def process(self) -> Process: ...

    @property
    def broker_epoch(self) -> int: ...

    @property
    def log(self) -> Log: ...

    @property
    def partition(self) -> Partition: ...


class Registered(Protocol):
    @property
    def incarnation(self) -> Any: ...

    @property
    def broker_epoch(self) -> int: ...


class State(Protocol):
    """How a partition stands, as the controller has decided it."""

    @property
    def assignment(self) -> Assignment: ...

    @property
    def elr(self) -> tuple[int, ...]: ...


class Truth(State, Protocol):
    """The controller's view of one partition, up to this moment: of the simulation's own one, or of what the quorum has committed."""

    @property
    def heap(self) -> EventHeap: ...

    @property
    def effective_min(self) -> int: ...

    @property
    def isr_of(self) -> Mapping[int, tuple[int, ...]]:
        """By partition epoch."""
        ...

    @property
    def registrations(self) -> Mapping[int, Registered]: ...


class Batch(NamedTuple):
    """A batch as it stands in a log: where, and what it is."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    producer_id: int
    producer_epoch: int
    sequence: int

    @staticmethod
    def of(header: BatchHeader) -> Batch:
        return Batch(
            header.base_offset,
            header.last_offset,
            header.partition_leader_epoch,
            header.crc,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
        )


@dataclass(slots=True)
class Replica:
    """One run of a broker, as it was after its last step."""

    broker: ObservedBroker
    batches: list[Batch] = field(default_factory=list)
    truncations: int = 0
    high_watermark: int = 0
    leader: Leader | None = None
    partition_epoch: int = -1
    """That the leader went by."""
    kept: int | None = None
    """When it ended: up to where its log had to be there again. None: nobody can tell, its disk is gone."""

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    @property
    def is_registered(self) -> bool:
        return self.broker.process.alive and self.broker.broker_epoch >= 0


class Ledger:
    def __init__(self, controller: Truth, invariants: list[Invariant]) -> None:
        self.controller = controller
        self.invariants = invariants
        self.replicas: dict[int, Replica] = {}
        self.committed: list[Batch] = []
        self.by_offset: dict[int, Batch] = {}
        self.exposed: dict[int, int] = {}
        """Leader epoch -> the highest watermark that a client was told of in it."""
        self.acked = 0
        self.read = 0
        for invariant in invariants:
            invariant.ledger = self
        self._hears = {
            name: [each for each in invariants if getattr(type(each), name) is not getattr(Invariant, name)]
            for name in vars(Invariant)
            if not name.startswith("_")
        }
        """Who wants to hear of what: steps are many, and most are of interest to few."""

    @property
    def committed_end(self) -> int:
        return self.committed[-1].last_offset + 1 if self.committed else 0

    @property
    def now(self) -> float:
        return self.controller.heap.now

    # ---- brokers

    def started(self, broker: ObservedBroker) -> None:
        """Whatever its disk has kept is where this run begins."""
        log, leader = broker.log, broker.partition.leader
        is_alone = leader is not None and not leader.remotes
        replica = Replica(
            broker,
            truncations=log.truncation_count,
            high_watermark=0 if is_alone else log.high_watermark,  # who is alone has committed it just now
        )
        self._read_on(replica)
        before = self.replicas.get(broker.broker_id)
        self.replicas[broker.broker_id] = replica
        broker.on_counted = lambda fetch: self._counted(replica, fetch)
        for invariant in self._hears["opened"]:
            invariant.opened(replica, before)

    def _counted(self, replica: Replica, fetch: ReplicaFetch) -> None:
        for invariant in self._hears["fetch_counted"]:
            invariant.fetch_counted(replica, fetch)

    def look_at(self, broker: ObservedBroker) -> None:
        """After a step of this broker."""
        replica, log = self.replicas[broker.broker_id], broker.log
        if log.truncation_count != replica.truncations:
            replica.truncations = log.truncation_count
            self._truncated(replica)
        if log.log_end_offset > replica.end_offset:
            before = len(replica.batches)
            self._read_on(replica)
            for invariant in self._hears["appended"]:
                invariant.appended(replica, before)
        leader = broker.partition.leader
        if leader is None and replica.leader is not None:
            self._look_at_watermark(replica)  # it moved while this one still led
        if leader is not replica.leader:
            replica.leader = leader
            if leader is not None:
                for invariant in self._hears["began_to_lead"]:
                    invariant.began_to_lead(replica)
        self._look_at_watermark(replica)
        replica.partition_epoch = -1 if replica.leader is None else replica.leader.isr.partition_epoch
        for invariant in self._hears["stepped"]:
            invariant.stepped(replica)

    def _look_at_watermark(self, replica: Replica) -> None:
        log = replica.broker.log
        if log.high_watermark != replica.high_watermark:
            before, replica.high_watermark = replica.high_watermark, log.high_watermark
            self._watermark_moved(replica, before)

    def _truncated(self, replica: Replica) -> None:
        removed = []
        end = replica.broker.log.log_end_offset
        while replica.batches and replica.batches[-1].last_offset >= end:
            removed.append(replica.batches.pop())
        for invariant in self._hears["truncated"]:
            invariant.truncated(replica, removed)

    def _read_on(self, replica: Replica) -> None:
        log = replica.broker.log
        offset = max(replica.end_offset, log.log_start_offset)
        while offset < log.log_end_offset:
            try:
                found = log.read(offset, 1 << 20, end_offset=log.log_end_offset)
            except CorruptDataError as error:
                raise Violation("LogsAreSound", f"broker {replica.broker.broker_id}: {error}") from error
            assert found.range is not None
            for _, header in iter_headers(found.range.read()):
                replica.batches.append(Batch.of(header))
            found.range.release()
            offset = replica.end_offset

    def _watermark_moved(self, replica: Replica, before: int) -> None:
        for invariant in self._hears["watermark_moved"]:
            invariant.watermark_moved(replica, before)
        if replica.leader is None:
            return
        number = len(replica.batches)
        while number and replica.batches[number - 1].base_offset >= self.committed_end:
            number -= 1
        for batch in replica.batches[number:]:
            if batch.last_offset >= replica.high_watermark:
                break
            self.committed.append(batch)
            self.by_offset[batch.base_offset] = batch
            for invariant in self._hears["was_committed"]:
                invariant.was_committed(replica, batch)

    # ---- others

    def image_changed(self, image: State) -> None:
        for invariant in self._hears["image_changed"]:
            invariant.image_changed(image)

    def produced(self, batch: Batch, *, acks_all: bool) -> None:
        """A producer was told that this batch stands there; of the batch it knows all but the epoch that it was written in."""
        self.acked += acks_all
        for invariant in self._hears["produced"]:
            invariant.produced(batch, acks_all=acks_all)

    def was_read(self, batch: Batch) -> None:
        self.read += 1
        for invariant in self._hears["was_read"]:
            invariant.was_read(batch)

    def watermark_told(self, leader_epoch: int, offset: int) -> None:
        self.exposed[leader_epoch] = max(offset, self.exposed.get(leader_epoch, 0))

    def latest_told(self, leader_epoch: int, offset: int, told_before: int) -> None:
        for invariant in self._hears["latest_told"]:
            invariant.latest_told(leader_epoch, offset, told_before)
        self.watermark_told(leader_epoch, offset)

    def ended(self) -> None:
        for invariant in self._hears["ended"]:
            invariant.ended()
