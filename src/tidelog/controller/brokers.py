"""Brokers that come and go: registration, fencing, unfencing, controlled shutdown.

Owns the rules of a broker's epoch: it is the offset at which its registration is written, so a later run always has a
larger one, and whatever an earlier run still says is refused (KIP-903, I22). A broker that names the epoch of its
previous run says "my log still holds everything I was counted for": after a clean stop, and in `durability=fsync` always
(D10). One that cannot say it leaves ISR and ELR of every partition (I23).

The only broker of a cluster is a case of its own (`resume_broker`): nobody else could lead meanwhile, so its restart is no reason
to fence it, to take its partitions away and to give them back, two records for each of perhaps ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Final

from tidelog.controller.elections import partition_change, rules_for
from tidelog.controller.features import unsupported_features
from tidelog.controller.image import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataImage,
    VersionRange,
)
from tidelog.controller.metadata_records import NO_LEADER, PartitionChangeRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.registration_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
)
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

_FENCE: Final = 1
_UNFENCE: Final = -1
_NOBODY: Final[frozenset[int]] = frozenset()


def register_broker(
    image: MetadataImage,
    request: BrokerRegistrationRequest,
    *,
    cluster_id: str,
    next_offset: int,
    session_active: bool,
    settings: ControllerSettings,
) -> ControllerResult[BrokerRegistrationResponse]:
    """`next_offset` is where the first record will be written; `session_active`: an earlier run still sends heartbeats."""
    _check_registration(image, request, cluster_id)
    existing = image.brokers.get(request.broker_id)
    if existing is None:
        record = _registration(request, next_offset)
        return ControllerResult(BrokerRegistrationResponse(broker_epoch=next_offset), [record])
    if existing.incarnation_id == request.incarnation_id:
        # The answer to its first request was lost. It is the same process, so nothing that it was counted for changes.
        record = _registration(request, existing.epoch)
        record.fenced, record.in_controlled_shutdown = existing.fenced, existing.in_controlled_shutdown
        return ControllerResult(BrokerRegistrationResponse(broker_epoch=existing.epoch), [record])
    if session_active:
        raise RequestError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"broker {request.broker_id} is running already; give this one another node.id, or stop the other and wait"
            " until its session has timed out",
        )
    gone = frozenset({request.broker_id})
    lossy = gone if request.previous_broker_epoch != existing.epoch else _NOBODY
    records: list[MetadataRecord] = [_registration(request, next_offset)]
    if lossy or not existing.fenced:
        records += _changes(image, settings, leaving=gone, lossy=lossy)
    return ControllerResult(BrokerRegistrationResponse(broker_epoch=next_offset), records)


def resume_broker(
    image: MetadataImage,
    request: BrokerRegistrationRequest,
    *,
    cluster_id: str,
    next_offset: int,
    stopped_cleanly: bool,
    settings: ControllerSettings,
) -> ControllerResult[BrokerRegistrationResponse] | None:
    """The only broker there is comes back, unfenced at once, and leads what it led. None: others are registered, or it is new.

    After a clean stop the registration is all that is written. After any other one each of its partitions begins a new leader epoch: a
    reader may have seen records that the crash took, and finds out by the epoch (KIP-320).
    """
    broker_id = request.broker_id
    if image.brokers.keys() != {broker_id}:
        return None
    _check_registration(image, request, cluster_id)
    registration = _registration(request, next_offset)
    registration.fenced = False
    records: list[MetadataRecord] = [registration, *_changes(image, settings, returning=broker_id)]
    if not stopped_cleanly:
        records += [
            PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=broker_id)
            for topic, index, partition in image.partitions()
            if partition.leader == broker_id
        ]
    return ControllerResult(BrokerRegistrationResponse(broker_epoch=next_offset), records)


def fence_broker(
    image: MetadataImage, broker_id: int, settings: ControllerSettings
) -> ControllerResult[None]:
    """The broker is not to be reached: it leaves every ISR, and leads nothing."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return ControllerResult(None)
    change = BrokerRegistrationChangeRecord(broker_id, broker.epoch, fenced=_FENCE)
    return ControllerResult(None, [*_changes(image, settings, leaving=frozenset({broker_id})), change])


def unfence_broker(
    image: MetadataImage, broker_id: int, broker_epoch: int, settings: ControllerSettings
) -> ControllerResult[None]:
    """The broker has caught up with the metadata: it may lead again, and does where nobody else can."""
    broker = current_broker(image, broker_id, broker_epoch)
    if not broker.fenced:
        return ControllerResult(None)
    change = BrokerRegistrationChangeRecord(broker_id, broker_epoch, fenced=_UNFENCE)
    return ControllerResult(None, [change, *_changes(image, settings, returning=broker_id)])


def begin_controlled_shutdown(
    image: MetadataImage, broker_id: int, broker_epoch: int, settings: ControllerSettings
) -> ControllerResult[None]:
    """The broker wants to stop: its partitions get other leaders first (KIP-841)."""
    broker = current_broker(image, broker_id, broker_epoch)
    if broker.in_controlled_shutdown:
        return ControllerResult(None)
    change = BrokerRegistrationChangeRecord(broker_id, broker_epoch, in_controlled_shutdown=1)
    return ControllerResult(None, [change, *_changes(image, settings, leaving=frozenset({broker_id}))])


def current_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The registration that a request with this epoch speaks for, or RequestError."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise RequestError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
    if broker.epoch != broker_epoch:
        raise RequestError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} speaks with epoch {broker_epoch}, its registration has {broker.epoch}: it must register anew",
        )
    return broker


def _check_registration(image: MetadataImage, request: BrokerRegistrationRequest, cluster_id: str) -> None:
    if request.cluster_id != cluster_id:
        raise RequestError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"broker {request.broker_id} belongs to cluster {request.cluster_id!r}, this is {cluster_id!r}:"
            " its data directory comes from elsewhere",
        )
    if not request.listeners:
        raise RequestError(ErrorCode.INVALID_REGISTRATION, f"broker {request.broker_id} names no listener")
    _check_log_dirs(image, request)
    offered = {
        feature.name: VersionRange(feature.min_supported_version, feature.max_supported_version)
        for feature in request.features
    }
    problems = unsupported_features(image, offered)
    if problems:
        raise RequestError(
            ErrorCode.UNSUPPORTED_VERSION, f"broker {request.broker_id} cannot join: {'; '.join(problems)}"
        )


def _check_log_dirs(image: MetadataImage, request: BrokerRegistrationRequest) -> None:
    own = set(request.log_dirs)
    if not own or len(own) != len(request.log_dirs) or own & {UNASSIGNED_DIRECTORY, LOST_DIRECTORY}:
        raise RequestError(
            ErrorCode.INVALID_REGISTRATION,
            f"broker {request.broker_id} must name each log directory's id once",
        )
    for other in image.brokers.values():
        if other.broker_id != request.broker_id and not own.isdisjoint(other.log_dirs):
            raise RequestError(
                ErrorCode.INVALID_REGISTRATION,
                f"broker {request.broker_id} has a log directory that broker {other.broker_id} is registered with:"
                " one was copied from the other",
            )


def _registration(request: BrokerRegistrationRequest, epoch: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        end_points=[
            BrokerEndpoint(listener.name, listener.host, listener.port, listener.security_protocol)
            for listener in request.listeners
        ],
        features=[
            BrokerFeature(feature.name, feature.min_supported_version, feature.max_supported_version)
            for feature in request.features
        ],
        rack=request.rack,
        log_dirs=sorted(request.log_dirs),
    )


def _changes(
    image: MetadataImage,
    settings: ControllerSettings,
    *,
    leaving: Set[int] = _NOBODY,
    lossy: Set[int] = _NOBODY,
    returning: int | None = None,
) -> Iterator[PartitionChangeRecord]:
    """One record for every partition that the coming or going of a broker changes."""
    is_active = _activity(image, leaving, returning)
    for topic in image.topics_by_name.values():
        rules = None
        for index, partition in topic.partitions.items():
            if returning is None:
                concerned = not leaving.isdisjoint(partition.isr) or not lossy.isdisjoint(partition.elr)
            else:
                concerned = partition.leader == NO_LEADER and returning in partition.replicas
            if not concerned:
                continue
            rules = rules or rules_for(
                image,
                topic.name,
                is_active,
                min_isr=settings.min_insync_replicas,
                unclean=settings.unclean_leader_election_enable,
            )
            record = partition_change(topic, index, rules, leaving=leaving, lossy=lossy)
            if record is not None:
                yield record


def _activity(image: MetadataImage, leaving: Set[int], returning: int | None) -> Callable[[int], bool]:
    active = {broker.broker_id for broker in image.brokers.values() if broker.active} - leaving
    if returning is not None:
        active.add(returning)
    return active.__contains__
