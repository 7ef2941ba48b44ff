"""Sequence numbers: what lets a broker recognise a batch that it has already got, and refuse one that comes too early.

A batch gets its number when it is first sent and keeps it through every retry, because nobody knows whether the broker has it. Numbers count
records, partition by partition, without a gap. A broker that answers OUT_OF_ORDER_SEQUENCE_NUMBER to the first batch whose fate is not known says for
certain that it has neither this one nor any behind it: that is the only moment at which numbers may be given anew, and then under a
higher epoch, so that nothing of before can be taken for something of after (KIP-360). Epochs are kept per partition: a bump for one leaves the
others, with batches on the wire, as they are.

    fate of the first unresolved batch                    what follows
    answered                                              the next one is the first
    refused for good, broker says that it has not got it  numbers behind it would leave a gap: renumber under a new epoch
    given up after delivery.timeout.ms, fate unknown      the ones behind keep their numbers; the broker's answer to them decides
    OUT_OF_ORDER, UNKNOWN_PRODUCER_ID                     when no batch is on the wire any more, renumber under a new epoch

Pure. Who is idempotent at all, and what an error means, is the sender's business.
"""

from __future__ import annotations

from typing import Final

from tidelog.client.metadata import TopicPartition
from tidelog.client.producer.batch import ProducerBatch
from tidelog.records.batch import NO_PRODUCER_ID

SEQUENCE_SPACE: Final = 1 << 31
EPOCH_MAX: Final = (1 << 15) - 1
WINDOW: Final = 5
"""As many batches of a producer as a broker remembers for a partition. So many may be numbered from the first unresolved one on, itself and resolved ones
behind it included: of more, the broker would not know the first one again.
"""


class PartitionSequence:
    """What was numbered for one partition from the first unresolved batch on, in the order of the numbers."""

    __slots__ = ("_resolved", "epoch", "is_known", "must_renumber", "next_sequence", "producer_id", "window")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.next_sequence = 0
        self.window: list[ProducerBatch] = []
        self._resolved: set[ProducerBatch] = set()
        self.must_renumber = False
        self.is_known = False  # the broker has taken a batch of this epoch

    @property
    def width(self) -> int:
        """How many batches may be out. A broker that has never heard of a producer takes any number for the first: so the first goes alone."""
        return WINDOW if self.is_known else 1

    @property
    def unresolved(self) -> list[ProducerBatch]:
        return [batch for batch in self.window if batch not in self._resolved]

    def resolve(self, batch: ProducerBatch) -> None:
        if batch in self.window:
            self._resolved.add(batch)
        while self.window and self.window[0] in self._resolved:
            self._resolved.remove(self.window.pop(0))


class Sequences:
    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self._epoch = -1
        self._partitions: dict[TopicPartition, PartitionSequence] = {}

    @property
    def is_ready(self) -> bool:
        """Whether there is a producer id to number batches with."""
        return self.producer_id != NO_PRODUCER_ID

    def begin(self, producer_id: int, epoch: int) -> None:
        """A broker gave us an id. What is numbered already goes on under the one it has."""
        self.producer_id, self._epoch = producer_id, epoch

    # ---- giving numbers

    def may_send(self, batch: ProducerBatch) -> bool:
        partition = self._partitions.get(batch.tp)
        if partition is None:
            return self.is_ready
        if partition.must_renumber:
            return False
        if batch.is_stamped:
            return batch in partition.window[: partition.width]  # parts of a batch may be more
        return self.is_ready and len(partition.window) < partition.width

    def stamp(self, batch: ProducerBatch) -> None:
        """Before it is sent; a batch that has a number keeps it."""
        if batch.is_stamped:
            return
        partition = self._partitions.get(batch.tp)
        if partition is None:
            partition = self._partitions[batch.tp] = PartitionSequence(self.producer_id, self._epoch)
        batch.stamp(partition.producer_id, partition.epoch, partition.next_sequence)
        partition.next_sequence = (partition.next_sequence + batch.count) % SEQUENCE_SPACE
        partition.window.append(batch)

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether everything in front of it is resolved."""
        partition = self._partitions.get(batch.tp)
        return partition is not None and bool(partition.window) and partition.window[0] is batch

    def was_split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """The parts have numbers that follow each other, and together those of the whole."""
        partition = self._partitions.get(batch.tp)
        if partition is not None and batch in partition.window:
            place = partition.window.index(batch)
            partition.window[place : place + 1] = parts

    # ---- fates

    def resolved(self, batch: ProducerBatch) -> None:
        """The broker has it."""
        partition = self._partitions.get(batch.tp)
        if partition is not None and batch in partition.window:
            partition.is_known = True
        self._drop(batch)

    def given_up(self, batch: ProducerBatch) -> None:
        """Nobody waits for it any more, and nobody knows whether the broker has it."""
        self._drop(batch)

    def refused(self, batch: ProducerBatch) -> bool:
        """It failed for good, and the broker has not got it. True if those behind it must be numbered anew."""
        partition = self._partitions.get(batch.tp)
        if partition is None or batch not in partition.window:
            return False
        is_last = partition.window[-1] is batch
        self._drop(batch)
        if is_last and (batch.base_sequence + batch.count) % SEQUENCE_SPACE == partition.next_sequence:
            partition.next_sequence = batch.base_sequence  # nothing was numbered behind it: no gap
            return False
        partition.must_renumber = True
        return True

    def out_of_order(self, batch: ProducerBatch) -> None:
        """The broker says that it has neither the first unresolved batch nor any behind it."""
        partition = self._partitions.get(batch.tp)
        if partition is not None:
            partition.must_renumber = True

    def _drop(self, batch: ProducerBatch) -> None:
        partition = self._partitions.get(batch.tp)
        if partition is not None:
            partition.resolve(batch)

    # ---- a new epoch

    def renumber(self) -> list[ProducerBatch]:
        """Partitions that must and can get new numbers begin a new epoch. Returns the batches that lost their old numbers.

        Not while one of them is on the wire: its answer could be about either number.
        """
        released: list[ProducerBatch] = []
        for tp, partition in list(self._partitions.items()):
            if not partition.must_renumber or any(batch.on_the_wire for batch in partition.unresolved):
                continue
            if not self._next_epoch():
                break
            for batch in partition.unresolved:
                batch.unstamp()
                released.append(batch)
            self._partitions[tp] = PartitionSequence(self.producer_id, self._epoch)
        return released

    def _next_epoch(self) -> bool:
        """False when this id has none left: another one must be asked for (`is_ready` says so)."""
        if not self.is_ready:
            return False
        if self._epoch < EPOCH_MAX:
            self._epoch += 1
            return True
        self.producer_id = NO_PRODUCER_ID
        return False
