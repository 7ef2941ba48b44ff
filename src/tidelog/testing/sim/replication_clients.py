"""Producers and readers of the simulated partition. They believe what brokers tell them, retry what fails, and report what they were told."""

from __future__ import annotations

from random import Random
from typing import Final

from tidelog.records.batch import iter_headers, read_header
from tidelog.records.builder import BatchBuilder
from tidelog.replication.assignment import NO_LEADER
from tidelog.testing.sim.events import EventHeap, Process
from tidelog.testing.sim.replication_ledger import Batch, Ledger
from tidelog.testing.sim.replication_messages import (
    Latest,
    LatestAnswer,
    Leads,
    Produce,
    Produced,
    Read,
    ReadAnswer,
    WhoLeads,
)
from tidelog.testing.sim.replication_network import Network, NetworkPeers
from tidelog.testing.sim.storage_checks import Violation
from tidelog.wire.error_codes import ErrorCode

TIMEOUT_S: Final = 2.0
_LOST_COUNT: Final = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH)


class _Client:
    """Knows whom it believes to lead."""

    def __init__(
        self,
        own_id: int,
        network: Network,
        heap: EventHeap,
        rng: Random,
        ledger: Ledger,
        brokers: tuple[int, ...],
    ) -> None:
        self.process = Process(heap)
        self.rng = rng
        self.ledger = ledger
        self.brokers = brokers
        self.leader = brokers[0]
        self.peers = NetworkPeers(network, own_id, self.process)

    def find_leader(self) -> None:
        def answered(answer: Leads | None) -> None:
            if answer is not None and answer.leader != NO_LEADER:
                self.leader = answer.leader

        self.peers.ask(self.rng.choice(self.brokers), WhoLeads(), answered, timeout_s=0.5)


class SimProducer(_Client):
    """One batch at a time, again and again until it is stored. Without idempotence each attempt is another batch."""

    def __init__(
        self,
        own_id: int,
        network: Network,
        heap: EventHeap,
        rng: Random,
        ledger: Ledger,
        brokers: tuple[int, ...],
        *,
        acks_all: bool,
        idempotent: bool,
        pause_s: float,
    ) -> None:
        super().__init__(own_id, network, heap, rng, ledger, brokers)
        self._own_id = own_id
        self._acks_all = acks_all
        self._idempotent = idempotent
        self._pause_s = pause_s
        self._producer_id = own_id * 1000
        self._sequence = 0
        self._sent = 0
        self._batch = b""
        self.acked = 0
        self.attempts = 0
        self.stopped = False
        self.process.call_later(rng.random() * pause_s, self._next)

    @property
    def is_idle(self) -> bool:
        return not self._batch

    def _next(self) -> None:
        if not self.stopped:
            self._build(1 + self.rng.randrange(3))
            self._send()

    def _build(self, records: int) -> None:
        self._sent += 1
        builder = BatchBuilder(
            producer_id=self._producer_id if self._idempotent else -1,
            producer_epoch=0 if self._idempotent else -1,
            base_sequence=self._sequence if self._idempotent else -1,
        )
        for number in range(records):
            value = f"{self._own_id}/{self._sent}.{number}".encode()
            builder.append(self.process.wall_ms(), b"k", value.ljust(20 + self.rng.randrange(60), b"."))
        self._batch = builder.build()
        self._records = records

    def _send(self) -> None:
        self.attempts += 1
        self.peers.ask(self.leader, Produce(self._batch, self._acks_all), self._answered, timeout_s=TIMEOUT_S)

    def _answered(self, answer: Produced | None) -> None:
        if answer is not None and answer.error == ErrorCode.NONE:
            self._stored(answer)
        elif answer is not None and answer.error in _LOST_COUNT:
            self._start_over(answer)
        else:
            self.find_leader()
            self.process.call_later(0.05 + self.rng.random() * 0.2, self._again)

    def _again(self) -> None:
        if self.stopped and not self._idempotent:
            self._batch = b""
            return
        if not self._idempotent:
            self._build(self._records)
        self._send()

    def _stored(self, answer: Produced) -> None:
        header = read_header(self._batch)
        told = Batch.of(header)._replace(
            base_offset=answer.offset,
            last_offset=answer.offset + self._records - 1,
            leader_epoch=answer.leader_epoch,
        )
        self.acked += 1
        self.ledger.produced(told, acks_all=self._acks_all)
        self._sequence += self._records
        self._batch = b""
        self.process.call_later(self.rng.random() * self._pause_s, self._next)

    def _start_over(self, answer: Produced) -> None:
        """What was acknowledged with acks=1 is gone, and its sequence numbers with it. With acks=all that must never be."""
        current = self.ledger.controller.assignment.leader_epoch
        if self._acks_all and answer.leader_epoch < current:
            # A leader of the past that does not know it: it has not seen what was sent to others since.
            self.find_leader()
            self.process.call_later(0.1, self._again)
            return
        if self._acks_all:
            raise Violation(
                "SequencesAreKept",
                f"producer {self._own_id} at {self._sequence} was told {answer.error.name}",
            )
        self._producer_id += 1
        self._sequence = 0
        self._build(self._records)
        self._send()


class SimReader(_Client):
    """Reads from the beginning to the end, then begins again: what it reads must stay what it is. Also asks where the end is."""

    def __init__(
        self,
        own_id: int,
        network: Network,
        heap: EventHeap,
        rng: Random,
        ledger: Ledger,
        brokers: tuple[int, ...],
        *,
        from_followers: bool,
        pause_s: float,
    ) -> None:
        super().__init__(own_id, network, heap, rng, ledger, brokers)
        self._from_followers = from_followers
        self._pause_s = pause_s
        self.offset = 0
        self._furthest = 0
        self.settled = False  # told to read to the end and stay there
        self.process.call_later(rng.random(), self._next)
        self.process.call_later(rng.random(), self._ask_latest)

    def has_been_at(self, offset: int) -> bool:
        return self._furthest >= offset

    def _next(self) -> None:
        source = self.rng.choice(self.brokers) if self._from_followers else self.leader
        self.peers.ask(source, Read(self.offset), self._answered, timeout_s=TIMEOUT_S)

    def _answered(self, answer: ReadAnswer | None) -> None:
        if answer is None or answer.error != ErrorCode.NONE:
            self.find_leader()
            if answer is not None and answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.offset = 0
            self.process.call_later(0.1 + self.rng.random() * 0.2, self._next)
            return
        self.ledger.watermark_told(answer.leader_epoch, answer.high_watermark)
        before = self.offset
        for _, header in iter_headers(answer.records):
            batch = Batch.of(header)
            self.ledger.was_read(batch)
            self.offset = batch.last_offset + 1
        self._furthest = max(self._furthest, self.offset)
        if self.offset == before and not self.settled and self.rng.random() < 0.05:
            self.offset = 0
        self.process.call_later(0.015 if self.settled else self.rng.random() * self._pause_s, self._next)

    def _ask_latest(self) -> None:
        """Of whoever may lead: only answers of leaders count, and what was told before the question was asked."""
        told = dict(self.ledger.exposed)

        def answered(answer: LatestAnswer | None) -> None:
            if answer is not None and answer.error == ErrorCode.NONE:
                before = [offset for epoch, offset in told.items() if epoch <= answer.leader_epoch]
                self.ledger.latest_told(answer.leader_epoch, answer.offset, max(before, default=0))

        self.peers.ask(self.rng.choice(self.brokers), Latest(), answered, timeout_s=TIMEOUT_S)
        self.process.call_later(0.3 + self.rng.random(), self._ask_latest)
