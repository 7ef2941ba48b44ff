"""The quorum's requests and answers as Kafka's messages, reduced to the one partition they are about.

Owns how values are put into them and taken out. A request about anything but `__cluster_metadata-0` of this cluster has an error code and nothing
else in its answer; `refusal` says which. It never decides on more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.quorum.values import (
    NO_NODE,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    ElectionState,
    LogEnd,
    QuorumSettings,
    SnapshotId,
)
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import begin_quorum_epoch as begin_
from tidelog.wire.messages import end_quorum_epoch as end_
from tidelog.wire.messages import fetch as fetch_
from tidelog.wire.messages import fetch_snapshot as snapshot_
from tidelog.wire.messages import vote as vote_


def refusal(settings: QuorumSettings, request: Any) -> ErrorCode:
    """Why a request is none of this quorum's, or NONE."""
    if request.cluster_id is not None and settings.cluster_id not in (None, request.cluster_id):
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    return ErrorCode.NONE


def only_partition(message: Any) -> Any | None:
    """The part of a request or an answer that speaks of the metadata log. None: there is none, or there is more."""
    kind = type(message)
    topics: list[Any] = message.responses if kind is fetch_.FetchResponse else message.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, part = topics[0], topics[0].partitions[0]
    if kind is fetch_.FetchRequest:
        is_ours, index = topic.topic_id == TOPIC_ID or topic.topic == TOPIC, part.partition
    elif kind is fetch_.FetchResponse:
        is_ours, index = topic.topic_id == TOPIC_ID or topic.topic == TOPIC, part.partition_index
    elif kind is snapshot_.FetchSnapshotRequest:
        is_ours, index = topic.name == TOPIC, part.partition
    elif kind is snapshot_.FetchSnapshotResponse:
        is_ours, index = topic.name == TOPIC, part.index
    else:
        is_ours, index = topic.topic_name == TOPIC, part.partition_index
    return part if is_ours and index == PARTITION else None


def told_leader(response: Any) -> ElectionState | None:
    """Whom the sender of an answer takes for the leader, and of which epoch."""
    part = only_partition(response)
    if part is None:
        return None
    told = part.current_leader if hasattr(part, "current_leader") else part
    return ElectionState(told.leader_epoch, None if told.leader_id < 0 else told.leader_id)


def as_bytes(records: Any) -> bytes:
    return bytes(records if isinstance(records, bytes | bytearray | memoryview) else records.read())


def _id(node_id: int | None) -> int:
    return NO_NODE if node_id is None else node_id


# ---- Vote


def vote_request(
    settings: QuorumSettings, voter_id: int, *, epoch: int, end: LogEnd, pre_vote: bool
) -> vote_.VoteRequest:
    part = vote_.RequestPartitionData(
        partition_index=PARTITION,
        replica_epoch=epoch,
        replica_id=settings.node_id,
        replica_directory_id=settings.directory_id,
        last_offset_epoch=end.epoch,
        last_offset=end.offset,
        pre_vote=pre_vote,
    )
    topic = vote_.RequestTopicData(topic_name=TOPIC, partitions=[part])
    return vote_.VoteRequest(cluster_id=settings.cluster_id, voter_id=voter_id, topics=[topic])


def vote_response(
    state: ElectionState, *, granted: bool = False, error: ErrorCode = ErrorCode.NONE
) -> vote_.VoteResponse:
    part = vote_.ResponsePartitionData(
        partition_index=PARTITION,
        error_code=error,
        leader_id=_id(state.leader_id),
        leader_epoch=state.epoch,
        vote_granted=granted,
    )
    return vote_.VoteResponse(topics=[vote_.ResponseTopicData(topic_name=TOPIC, partitions=[part])])


# ---- BeginQuorumEpoch and EndQuorumEpoch


def begin_request(settings: QuorumSettings, voter_id: int, *, epoch: int) -> begin_.BeginQuorumEpochRequest:
    part = begin_.RequestPartitionData(
        partition_index=PARTITION, leader_id=settings.node_id, leader_epoch=epoch
    )
    topic = begin_.RequestTopicData(topic_name=TOPIC, partitions=[part])
    return begin_.BeginQuorumEpochRequest(cluster_id=settings.cluster_id, voter_id=voter_id, topics=[topic])


def begin_response(state: ElectionState, error: ErrorCode) -> begin_.BeginQuorumEpochResponse:
    part = begin_.ResponsePartitionData(
        partition_index=PARTITION,
        error_code=error,
        leader_id=_id(state.leader_id),
        leader_epoch=state.epoch,
    )
    topic = begin_.ResponseTopicData(topic_name=TOPIC, partitions=[part])
    return begin_.BeginQuorumEpochResponse(topics=[topic])


def end_request(
    settings: QuorumSettings, *, epoch: int, successors: Sequence[int]
) -> end_.EndQuorumEpochRequest:
    part = end_.RequestPartitionData(
        partition_index=PARTITION,
        leader_id=settings.node_id,
        leader_epoch=epoch,
        preferred_successors=list(successors),
        preferred_candidates=[end_.ReplicaInfo(candidate_id=node_id) for node_id in successors],
    )
    topic = end_.RequestTopicData(topic_name=TOPIC, partitions=[part])
    return end_.EndQuorumEpochRequest(cluster_id=settings.cluster_id, topics=[topic])


def end_response(state: ElectionState, error: ErrorCode) -> end_.EndQuorumEpochResponse:
    part = end_.ResponsePartitionData(
        partition_index=PARTITION,
        error_code=error,
        leader_id=_id(state.leader_id),
        leader_epoch=state.epoch,
    )
    topic = end_.ResponseTopicData(topic_name=TOPIC, partitions=[part])
    return end_.EndQuorumEpochResponse(topics=[topic])


def successors(part: end_.RequestPartitionData) -> list[int]:
    """Preferred ones first. Version 0 of the request has them in one field, version 1 in another."""
    return [info.candidate_id for info in part.preferred_candidates] or part.preferred_successors


# ---- Fetch


def fetch_request(
    settings: QuorumSettings, *, epoch: int, end: LogEnd, high_watermark: int, log_start: int
) -> fetch_.FetchRequest:
    part = fetch_.FetchPartition(
        partition=PARTITION,
        current_leader_epoch=epoch,
        fetch_offset=end.offset,
        last_fetched_epoch=end.epoch,
        log_start_offset=log_start,
        partition_max_bytes=settings.fetch_max_bytes,
        replica_directory_id=settings.directory_id,
        high_watermark=high_watermark,
    )
    return fetch_.FetchRequest(
        cluster_id=settings.cluster_id,
        replica_id=settings.node_id,
        replica_state=fetch_.ReplicaState(replica_id=settings.node_id),
        max_wait_ms=int(settings.fetch_wait_s * 1000),
        max_bytes=settings.fetch_max_bytes,
        topics=[fetch_.FetchTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[part])],
    )


def fetching_replica(request: fetch_.FetchRequest) -> int:
    return request.replica_state.replica_id if request.replica_state.replica_id >= 0 else request.replica_id


def fetch_response(
    state: ElectionState,
    *,
    error: ErrorCode = ErrorCode.NONE,
    high_watermark: int = -1,
    log_start: int = -1,
    records: bytes = b"",
    diverging: LogEnd | None = None,
    snapshot: SnapshotId | None = None,
) -> fetch_.FetchResponse:
    part = fetch_.PartitionData(
        partition_index=PARTITION,
        error_code=error,
        high_watermark=high_watermark,
        log_start_offset=log_start,
        current_leader=fetch_.LeaderIdAndEpoch(_id(state.leader_id), state.epoch),
        records=records,
    )
    if diverging is not None:
        part.diverging_epoch = fetch_.EpochEndOffset(diverging.epoch, diverging.offset)
    if snapshot is not None:
        part.snapshot_id = fetch_.SnapshotId(*snapshot)
    topic = fetch_.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=[part])
    return fetch_.FetchResponse(responses=[topic])


# ---- FetchSnapshot


def snapshot_request(
    settings: QuorumSettings, *, epoch: int, snapshot: SnapshotId, position: int
) -> snapshot_.FetchSnapshotRequest:
    part = snapshot_.RequestPartitionSnapshot(
        partition=PARTITION,
        current_leader_epoch=epoch,
        snapshot_id=snapshot_.SnapshotId(*snapshot),
        position=position,
        replica_directory_id=settings.directory_id,
    )
    return snapshot_.FetchSnapshotRequest(
        cluster_id=settings.cluster_id,
        replica_id=settings.node_id,
        max_bytes=settings.fetch_snapshot_max_bytes,
        topics=[snapshot_.RequestTopicSnapshot(name=TOPIC, partitions=[part])],
    )


def snapshot_response(
    state: ElectionState,
    snapshot: SnapshotId,
    *,
    error: ErrorCode = ErrorCode.NONE,
    size: int = 0,
    position: int = 0,
    data: bytes = b"",
) -> snapshot_.FetchSnapshotResponse:
    part = snapshot_.ResponsePartitionSnapshot(
        index=PARTITION,
        error_code=error,
        snapshot_id=snapshot_.SnapshotId(*snapshot),
        current_leader=snapshot_.LeaderIdAndEpoch(_id(state.leader_id), state.epoch),
        size=size,
        position=position,
        unaligned_records=data,
    )
    topic = snapshot_.ResponseTopicSnapshot(name=TOPIC, partitions=[part])
    return snapshot_.FetchSnapshotResponse(topics=[topic])
