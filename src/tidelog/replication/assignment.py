"""What the metadata says of one partition, as far as replication needs it. Plain values: nothing here knows the controller."""

from __future__ import annotations

from typing import Final, NamedTuple

NO_LEADER: Final = -1


class Assignment(NamedTuple):
    """Two epochs: the leader's rises when a leader is named, the partition's with every change."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    is_recovering: bool = False
    """The leader was not in sync when it was chosen: what others had is lost, and it has not said yet that it goes on from there (KIP-704)."""

    @staticmethod
    def alone(broker_id: int, leader_epoch: int) -> Assignment:
        """A partition with one replica, which leads it and is all of its ISR."""
        return Assignment(broker_id, leader_epoch, 0, (broker_id,), (broker_id,))
