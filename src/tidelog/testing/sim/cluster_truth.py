"""What the quorum has committed, seen from outside: the cluster's metadata as it was after every change, and every partition as the controller has decided it.

Read from the logs of whichever node is the first to call something committed, and held against all others after it (I12, I18). Never asks a controller what it thinks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.controller.delta import MetadataDelta
from tidelog.controller.elections import MIN_INSYNC_REPLICAS, topic_setting
from tidelog.controller.image import EMPTY_IMAGE, MetadataImage, PartitionImage
from tidelog.controller.metadata_log import MetadataLogReader
from tidelog.records.batch import iter_headers
from tidelog.replication.assignment import Assignment
from tidelog.testing.sim.events import EventHeap
from tidelog.testing.sim.quorum_ledger import Ledger
from tidelog.testing.sim.storage_checks import Violation

if TYPE_CHECKING:
    from tidelog.testing.sim.cluster_node import SimNode

Key = tuple[bytes, int]
_READ_BYTES = 1 << 20
_KEPT = 400


class Registration(NamedTuple):
    incarnation: bytes
    broker_epoch: int


class PartitionTruth:
    """Implements `replication_ledger.Truth`."""

    def __init__(self, heap: EventHeap, registrations: dict[int, Registration]) -> None:
        self.heap = heap
        self.registrations = registrations
        self.isr_of: dict[int, tuple[int, ...]] = {}
        self.assignment = Assignment(-1, -1, -1, (), ())
        self.elr: tuple[int, ...] = ()
        self.effective_min = 1
        self.name = ""

    def take(self, partition: PartitionImage, min_isr: int) -> None:
        self.assignment = Assignment(
            partition.leader,
            partition.leader_epoch,
            partition.partition_epoch,
            partition.replicas,
            partition.isr,
        )
        self.elr = partition.elr
        self.isr_of[partition.partition_epoch] = partition.isr
        self.effective_min = min(min_isr, len(partition.replicas))


class Truth:
    def __init__(
        self,
        heap: EventHeap,
        ledger: Ledger,
        changed: Callable[[MetadataImage, MetadataImage, set[Key]], None],
    ) -> None:
        """`changed` hears of every change: the image before, the one after, and the partitions that are others now."""
        self._heap = heap
        self.ledger = ledger
        self._changed = changed
        self._reader = MetadataLogReader()
        self.image = EMPTY_IMAGE
        self._images: dict[int, MetadataImage] = {}
        self.registrations: dict[int, Registration] = {}
        self.partitions: dict[Key, PartitionTruth] = {}
        self._noted: dict[tuple[int, int], int] = {}
        self._looked_at = 0

    # ---- the log

    def look_at(self, node: SimNode) -> None:
        """After a step of this node: what it calls committed now."""
        quorum = node.quorum
        place = (node.id, node.life)
        start = self._noted.get(place, -1)
        end = quorum.high_watermark
        if end <= start:
            return
        self._noted[place] = end
        offset = max(start, quorum.log.start_offset, 0)
        while offset < end:
            records = quorum.read(offset, _READ_BYTES)
            if not records:
                break
            known = self.ledger.end_offset
            offset = self.ledger.note(node.id, quorum.epoch, records)
            if self.ledger.end_offset > known:
                self._read_on(records, known)

    def _read_on(self, records: bytes, known: int) -> None:
        reader = self._reader
        at = _position_of(records, known)
        for change in reader.read(records[at:]):
            before = self.image
            delta = MetadataDelta(before)
            delta.replay_all(change.records)
            self.image = delta.apply(offset=change.last_offset, epoch=change.leader_epoch)
            self._images[change.last_offset] = self.image
            if len(self._images) > _KEPT:
                del self._images[next(iter(self._images))]
            self._apply(before, delta)

    def _apply(self, before: MetadataImage, delta: MetadataDelta) -> None:
        image = self.image
        for broker_id in delta.registrations.changed_brokers:
            broker = image.brokers.get(broker_id)
            if broker is None:
                self.registrations.pop(broker_id, None)
            else:
                self.registrations[broker_id] = Registration(broker.incarnation_id, broker.epoch)
        changed: set[Key] = set()
        for topic_id, partitions in delta.topics.changed_partitions().items():
            name = image.topics_by_id[topic_id].name
            min_isr = int(topic_setting(image, name, MIN_INSYNC_REPLICAS, "1"))
            for index, partition in partitions.items():
                key = (topic_id, index)
                truth = self.partitions.get(key)
                if truth is None:
                    truth = self.partitions[key] = PartitionTruth(self._heap, self.registrations)
                    truth.name = f"{name}-{index}"
                truth.take(partition, min_isr)
                changed.add(key)
        for topic in delta.topics.deleted:
            for index in topic.partitions:
                self.partitions.pop((topic.topic_id, index), None)
        self._changed(before, image, changed)

    # ---- images

    def check_image(self, node: SimNode) -> None:
        """I18: metadata at one offset is the same for everybody."""
        image = node.cluster.metadata.image
        known = self._images.get(image.offset)
        if known is not None and not known.same_metadata(image):
            raise Violation(
                "ImagesAgree", f"node {node.id} has other metadata at offset {image.offset} (I18)"
            )


def _position_of(records: bytes, offset: int) -> int:
    for position, header in iter_headers(records):
        if header.base_offset == offset:
            return position
    raise AssertionError(f"no batch begins at {offset}")
