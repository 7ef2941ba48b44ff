"""The cluster's metadata as this node knows it: the image of what the quorum has committed, and who leads the quorum.

Implements `quorum.driver.QuorumListener`. A node that follows reads committed batches from its own copy of the log; on the one that leads, the controller has every change as
records already, so nothing is read back. Both ways the image changes by replay of committed records alone (I18), and whoever acts on it hears of each change once and in order.

A change that takes several batches may be committed in parts. Until its end is there it is no part of the image, and the image says that it ends before: whoever goes on from there,
after a snapshot or a lost leadership, meets the change as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tidelog.cluster import image_change
from tidelog.cluster.image_change import ImageChange
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import EMPTY_IMAGE, MetadataImage
from tidelog.controller.metadata_log import MetadataLogReader
from tidelog.errors import CorruptDataError
from tidelog.quorum.values import SnapshotId

READ_BYTES: Final = 4 << 20


class CommittedLog(Protocol):
    """The quorum, as far as it is read here."""

    def read(self, offset: int, max_bytes: int) -> bytes: ...


class Leadership(Protocol):
    """The controller of this node, told when it is the active one. Absent on a node that never is."""

    def lead(
        self, epoch: int, image: MetadataImage, *, torn_transaction: bool, predecessor: int | None
    ) -> None:
        """`predecessor`: the node that led before, and does not any more for whatever reason."""
        ...

    def lost(self) -> None: ...

    def committed(self, end_offset: int) -> None: ...

    def failed(self, error: Exception) -> None:
        """The metadata log of this node is no more."""
        ...


class Audience(Protocol):
    """Who acts on metadata. Called on the loop, in order."""

    def changed(self, change: ImageChange, image: MetadataImage) -> None: ...

    def leader_is(self, leader_id: int | None, epoch: int) -> None:
        """Of the quorum: where the active controller is, or will be in a moment."""
        ...

    def leading(self) -> None:
        """The controller of this node is the active one from now on."""
        ...

    def failed(self, error: Exception) -> None:
        """The node must stop."""
        ...


class NodeMetadata:
    def __init__(
        self,
        node_id: int,
        *,
        audience: Audience,
        read_snapshot: Callable[[SnapshotId], MetadataImage],
    ) -> None:
        self._node_id = node_id
        self._audience = audience
        self._read_snapshot = read_snapshot
        self.image = EMPTY_IMAGE
        self.leader_id: int | None = None
        self.leader_epoch = -1
        self._log: CommittedLog | None = None
        self._controller: Leadership | None = None
        self._reader = _reader_behind(self.image)
        self._claimed: int | None = None
        """The epoch in which this node leads the quorum, until the controller knows."""
        self._leads = False
        self._predecessor: int | None = None
        """The last other node that led."""

    def attach(self, log: CommittedLog, controller: Leadership | None) -> None:
        """Before the quorum is started."""
        self._log = log
        self._controller = controller

    def begin_with(self, image: MetadataImage) -> None:
        """Before the quorum is started: what the newest snapshot on disk says."""
        self.image = image
        self._reader = _reader_behind(image)

    @property
    def offset(self) -> int:
        """Of the last record that is in the image, or stands for nothing in it."""
        return self.image.offset

    # ---- what the quorum says

    def committed(self, high_watermark: int) -> None:
        if self._leads:
            assert self._controller is not None
            self._controller.committed(high_watermark)
            return
        try:
            self._read_up_to(high_watermark)
        except CorruptDataError as error:
            self._audience.failed(error)
            return
        if self._claimed is not None and self._controller is not None:
            epoch, self._claimed = self._claimed, None
            self._leads = True
            # The quorum's leader commits nothing before the first record of its own epoch: all that the log holds is in the image now.
            self._controller.lead(
                epoch,
                self.image,
                torn_transaction=self._reader.in_transaction,
                predecessor=self._predecessor,
            )
            self._audience.leading()

    def leader_is(self, leader_id: int | None, epoch: int) -> None:
        if self._leads:
            assert self._controller is not None
            self._leads = False
            self._controller.lost()
            self._reader = _reader_behind(self.image)
        self._claimed = epoch if leader_id == self._node_id else None
        if leader_id is not None:
            self._predecessor = leader_id if leader_id != self._node_id else self._predecessor
        self.leader_id, self.leader_epoch = leader_id, epoch
        self._audience.leader_is(leader_id, epoch)

    def load_snapshot(self, snapshot: SnapshotId) -> None:
        before = self.image
        try:
            self.image = self._read_snapshot(snapshot)
        except (CorruptDataError, FileNotFoundError) as error:
            self._audience.failed(error)
            return
        self._reader = _reader_behind(self.image)
        self._tell(image_change.between(before, self.image))

    def failed(self, error: Exception) -> None:
        if self._controller is not None:
            self._controller.failed(error)
        self._audience.failed(error)

    # ---- what the controller of this node says

    def changed_by_controller(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """A change of the active controller is committed."""
        self.image = image
        self._tell(image_change.of_delta(delta))

    # ---- inside

    def _read_up_to(self, high_watermark: int) -> None:
        assert self._log is not None
        reader = self._reader
        while reader.next_offset < high_watermark:
            data = self._log.read(reader.next_offset, READ_BYTES)
            if not data:
                raise CorruptDataError(
                    f"the metadata log cannot be read from offset {reader.next_offset} on, and is committed up to {high_watermark}"
                )
            delta = MetadataDelta(self.image)
            epoch = self.image.epoch
            for change in reader.read(data):
                delta.replay_all(change.records)
                epoch = change.leader_epoch
            if not reader.in_transaction:
                epoch = reader.leader_epoch
            self.image = delta.apply(offset=reader.settled_offset - 1, epoch=epoch)
            self._tell(image_change.of_delta(delta))

    def _tell(self, change: ImageChange) -> None:
        self._audience.changed(change, self.image)


def _reader_behind(image: MetadataImage) -> MetadataLogReader:
    return MetadataLogReader(image.offset + 1, image.epoch)
