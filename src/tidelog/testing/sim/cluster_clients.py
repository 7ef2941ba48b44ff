"""Clients of a simulated cluster: what all of them have in common, and producers. They believe what brokers tell them, retry what fails, and write down what they were told."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from tidelog.controller.image import EMPTY_IMAGE, MetadataImage, PartitionImage
from tidelog.records.batch import read_header
from tidelog.records.builder import BatchBuilder
from tidelog.testing.history.operations import ACKS_ALL, Send
from tidelog.testing.sim.cluster_messages import (
    AskMetadata,
    InitProducer,
    Metadata,
    Produce,
    Produced,
    ProducerIds,
)
from tidelog.testing.sim.cluster_net import Lane
from tidelog.testing.sim.cluster_node import CLIENT
from tidelog.testing.sim.events import Process
from tidelog.testing.sim.replication_ledger import Batch
from tidelog.testing.sim.storage_checks import Violation
from tidelog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_world import ClusterWorld

TIMEOUT_S: Final = 2.5
_BURSTS: Final = 0.05
"""Per second."""
_LOST_COUNT: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)


class SimClient:
    """Knows what a broker last told it of the cluster."""

    def __init__(self, world: ClusterWorld, own_id: int) -> None:
        self.world = world
        self.own_id = own_id
        self.rng = Random(f"{world.seed}/client/{own_id}")
        self.process = Process(world.heap, is_watched=False)
        self.lane = Lane(world.network, own_id, self.process, CLIENT)
        self.image: MetadataImage = EMPTY_IMAGE
        self._is_asking = False

    @property
    def now(self) -> float:
        return self.world.heap.now

    def ask(self, node_id: int, request: Any, answered: Any, *, timeout_s: float = TIMEOUT_S) -> None:
        self.lane.ask(node_id, request, answered, timeout_s=timeout_s)

    def anybody(self) -> int:
        return self.rng.choice(self.world.shape.brokers)

    def refresh(self) -> None:
        """Ask somebody how things are. Older news than one has are of no use."""
        if self._is_asking:
            return
        self._is_asking = True

        def answered(answer: Metadata | None) -> None:
            self._is_asking = False
            if answer is not None and answer.image.offset > self.image.offset:
                self.image = answer.image

        self.ask(self.anybody(), AskMetadata(), answered, timeout_s=1.0)

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        return self.image.partition(topic, index)

    def leader_of(self, topic: str, index: int) -> int | None:
        found = self.partition(topic, index)
        return found.leader if found is not None and found.leader >= 0 else None

    def soon(self) -> float:
        return 0.1 + self.rng.random() * 0.4


class SimProducer(SimClient):
    """An idempotent producer: one batch at a time, sent again and again until it is stored. Now and then its application dies, and nobody knows what became of the batch."""

    def __init__(
        self,
        world: ClusterWorld,
        own_id: int,
        topic: str,
        partitions: int,
        *,
        acks_all: bool,
        recorded: bool = True,
    ) -> None:
        super().__init__(world, own_id)
        self.topic = topic
        self._partitions = partitions
        self._acks_all = acks_all
        self._recorded = recorded
        self._producer_id = -1
        self._sequences: dict[int, int] = {}
        self._number = 0
        self._batch: bytes | None = None
        self._index = 0
        self._records = 0
        self._burst = 0
        """Batches that follow without a pause."""
        self._sends: list[Send] = []
        self._values: list[str] = []
        self.acked = 0
        self.only: int | None = None
        """Write to this partition alone."""
        self.is_stopped = False
        self.process.call_later(self.rng.random(), self._next)

    @property
    def is_idle(self) -> bool:
        return self._batch is None

    def _next(self) -> None:
        if self.is_stopped:
            return
        if self._producer_id < 0:
            self._init()
            return
        self._index = self.rng.randrange(self._partitions) if self.only is None else self.only
        self._build(1 + self.rng.randrange(3))
        self._send()

    def _init(self) -> None:
        def answered(answer: ProducerIds | None) -> None:
            if answer is None or answer.error:
                self.process.call_later(self.soon(), self._init)
                return
            self._producer_id = answer.first
            self._sequences.clear()
            self.world.producer_ids_given(self.own_id, range(answer.first, answer.first + answer.size))
            if self._batch is not None:
                self._rebuild()
                self._send()
            else:
                self._next()

        self.ask(self.anybody(), InitProducer(), answered)

    def _build(self, records: int) -> None:
        history = self.world.history
        self._records = records
        self._values = []
        for _ in range(records):
            self._number += 1
            self._values.append(f"{self.own_id}/{self._number}")
        if self._recorded:
            self._sends = [
                history.send(
                    f"p{self.own_id}",
                    self.now,
                    self.topic,
                    self._index,
                    value,
                    acks=ACKS_ALL if self._acks_all else 1,
                )
                for value in self._values
            ]
        self._rebuild()

    def _rebuild(self) -> None:
        builder = BatchBuilder(
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=self._sequences.get(self._index, 0),
        )
        for value in self._values:
            builder.append(
                self.process.wall_ms(), b"k", value.encode().ljust(24 + self.rng.randrange(40), b".")
            )
        self._batch = builder.build()

    def _send(self) -> None:
        leader = self.leader_of(self.topic, self._index)
        if leader is None or self._batch is None:
            self.refresh()
            self.process.call_later(self.soon(), self._send_if_any)
            return
        request = Produce(self.topic, self._index, self._batch, self._acks_all)
        self.ask(leader, request, self._answered)

    def _send_if_any(self) -> None:
        if self._batch is not None:
            self._send()

    def _answered(self, answer: Produced | None) -> None:
        if answer is not None and answer.error == ErrorCode.NONE:
            self._stored(answer)
        elif answer is not None and answer.error in _LOST_COUNT:
            self._start_over(answer)
        elif self.world.may_die and self.rng.random() < 0.03:
            self._die()
        else:
            self.refresh()
            self.process.call_later(self.soon(), self._send_if_any)

    def _die(self) -> None:
        """Another one takes its place, and knows nothing of it."""
        self.world.sometimes("producer died")
        for send in self._sends:
            self.world.history.unknown(send, self.now)
        self._batch = None
        self._sends = []
        self._producer_id = -1
        self.process.call_later(self.soon(), self._next)

    def _stored(self, answer: Produced) -> None:
        assert self._batch is not None
        told = Batch.of(read_header(self._batch))._replace(
            base_offset=answer.offset,
            last_offset=answer.offset + self._records - 1,
            leader_epoch=answer.leader_epoch,
        )
        self.acked += 1
        self.world.produced(self.topic, self._index, told, acks_all=self._acks_all)
        if self._recorded:
            for number, send in enumerate(self._sends):
                self.world.history.sent(send, self.now, answer.offset + number)
        self._sequences[self._index] = self._sequences.get(self._index, 0) + self._records
        self._batch = None
        self._sends = []
        self.process.call_later(self._pause(), self._next)

    def _pause(self) -> float:
        """With acks=1 nobody waits for followers: now and then as much comes at once as those need seconds for, if their way or disk is slow."""
        shape = self.world.shape
        if self._burst:
            self._burst -= 1
            return 0.0
        if shape.burst and not self._acks_all and self.rng.random() < _BURSTS * shape.think_s:
            self._burst = shape.burst
        return self.rng.random() * 2 * shape.think_s

    def _start_over(self, answer: Produced) -> None:
        """What was acknowledged with acks=1 is gone, and its sequence numbers with it. With acks=all that must never be."""
        self.world.sometimes(f"producer told {answer.error.name}")
        if answer.leader_epoch < self.world.leader_epoch_of(self.topic, self._index):
            # A leader of the past that does not know it: it has not seen what was sent to others since. Sent as another producer's it would be there twice.
            self.refresh()
            self.process.call_later(self.soon(), self._send_if_any)
            return
        if self._acks_all:
            raise Violation(
                "SequencesAreKept",
                f"producer {self.own_id} at {self._sequences.get(self._index, 0)} of {self.topic}-{self._index} was told {answer.error.name}",
            )
        self._producer_id = -1
        self._init()
