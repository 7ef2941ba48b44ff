"""The messages of Tidelog's own APIs, which no Kafka has: keys from 20001 on, far above any that Kafka gives out.

They are never listed in ApiVersions, so that no client library infers anything from them. Who wants one sends it unasked; a broker that
is not Tidelog closes the connection, which is the answer. Where `wire/api.py` finds these classes is said there, in `TIDELOG_APIS`.

ExplainGroup (20001), version 0, to the group's coordinator: what happened to a group lately (`coordinator/group/history.py`), oldest
first. Times are the broker's wall clock. An event is one of the texts of `history.Event`; a reader passes over those it does not know.
A group that is gone may still have a history: it is told with the state "Dead". GROUP_ID_NOT_FOUND: neither group nor history.

ExplainTopic (20002), version 0, to a partition's leader: why each of its segments is still there (`storage/segment_fate.py`), oldest first. A fate
is one of the texts of `segment_fate.Fate`; -1 as `until_ms` means that time alone changes nothing. `now_ms` is the broker's wall clock, which
all of it was reckoned by.

ExplainReplicas (20003), version 0, to any broker: how the replicas of partitions stand, as far as this broker knows. Without topics: every partition that
has a replica here; with topics: those that are named, with or without one. What a follower has is told by the leader (`replication/leader.py`) and by itself;
since when a broker or a replica is away, and why, by every broker (`cluster/absences.py`): the one with the longest memory knows best. `is_exact` false: it was
so already when this broker started, at `since_ms`. -1 stands for what is not known here.
"""

from __future__ import annotations

from typing import ClassVar

from tidelog.wire.schema import Field, Schema, fresh, message


@message
class ExplainGroupRequest:
    group_id: str = ""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("group_id", "string"),
        versions=(0, 0),
        flexible=0,
    )


@message
class ExplainedEvent:
    wall_ms: int = 0
    event: str = ""
    generation: int = -1
    member_id: str = ""
    client: str = ""
    detail: str = ""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("wall_ms", "int64"),
        Field("event", "string"),
        Field("generation", "int32"),
        Field("member_id", "string"),
        Field("client", "string"),
        Field("detail", "string"),
    )


@message
class ExplainGroupResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    entries: list[ExplainedEvent] = fresh(default_factory=list)
    group_type: str = ""
    state: str = ""
    protocol: str = ""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("throttle_time_ms", "int32"),
        Field("error_code", "int16"),
        Field("error_message", "string", nullable=(0, None)),
        Field("entries", [ExplainedEvent]),
        Field("group_type", "string"),
        Field("state", "string"),
        Field("protocol", "string"),
        versions=(0, 0),
        flexible=0,
    )


@message
class ExplainTopicRequest:
    topic: str = ""
    partition: int = 0

    SCHEMA: ClassVar[Schema] = Schema(
        Field("topic", "string"),
        Field("partition", "int32"),
        versions=(0, 0),
        flexible=0,
    )


@message
class ExplainedSegment:
    base_offset: int = 0
    end_offset: int = 0
    size: int = 0
    newest_timestamp: int = -1
    age_ms: int = 0
    fate: str = ""
    until_ms: int = -1
    explanation: str = ""

    SCHEMA: ClassVar[Schema] = Schema(
        Field("base_offset", "int64"),
        Field("end_offset", "int64"),
        Field("size", "int64"),
        Field("newest_timestamp", "int64"),
        Field("age_ms", "int64"),
        Field("fate", "string"),
        Field("until_ms", "int64"),
        Field("explanation", "string"),
    )


@message
class ExplainTopicResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    now_ms: int = 0
    cleanup_policy: str = ""
    log_start_offset: int = -1
    last_stable_offset: int = -1
    high_watermark: int = -1
    log_end_offset: int = -1
    segments: list[ExplainedSegment] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(
        Field("throttle_time_ms", "int32"),
        Field("error_code", "int16"),
        Field("error_message", "string", nullable=(0, None)),
        Field("now_ms", "int64"),
        Field("cleanup_policy", "string"),
        Field("log_start_offset", "int64"),
        Field("last_stable_offset", "int64"),
        Field("high_watermark", "int64"),
        Field("log_end_offset", "int64"),
        Field("segments", [ExplainedSegment]),
        versions=(0, 0),
        flexible=0,
    )


@message
class ExplainReplicasTopic:
    topic: str = ""
    partitions: list[int] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(
        Field("topic", "string"),
        Field("partitions", ["int32"]),
    )


@message
class ExplainReplicasRequest:
    topics: list[ExplainReplicasTopic] | None = None

    SCHEMA: ClassVar[Schema] = Schema(
        Field("topics", [ExplainReplicasTopic], nullable=(0, None)),
        versions=(0, 0),
        flexible=0,
    )


@message
class ExplainedBroker:
    broker_id: int = 0
    state: str = ""
    since_ms: int = -1
    is_exact: bool = False

    SCHEMA: ClassVar[Schema] = Schema(
        Field("broker_id", "int32"),
        Field("state", "string"),
        Field("since_ms", "int64"),
        Field("is_exact", "bool"),
    )


@message
class ExplainedReplica:
    """As the leader sees it; times are how long ago something was."""

    broker_id: int = 0
    log_end_offset: int = -1
    in_sync: bool = False
    is_joining: bool = False
    holds_watermark: bool = False
    caught_up_ms: int = -1
    fetched_ms: int = -1

    SCHEMA: ClassVar[Schema] = Schema(
        Field("broker_id", "int32"),
        Field("log_end_offset", "int64"),
        Field("in_sync", "bool"),
        Field("is_joining", "bool"),
        Field("holds_watermark", "bool"),
        Field("caught_up_ms", "int64"),
        Field("fetched_ms", "int64"),
    )


@message
class ExplainedAbsence:
    broker_id: int = 0
    why: str = ""
    since_ms: int = -1
    is_exact: bool = False

    SCHEMA: ClassVar[Schema] = Schema(
        Field("broker_id", "int32"),
        Field("why", "string"),
        Field("since_ms", "int64"),
        Field("is_exact", "bool"),
    )


@message
class ExplainedPartition:
    topic: str = ""
    partition: int = 0
    role: str = ""
    problem: str = ""
    leader_epoch: int = -1
    log_start_offset: int = -1
    high_watermark: int = -1
    counted_end: int = -1
    log_end_offset: int = -1
    below_min: bool = False
    replicas: list[ExplainedReplica] = fresh(default_factory=list)
    absent: list[ExplainedAbsence] = fresh(default_factory=list)
    leaderless_since_ms: int = -1
    leaderless_is_exact: bool = False

    SCHEMA: ClassVar[Schema] = Schema(
        Field("topic", "string"),
        Field("partition", "int32"),
        Field("role", "string"),
        Field("problem", "string"),
        Field("leader_epoch", "int32"),
        Field("log_start_offset", "int64"),
        Field("high_watermark", "int64"),
        Field("counted_end", "int64"),
        Field("log_end_offset", "int64"),
        Field("below_min", "bool"),
        Field("replicas", [ExplainedReplica]),
        Field("absent", [ExplainedAbsence]),
        Field("leaderless_since_ms", "int64"),
        Field("leaderless_is_exact", "bool"),
    )


@message
class ExplainReplicasResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    broker_id: int = -1
    now_ms: int = 0
    controller_id: int = -1
    metadata_offset: int = -1
    brokers: list[ExplainedBroker] = fresh(default_factory=list)
    partitions: list[ExplainedPartition] = fresh(default_factory=list)

    SCHEMA: ClassVar[Schema] = Schema(
        Field("throttle_time_ms", "int32"),
        Field("error_code", "int16"),
        Field("error_message", "string", nullable=(0, None)),
        Field("broker_id", "int32"),
        Field("now_ms", "int64"),
        Field("controller_id", "int32"),
        Field("metadata_offset", "int64"),
        Field("brokers", [ExplainedBroker]),
        Field("partitions", [ExplainedPartition]),
        versions=(0, 0),
        flexible=0,
    )
