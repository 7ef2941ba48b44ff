"""One partition between its records and its image.

Owns how a PartitionRecord becomes an image, how a PartitionChangeRecord changes one, and the way back. The epochs rise
here and nowhere else: the partition epoch with every change, the leader epoch with every change that names a leader.
"""

from __future__ import annotations

from tidelog.controller.image import UNASSIGNED_DIRECTORY, PartitionImage
from tidelog.controller.metadata_records import (
    LEADER_UNCHANGED,
    RECOVERY_STATE_UNCHANGED,
    PartitionChangeRecord,
    PartitionRecord,
)


def partition_from_record(record: PartitionRecord) -> PartitionImage:
    replicas = tuple(record.replicas)
    # Records from before KIP-858 name no directories.
    directories = tuple(record.directories) or (UNASSIGNED_DIRECTORY,) * len(replicas)
    return _checked(
        PartitionImage(
            replicas,
            directories,
            tuple(record.isr),
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()),
            record.leader_recovery_state,
            tuple(record.adding_replicas),
            tuple(record.removing_replicas),
        )
    )


def merged(partition: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    replicas = partition.replicas if record.replicas is None else tuple(record.replicas)
    if record.directories is not None:
        directories = tuple(record.directories)
    elif record.replicas is None:
        directories = partition.directories
    else:
        known = dict(zip(partition.replicas, partition.directories, strict=True))
        directories = tuple(known.get(broker, UNASSIGNED_DIRECTORY) for broker in replicas)
    leader_changes = record.leader != LEADER_UNCHANGED
    state_changes = record.leader_recovery_state != RECOVERY_STATE_UNCHANGED
    return _checked(
        PartitionImage(
            replicas,
            directories,
            partition.isr if record.isr is None else tuple(record.isr),
            record.leader if leader_changes else partition.leader,
            partition.leader_epoch + leader_changes,
            partition.partition_epoch + 1,
            _changed(partition.elr, record.eligible_leader_replicas),
            _changed(partition.last_known_elr, record.last_known_elr),
            record.leader_recovery_state if state_changes else partition.leader_recovery_state,
            _changed(partition.adding_replicas, record.adding_replicas),
            _changed(partition.removing_replicas, record.removing_replicas),
        )
    )


def partition_record(topic_id: bytes, index: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )


def _changed(before: tuple[int, ...], after: list[int] | None) -> tuple[int, ...]:
    return before if after is None else tuple(after)


def _checked(partition: PartitionImage) -> PartitionImage:
    """Rules that no record may break. A break is a bug of the controller that wrote it, and must not spread."""
    if len(partition.directories) != len(partition.replicas):
        raise ValueError(
            f"{len(partition.replicas)} replicas but {len(partition.directories)} directories: {partition}"
        )
    if partition.elr and not set(partition.elr).isdisjoint(partition.isr):
        raise ValueError(f"a replica is both in sync and in the ELR (I23): {partition}")
    return partition
