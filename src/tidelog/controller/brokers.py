"""Brokers that register: who may, as whom, and what becomes of the places that an earlier run of theirs had.

Owns the rules of a broker's epoch: it is the offset at which its registration is written, so a later run always has a
larger one, and whatever an earlier run still says is refused (KIP-903, I22). A broker that names the epoch of its
previous run says "my log still holds everything I was counted for": after a clean stop, and in `durability=fsync` always
(D10). One that cannot say it, or comes without a log directory that it had, leaves ISR and ELR of every partition (I23).

The only broker of a cluster is a case of its own (`resume_broker`): nobody else could lead meanwhile, so its restart is no reason
to fence it, to take its partitions away and to give them back, two records for each of perhaps ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.controller.broker_states import changes
from tidelog.controller.elections import NOBODY
from tidelog.controller.features import unsupported_features
from tidelog.controller.image import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataImage,
    VersionRange,
)
from tidelog.controller.metadata_records import PartitionChangeRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.registration_records import (
    BrokerEndpoint,
    BrokerFeature,
    RegisterBrokerRecord,
)
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)


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
        response = BrokerRegistrationResponse(broker_epoch=next_offset)
        return ControllerResult(response, [record, *_rehomed(image, record)])
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
    if 0 <= request.previous_broker_epoch < existing.epoch:
        # Its metadata are old. What it has not heard of may be its own doing: a run that was killed before it learned its epoch,
        # with the request still on the way. It asks again, and by then it knows whether its directories were that run's.
        raise RequestError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {request.broker_id} claims the places of its run {request.previous_broker_epoch}, and run"
            f" {existing.epoch} came after that; it may register when it has heard of it",
        )
    gone = frozenset({request.broker_id})
    lossy = NOBODY if _is_lossless(request, existing) else gone
    record = _registration(request, next_offset)
    records: list[MetadataRecord] = [record]
    if lossy or not existing.fenced:
        records += changes(image, settings, leaving=gone, lossy=lossy)
    records += _rehomed(image, record)
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
    records: list[MetadataRecord] = [registration, *changes(image, settings, returning=broker_id)]
    if not stopped_cleanly:
        records += [
            PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=broker_id)
            for topic, index, partition in image.partitions()
            if partition.leader == broker_id
        ]
    records += _rehomed(image, registration)
    return ControllerResult(BrokerRegistrationResponse(broker_epoch=next_offset), records)


def _is_lossless(request: BrokerRegistrationRequest, existing: BrokerImage) -> bool:
    return request.previous_broker_epoch == existing.epoch and set(existing.log_dirs) <= set(request.log_dirs)


def _rehomed(image: MetadataImage, registration: RegisterBrokerRecord) -> Iterator[PartitionChangeRecord]:
    """Replicas in a directory that the broker no longer has will be made anew in one that it has."""
    online = {*registration.log_dirs, UNASSIGNED_DIRECTORY}
    home = registration.log_dirs[0] if len(registration.log_dirs) == 1 else UNASSIGNED_DIRECTORY
    for topic, index, partition in image.partitions():
        places = dict(zip(partition.replicas, partition.directories, strict=True))
        if places.get(registration.broker_id, home) not in online:
            places[registration.broker_id] = home
            yield PartitionChangeRecord(index, topic.topic_id, directories=list(places.values()))


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
