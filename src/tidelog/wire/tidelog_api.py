"""The messages of Tidelog's own APIs, which no Kafka has: keys from 20001 on, far above any that Kafka gives out.

They are never listed in ApiVersions, so that no client library infers anything from them. Who wants one sends it unasked; a broker that
is not Tidelog closes the connection, which is the answer. Where `wire/api.py` finds these classes is said there, in `TIDELOG_APIS`.

ExplainGroup (20001), version 0, to the group's coordinator: what happened to a group lately (`coordinator/group/history.py`), oldest
first. Times are the broker's wall clock. An event is one of the texts of `history.Event`; a reader passes over those it does not know.
A group that is gone may still have a history: it is told with the state "Dead". GROUP_ID_NOT_FOUND: neither group nor history.

ExplainTopic (20002), version 0, to a partition's leader: why each of its segments is still there (`storage/segment_fate.py`), oldest first. A fate
is one of the texts of `segment_fate.Fate`; -1 as `until_ms` means that time alone changes nothing. `now_ms` is the broker's wall clock, which
all of it was reckoned by.
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
