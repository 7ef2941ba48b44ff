"""ExplainReplicas (20003), version 0: how replicas stand, who is away, since when and why. Tidelog's own; never listed in ApiVersions (`wire/tidelog_api.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tidelog.broker.dispatch import RequestContext
from tidelog.cluster.absences import Since
from tidelog.cluster.partitions import log_dir_of
from tidelog.controller.image import MetadataImage, TopicImage
from tidelog.replication.leader import Standing
from tidelog.replication.partition import Partition
from tidelog.replication.watermark import counted_end
from tidelog.wire.tidelog_api import (
    ExplainedAbsence,
    ExplainedBroker,
    ExplainedPartition,
    ExplainedReplica,
    ExplainReplicasRequest,
    ExplainReplicasResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

PARTITIONS_PER_TURN: Final = 200
UNKNOWN: Final = -1

LEADER: Final = "leader"
FOLLOWER: Final = "follower"
OFFLINE: Final = "offline"
NO_REPLICA: Final = ""


async def handle(
    broker: Broker, context: RequestContext, request: ExplainReplicasRequest
) -> ExplainReplicasResponse:
    metadata = broker.node.metadata
    response = ExplainReplicasResponse(
        broker_id=broker.node_id,
        now_ms=broker.clock.wall_ms(),
        controller_id=UNKNOWN if metadata.leader_id is None else metadata.leader_id,
        metadata_offset=broker.image.offset,
        brokers=[
            ExplainedBroker(broker_id, absence.state.value, *absence.since)
            for broker_id, absence in sorted(broker.node.absences.brokers.items())
        ],
    )
    for number, (topic, index) in enumerate(_wanted(broker, broker.image, request), 1):
        response.partitions.append(_explained(broker, topic, index))
        if number % PARTITIONS_PER_TURN == 0:
            await asyncio.sleep(0)  # a broker may have ten thousand
    return response


def _wanted(
    broker: Broker, image: MetadataImage, request: ExplainReplicasRequest
) -> Iterator[tuple[TopicImage, int]]:
    """Those that are named and exist; of a request that names none, those with a replica here."""
    if request.topics is None:
        for topic, index, partition in image.partitions():
            if broker.node_id in partition.replicas:
                yield topic, index
        return
    for asked in request.topics:
        named = image.topic(asked.topic)
        if named is not None:
            yield from ((named, index) for index in asked.partitions if index in named.partitions)


def _explained(broker: Broker, topic: TopicImage, index: int) -> ExplainedPartition:
    absences = broker.node.absences
    leaderless = absences.leaderless(topic.topic_id, index) or Since(UNKNOWN, False)
    told = ExplainedPartition(
        topic=topic.name,
        partition=index,
        leader_epoch=topic.partitions[index].leader_epoch,
        absent=[
            ExplainedAbsence(broker_id, absence.why.value, *absence.since)
            for broker_id, absence in absences.of_partition(topic.topic_id, index).items()
        ],
        leaderless_since_ms=leaderless.at_ms,
        leaderless_is_exact=leaderless.is_exact,
    )
    found = broker.partitions.find(topic.name, index)
    if found is not None and found.stopped_with is None:
        _tell_of_replica(broker, found, told)
    elif broker.node_id in topic.partitions[index].replicas:
        told.role, told.problem = OFFLINE, _problem(broker, topic.name, index, found)
    return told


def _tell_of_replica(broker: Broker, partition: Partition, told: ExplainedPartition) -> None:
    log, leader = partition.log, partition.leader
    told.role = FOLLOWER if leader is None else LEADER
    told.log_start_offset = log.log_start_offset
    told.high_watermark = log.high_watermark
    told.counted_end = counted_end(log, durable=partition.durable)
    told.log_end_offset = log.log_end_offset
    if leader is not None:
        told.below_min = leader.isr.below_min
        standings = leader.standings(own_end=told.counted_end, now=broker.clock.monotonic())
        told.replicas = [_wire_form(standing) for standing in standings]


def _wire_form(standing: Standing) -> ExplainedReplica:
    return ExplainedReplica(
        broker_id=standing.broker_id,
        log_end_offset=standing.log_end_offset,
        in_sync=standing.in_sync,
        is_joining=standing.is_joining,
        holds_watermark=standing.holds_watermark,
        caught_up_ms=_ms(standing.caught_up_ago),
        fetched_ms=_ms(standing.fetched_ago),
    )


def _ms(seconds: float | None) -> int:
    return UNKNOWN if seconds is None else max(0, round(seconds * 1000))


def _problem(broker: Broker, topic: str, index: int, partition: Partition | None) -> str:
    """Why a replica of this broker is not served."""
    failed = broker.logs.failed_logs.get((topic, index))
    if failed is not None:
        return str(failed)
    if partition is not None:
        directory = log_dir_of(partition)
        error = broker.logs.offline_dirs.get(directory)
        return f"log directory {directory} is offline: {error}" if error is not None else "it is not served"
    if broker.logs.offline_dirs:
        return "it is in none of the log directories that work, and these do not: " + ", ".join(
            broker.logs.offline_dirs
        )
    return "it is not open; the broker's log says why"
