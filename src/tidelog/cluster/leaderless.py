"""Replicas here of partitions that nobody in sync is left of: where their logs end is told with every heartbeat, until somebody leads (D10).

The controller compares (`controller/last_known.py`) and decides. What is told is of the partition as this broker acts by it: whoever has not heard of the last leader's end yet says
nothing. Kept from change to change: heartbeats are many, such partitions few.
"""

from __future__ import annotations

from tidelog.cluster.image_change import ImageChange
from tidelog.cluster.partitions import PartitionTable
from tidelog.controller.image import MetadataImage, PartitionImage
from tidelog.controller.last_known import is_abandoned
from tidelog.wire.messages.broker_heartbeat import LeaderlessPartition, LeaderlessTopic

NO_EPOCH = -1


class LeaderlessReplicas:
    def __init__(self, broker_id: int, partitions: PartitionTable) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._leaderless: dict[bytes, dict[int, int]] = {}
        """Leader epochs, by topic id and partition."""

    def begin(self, image: MetadataImage) -> None:
        self._leaderless.clear()
        for topic, index, partition in image.partitions():
            self._look_at(topic.topic_id, index, partition)

    def changed(self, change: ImageChange) -> bool:
        """True if there is something new to tell."""
        for gone in change.deleted:
            self._leaderless.pop(gone.topic_id, None)
        found = [
            self._look_at(topic_id, index, partition)
            for topic_id, partitions in change.partitions.items()
            for index, partition in partitions.items()
        ]
        return any(found)

    def _look_at(self, topic_id: bytes, index: int, partition: PartitionImage) -> bool:
        if is_abandoned(partition) and self._broker_id in partition.last_known_elr:
            self._leaderless.setdefault(topic_id, {})[index] = partition.leader_epoch
            return True
        of_topic = self._leaderless.get(topic_id)
        if of_topic is not None:
            of_topic.pop(index, None)
            if not of_topic:
                del self._leaderless[topic_id]
        return False

    def log_ends(self) -> list[LeaderlessTopic]:
        told = []
        for topic_id, epochs in self._leaderless.items():
            ends = [end for index, epoch in epochs.items() if (end := self._log_end(topic_id, index, epoch))]
            if ends:
                told.append(LeaderlessTopic(topic_id, ends))
        return told

    def _log_end(self, topic_id: bytes, index: int, leader_epoch: int) -> LeaderlessPartition | None:
        partition = self._partitions.find(self._partitions.topic_name(topic_id) or "", index)
        if (
            partition is None
            or partition.topic_id != topic_id
            or partition.stopped_with is not None
            or partition.leader_epoch != leader_epoch
        ):
            return None
        log = partition.log
        last_epoch = NO_EPOCH if log.latest_epoch is None else log.latest_epoch
        return LeaderlessPartition(index, leader_epoch, last_epoch, log.log_end_offset)
