"""Requests that are valid and enormous: one array of one API holds very many entries, all the same or all different.

For each array of each served request, in the newest version. They show work that grows faster than the request, and answers that
are much larger than their questions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.fuzz.batches import NOW_MS, with_payload
from tests.fuzz.contents import CONFIG_OWNERS, TOPIC_FIELDS
from tests.fuzz.shapes import write
from tidelog.broker.apis import APIS
from tidelog.wire.api import ApiKey, first_flexible, spec
from tidelog.wire.plan import FieldPlan, StructPlan, plan_message

NUMBERS = {
    "acks": 1,
    "broker_ids": 0,
    "count": 2,
    "num_partitions": 1,
    "replication_factor": 1,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1000,
    "replica_id": -1,
    "session_epoch": -1,
    "current_leader_epoch": -1,
    "last_fetched_epoch": -1,
    "response_partition_limit": 2000,
    "timeout_ms": 10_000,
    "timestamp": NOW_MS,
    "resource_types": 2,
}


class Elephant(NamedTuple):
    name: str
    data: bytes


class _Entries:
    """Implements `shapes.Values`: sensible contents, one array of `count` entries."""

    def __init__(
        self, label: str, count: int, *, distinct: bool, topic: str, topic_id: bytes, resource_type: int
    ) -> None:
        self._label = label
        self._count = count
        self._numbers = itertools.count() if distinct else itertools.repeat(0)
        self._distinct = distinct
        self._topic = topic
        self._topic_id = topic_id
        self._resource_type = resource_type

    def chance(self, share: float) -> bool:
        return False

    def count(self, field: FieldPlan) -> int:
        if field.label == self._label:
            return self._count
        return 0 if field.name == "assignments" else 1

    def value(self, field: FieldPlan) -> Any:
        if field.kind == "bool":
            return field.name != "allow_auto_topic_creation" and field.name != "validate_only"
        if field.kind == "uuid":
            return next(self._numbers).to_bytes(16, "big") if self._distinct else self._topic_id
        if field.kind == "records":
            return with_payload(bytes(7))
        if field.kind == "string":
            return self._text(field)
        if field.kind in ("float64", "bytes"):
            return 0.0 if field.kind == "float64" else b""
        if field.name == "resource_type":
            return self._resource_type
        if field.name in NUMBERS:
            return NUMBERS[field.name]
        return next(self._numbers) % 127

    def _text(self, field: FieldPlan) -> str:
        number = next(self._numbers)
        if field.owner in CONFIG_OWNERS:
            return (
                (f"retention.mz{number}" if self._distinct else "retention.ms")
                if field.name == "name"
                else "1000"
            )
        if field.name == "resource_name" and self._resource_type == 4:
            return "0"
        if field.name in TOPIC_FIELDS or field.name in ("name", "resource_name"):
            return f"e{number}" if self._distinct else self._topic
        return f"x{number}"


def arrays_of(plan: StructPlan) -> Iterator[FieldPlan]:
    for field in (*plan.fields, *plan.tagged):
        if field.array:
            yield field
        if field.struct is not None:
            yield from arrays_of(field.struct)


def elephants(count: int, *, topic: str, topic_id: bytes) -> Iterator[Elephant]:
    """Each with `count` entries, most of them in one array. Frames without their length."""
    for api in APIS.values():
        key, version = int(api.key), api.max_version
        cls = spec(key).request_class
        arrays = {field.label: field for field in arrays_of(plan_message(cls, version))}
        for label, distinct in itertools.product(arrays, (False, True)):
            inner = arrays[label].struct
            # Each element brings one entry for every array inside it, and a request may have only so many in all.
            own = count // (1 + (len(list(arrays_of(inner))) if inner is not None else 0))
            kinds = (2, 4, 32) if "resource" in label else (2,)
            for kind in kinds:
                entries = _Entries(
                    label, own, distinct=distinct, topic=topic, topic_id=topic_id, resource_type=kind
                )
                head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\x00\x00\x00\x07\xff\xff"
                tags = b"\x00" if version >= first_flexible(key) else b""
                title = (
                    f"{ApiKey(key).name} {label} × {own}"
                    + (" distinct" if distinct else "")
                    + f" kind {kind}"
                )
                yield Elephant(title, head + tags + write(cls, version, entries).data)
