"""The messages of Tidelog's own APIs, which no Kafka has: keys from 20001 on, far above any that Kafka gives out.

They are never listed in ApiVersions, so that no client library infers anything from them. Who wants one sends it unasked; a broker that
is not Tidelog closes the connection, which is the answer. Where `wire/api.py` finds these classes is said there, in `TIDELOG_APIS`.

ExplainGroup (20001), version 0, to the group's coordinator: what happened to a group lately (`coordinator/group/history.py`), oldest
first. Times are the broker's wall clock. An event is one of the texts of `history.Event`; a reader passes over those it does not know.
A group that is gone may still have a history: it is told with the state "Dead". GROUP_ID_NOT_FOUND: neither group nor history.
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
