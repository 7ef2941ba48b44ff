"""A registered broker from state to state: fenced, active, shutting down, without some of its disks, forgotten.

Owns what each step means for partitions: a broker that is fenced or shuts down is in no ISR and leads nothing (KIP-841, I22), one that
returns leads where nobody else can. Whether a step is due is decided elsewhere: `heartbeats` by what a broker says, `sessions`
by what it no longer says.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final

from tidelog.controller.elections import NOBODY, leaders_now, partition_change, rules_for
from tidelog.controller.image import UNASSIGNED_DIRECTORY, BrokerImage, MetadataImage
from tidelog.controller.metadata_records import NO_LEADER, PartitionChangeRecord
from tidelog.controller.registration_records import (
    BrokerRegistrationChangeRecord,
    UnregisterBrokerRecord,
)
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

_FENCE: Final = 1
_UNFENCE: Final = -1


def current_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The registration that a request with this epoch speaks for, or RequestError."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise RequestError(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered: it must register first"
        )
    if broker.epoch != broker_epoch:
        raise RequestError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} speaks with epoch {broker_epoch}, its registration has {broker.epoch}: it must register anew",
        )
    return broker


def fence_broker(
    image: MetadataImage, broker_id: int, settings: ControllerSettings
) -> ControllerResult[None]:
    """The broker is not to be reached: it leaves every ISR, and leads nothing."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return ControllerResult(None)
    change = BrokerRegistrationChangeRecord(broker_id, broker.epoch, fenced=_FENCE)
    return ControllerResult(None, [*changes(image, settings, leaving=frozenset({broker_id})), change])


def unfence_broker(
    image: MetadataImage, broker_id: int, broker_epoch: int, settings: ControllerSettings
) -> ControllerResult[None]:
    """The broker has caught up with the metadata: it may lead again, and does where nobody else can."""
    broker = current_broker(image, broker_id, broker_epoch)
    if not broker.fenced:
        return ControllerResult(None)
    change = BrokerRegistrationChangeRecord(broker_id, broker_epoch, fenced=_UNFENCE)
    returning = None if broker.in_controlled_shutdown else broker_id
    led = changes(image, settings, returning=returning) if returning is not None else ()
    return ControllerResult(None, [change, *led])


def begin_controlled_shutdown(
    image: MetadataImage, broker_id: int, broker_epoch: int, settings: ControllerSettings
) -> ControllerResult[None]:
    """The broker wants to stop: its partitions get other leaders first (KIP-841)."""
    broker = current_broker(image, broker_id, broker_epoch)
    if broker.in_controlled_shutdown:
        return ControllerResult(None)
    change = BrokerRegistrationChangeRecord(broker_id, broker_epoch, in_controlled_shutdown=1)
    return ControllerResult(None, [change, *changes(image, settings, leaving=frozenset({broker_id}))])


def directories_offline(
    image: MetadataImage, broker: BrokerImage, offline: Set[bytes], settings: ControllerSettings
) -> ControllerResult[None]:
    """Disks of a running broker failed: what is on them leaves every ISR and ELR, what is on the others stays (KIP-858).

    What nobody has said the place of may be on them, too: it is not in sync any more until it has shown that it was not. Where nobody else could lead, it goes on leading.
    """
    lost = offline & set(broker.log_dirs)
    if not lost:
        return ControllerResult(None)
    left = [directory for directory in broker.log_dirs if directory not in lost]
    if not left:
        return fence_broker(image, broker.broker_id, settings)
    gone = frozenset({broker.broker_id})
    on_them = changes(image, settings, leaving=gone, lossy=gone, only_in=lost)
    perhaps = changes(image, settings, lossy=gone, only_in={UNASSIGNED_DIRECTORY})
    change = BrokerRegistrationChangeRecord(broker.broker_id, broker.epoch, log_dirs=left)
    return ControllerResult(None, [*on_them, *perhaps, change])


def unregister_broker(
    image: MetadataImage, request: UnregisterBrokerRequest, settings: ControllerSettings
) -> ControllerResult[UnregisterBrokerResponse]:
    """The broker is gone for good. It stays a replica of its partitions, in neither ISR nor ELR, until they are given to others."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        raise RequestError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered"
        )
    gone = frozenset({broker.broker_id})
    record = UnregisterBrokerRecord(broker.broker_id, broker.epoch)
    return ControllerResult(
        UnregisterBrokerResponse(), [*changes(image, settings, leaving=gone, lossy=gone), record]
    )


def changes(
    image: MetadataImage,
    settings: ControllerSettings,
    *,
    leaving: Set[int] = NOBODY,
    lossy: Set[int] = NOBODY,
    returning: int | None = None,
    only_in: Set[bytes] | None = None,
) -> Iterator[PartitionChangeRecord]:
    """One record for every partition that the coming or going of a broker changes; `only_in`: as far as it is kept in these directories.

    Partitions of a topic whose replicas are in the same state change in the same way, which is worked out once: a broker that dies may have had thousands, and nobody else is served meanwhile.
    """
    may_lead = leaders_now(image, without=leaving, returning=returning)
    going = leaving | lossy
    for topic in image.topics_by_name.values():
        rules = None
        worked_out: dict[tuple[object, ...], PartitionChangeRecord | None] = {}
        for index, partition in topic.partitions.items():
            if returning is None:
                concerned = not going.isdisjoint(partition.isr) or not lossy.isdisjoint(partition.elr)
            else:
                concerned = partition.leader == NO_LEADER and returning in partition.replicas
            if concerned and only_in is not None:
                concerned = any(partition.directory_of(broker) in only_in for broker in going)
            if not concerned:
                continue
            rules = rules or rules_for(image, topic.name, settings, may_lead)
            state = (
                partition.replicas,
                partition.directories,
                partition.isr,
                partition.leader,
                partition.leader_recovery_state,
                partition.elr,
                partition.last_known_elr,
            )
            if state not in worked_out:
                worked_out[state] = partition_change(topic, index, rules, leaving=leaving, lossy=lossy)
            record = worked_out[state]
            if record is not None:
                yield _for_partition(record, index)


def _for_partition(record: PartitionChangeRecord, index: int) -> PartitionChangeRecord:
    """The same change of another partition of the topic."""
    return PartitionChangeRecord(
        partition_id=index,
        topic_id=record.topic_id,
        isr=record.isr,
        leader=record.leader,
        leader_recovery_state=record.leader_recovery_state,
        eligible_leader_replicas=record.eligible_leader_replicas,
        last_known_elr=record.last_known_elr,
    )
