"""Replica assignments of new partitions: given by hand or placed, checked, and turned into records.

Owns what both CreateTopics and CreatePartitions need. Messages name the broker or partition that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidelog.controller.image import MetadataImage
from tidelog.controller.metadata_records import PartitionRecord
from tidelog.controller.placement import ReplicaPlacer, UsableBroker
from tidelog.errors import RequestError
from tidelog.ports import Rng
from tidelog.wire.error_codes import ErrorCode

Assignment = tuple[int, ...]


def placer(image: MetadataImage, rng: Rng) -> ReplicaPlacer:
    """Over every registered broker that takes new replicas; one that is shutting down counts as fenced."""
    return ReplicaPlacer(
        (
            UsableBroker(broker.broker_id, broker.rack, fenced=not broker.active)
            for broker in image.brokers.values()
            if not broker.log_dirs or not set(broker.log_dirs) <= set(broker.cordoned_log_dirs or ())
        ),
        rng,
    )


def placed(
    image: MetadataImage, rng: Rng, *, partition_count: int, replication_factor: int
) -> list[Assignment]:
    placing = placer(image, rng)
    return [placing.place(replication_factor) for _ in range(partition_count)]


def check_manual(
    image: MetadataImage, assignments: Iterable[Sequence[int]], replicas: int | None
) -> list[Assignment]:
    """Assignments as the user wrote them; `replicas` is how many each must have, None: as many as the first."""
    checked: list[Assignment] = []
    for brokers in assignments:
        if not brokers:
            raise _refused("a partition is assigned to no broker at all")
        for broker in brokers:
            if broker not in image.brokers:
                raise _refused(f"broker {broker} is assigned a replica, but no such broker is registered")
        if len(set(brokers)) != len(brokers):
            twice = next(broker for broker in brokers if list(brokers).count(broker) > 1)
            raise _refused(f"broker {twice} is assigned to the same partition more than once")
        if replicas is None:
            replicas = len(brokers)
        elif len(brokers) != replicas:
            raise _refused(
                f"a partition is assigned {len(brokers)} replicas, the others of this topic have {replicas}"
            )
        checked.append(tuple(brokers))
    return checked


def partition_records(
    image: MetadataImage, topic_id: bytes, first_index: int, assignments: Sequence[Assignment]
) -> list[PartitionRecord]:
    """New partitions. Only replicas on active brokers start in the ISR (KIP-841); the first of them leads."""
    active = {broker.broker_id for broker in image.brokers.values() if broker.active}
    directories = {broker.broker_id: broker.default_directory() for broker in image.brokers.values()}
    records = []
    for index, replicas in enumerate(assignments, first_index):
        isr = [broker for broker in replicas if broker in active]
        if not isr:
            raise _refused(f"every broker of partition {index} ({list(replicas)}) is fenced or shutting down")
        records.append(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=list(replicas),
                isr=isr,
                leader=isr[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=[directories[broker] for broker in replicas],
            )
        )
    return records


def _refused(message: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
