"""What stands in the fields of a generated request: mostly what a client would write, now and then a word of the dictionary.

Fields are known by name, so that a request gets past the first check and reaches the code behind it. Against a live broker the
same contents are used, with its own topics; nothing here asks a broker for something that would rightly disturb others (a
limit of zero connections, a topic of ten thousand partitions, the bystander's topic).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.fuzz import batches
from tests.fuzz.dictionary import (
    BROKER_CONFIG_NAMES,
    CONFIG_NAMES,
    CONFIG_VALUES,
    EDGES,
    LOGGER_NAMES,
    STRINGS,
    TOPIC_NAMES,
)
from tidelog.wire.plan import FieldPlan

BATCH_POOL = 256
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
TOPIC_FIELDS = frozenset(("topic", "topic_name", "topic_names"))
TOPICS = ("fuzz-0", "fuzz-1", "fuzz-2", "a.b")
SCRATCH_TOPICS = ("new", "new-1", "new_2")
"""Made and deleted by the fuzzer itself; all others stay, so that there is something to write to and to read."""
MAKERS_OF_TOPICS = frozenset(("CreatableTopic", "DeleteTopicState", "DeleteTopicsRequest"))
CONFIG_OWNERS = frozenset(("AlterableConfig", "CreatableTopicConfig"))

#: Sensible numbers by field name; the dictionary's edges come in beside them.
NUMBERS: dict[str, tuple[int, ...]] = {
    "acks": (-1, -1, -1, 1, 1, 1, 0),
    "broker_ids": (0, 0, 0, 1),
    "config_operation": (0, 1, 2, 3, 4),
    "count": (1, 2, 3),
    "current_leader_epoch": (-1, -1, 0, 1),
    "endpoint_type": (1, 1, 2),
    "fetch_offset": (0, 0, 1, 5, 1000),
    "index": (0, 0, 1, 2),
    "isolation_level": (0, 1, 2),
    "key_type": (0, 1, 2, 3),
    "last_fetched_epoch": (-1, -1, 0, 1),
    "leader_epoch": (0, 0, 1, -1),
    "max_bytes": (1, 1000, 1 << 20, 1 << 30),
    "max_wait_ms": (0, 0, 0, 1, 5),
    "min_bytes": (0, 0, 1, 1000),
    "num_partitions": (-1, 1, 1, 2, 3),
    "offset": (0, -1, 1, 5),
    "partition": (0, 0, 1, 2),
    "partition_index": (0, 0, 1, 2),
    "partition_max_bytes": (1, 1000, 1 << 20),
    "partitions": (0, 0, 1, 2),
    "replica_id": (-1, -1, -2, 0),
    "replication_factor": (-1, 1, 1, 2),
    "resource_type": (2, 2, 2, 4, 8, 16, 32, 3),
    "resource_types": (2, 4, 8, 16, 32),
    "response_partition_limit": (1, 2, 1000),
    "session_epoch": (-1, -1, 0, 0, 1, 2),
    "session_id": (0, 0, 0, 1),
    "timeout_ms": (0, 1, 100, 1000),
    "timestamp": (-1, -2, -3, -4, -5, -6, 0, batches.NOW_MS, batches.NOW_MS + 5),
}
#: Where an edge would be obeyed, and rightly: a fetch parked for three weeks, a topic of two billion partitions.
NO_EDGES = frozenset(("num_partitions", "count"))
EDGE_WAITS = (-1, -(1 << 31), 0)


class Contents:
    """Implements `shapes.Values`."""

    def __init__(
        self,
        rng: Random,
        *,
        topics: Sequence[str] = TOPICS,
        topic_ids: Sequence[bytes] = (),
        now_ms: int = batches.NOW_MS,
        hostile: float = 0.15,
    ) -> None:
        self._rng = rng
        self._topics = (*topics, *topics, *SCRATCH_TOPICS)
        self._ids = tuple(topic_ids)
        self._hostile = hostile
        self._resource_type = TOPIC  # of the resource being written: its name and settings go with it
        self._batches = [
            batches.hostile(rng, now_ms=now_ms)[1]
            if rng.random() < 0.6
            else batches.sound(rng, now_ms=now_ms)
            for _ in range(BATCH_POOL)
        ]
        self._by_kind: dict[str, Callable[[FieldPlan], Any]] = {
            "bool": lambda field: rng.random() < 0.5,
            "float64": lambda field: rng.choice((0.0, -1.5, 1e308, float("inf"))),
            "uuid": self._uuid,
            "string": self._string,
            "bytes": lambda field: rng.choice((b"", b"x", rng.randbytes(30))),
            "records": lambda field: rng.choice(self._batches),
        }

    def chance(self, share: float) -> bool:
        return self._rng.random() < share

    def count(self, field: FieldPlan) -> int:
        return self._rng.choice((0, 1, 1, 1, 2, 3) if field.struct is not None else (0, 1, 2, 5))

    def value(self, field: FieldPlan) -> Any:
        known = self._by_kind.get(field.kind)
        return known(field) if known is not None else self._number(field)

    def _number(self, field: FieldPlan) -> int:
        usual = NUMBERS.get(field.name)
        if usual is None:
            return self._rng.choice(EDGES[field.kind])
        if field.name == "resource_type":
            self._resource_type = self._rng.choice(usual)
            return self._resource_type
        if field.name in NO_EDGES or not self.chance(self._hostile):
            return self._rng.choice(usual)
        return self._rng.choice(EDGE_WAITS if field.name == "max_wait_ms" else EDGES[field.kind])

    def _string(self, field: FieldPlan) -> str:
        if field.owner in CONFIG_OWNERS:
            words: Sequence[str] = self._config_names(field) if field.name == "name" else CONFIG_VALUES
            return self._rng.choice(STRINGS if self.chance(0.05) else words)
        if field.name == "configuration_keys":
            return self._rng.choice(CONFIG_NAMES + BROKER_CONFIG_NAMES)
        if field.name == "resource_name" and self._resource_type in (BROKER, BROKER_LOGGER):
            return self._rng.choice(STRINGS if self.chance(self._hostile) else ("", "0", "0", "1"))
        if field.name in TOPIC_FIELDS or field.name in ("name", "resource_name"):
            pool = SCRATCH_TOPICS if field.owner in MAKERS_OF_TOPICS else self._topics
            return self._rng.choice(TOPIC_NAMES if self.chance(self._hostile) else pool)
        return self._rng.choice(STRINGS if self.chance(self._hostile) else ("", "a", "fuzz", "1.0"))

    def _uuid(self, field: FieldPlan) -> bytes:
        strange = (bytes(16), bytes(15) + b"\x01", b"\xff" * 16)
        if field.owner in MAKERS_OF_TOPICS or not self._ids or self.chance(self._hostile):
            return self._rng.choice(strange)
        return self._rng.choice(self._ids)

    def _config_names(self, field: FieldPlan) -> Sequence[str]:
        if field.owner == "AlterableConfig" and self._resource_type != TOPIC:
            return LOGGER_NAMES if self._resource_type == BROKER_LOGGER else BROKER_CONFIG_NAMES
        return CONFIG_NAMES
