"""The state of the quorum for people: DescribeQuorum's data, from what the leader knows of the others.

Only a leader can tell; anybody else says who that is. Times are told as times of the wall clock, as far back as they were.
"""

from __future__ import annotations

from tidelog.ports import Clock
from tidelog.quorum.core import QuorumCore
from tidelog.quorum.roles import Leader, Replica
from tidelog.quorum.values import NO_NODE, PARTITION, TOPIC
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumResponse,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)


def describe(core: QuorumCore, clock: Clock) -> DescribeQuorumResponse:
    node, role = core.node, core.node.role
    part = ResponsePartitionData(
        partition_index=PARTITION,
        leader_id=NO_NODE if node.leader_id is None else node.leader_id,
        leader_epoch=node.epoch,
        high_watermark=node.high_watermark,
    )
    if isinstance(role, Leader):
        now_ms = clock.wall_ms()
        own = ReplicaState(
            replica_id=node.id,
            replica_directory_id=node.settings.directory_id,
            log_end_offset=node.log.end.offset,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
        voters = [own, *(_state(voter, replica, clock) for voter, replica in role.replicas.items())]
        part.current_voters = sorted(voters, key=lambda voter: voter.replica_id)
        part.observers = [_state(k, role.observers[k], clock) for k in sorted(role.observers)]
    else:
        part.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return DescribeQuorumResponse(topics=[ResponseTopicData(topic_name=TOPIC, partitions=[part])])


def _state(replica_id: int, replica: Replica, clock: Clock) -> ReplicaState:
    has_fetched = replica.end_offset >= 0
    return ReplicaState(
        replica_id=replica_id,
        log_end_offset=replica.end_offset,
        last_fetch_timestamp=_wall_ms(replica.fetched_at, clock) if has_fetched else -1,
        last_caught_up_timestamp=_wall_ms(replica.caught_up_at, clock),
    )


def _wall_ms(moment: float, clock: Clock) -> int:
    if moment < 0:
        return -1
    return clock.wall_ms() - round((clock.monotonic() - moment) * 1000)
