"""What clients asked of a broker and what it answered, topic by topic: the promises that a crash must not break.

Everything has two places in the recording: where it was asked, from when on it may be true, and where it was answered with success, from
when on it must be. What was refused or never answered has only the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from tidelog.records.batch import LOG_OVERHEAD, PATCHED_PREFIX_SIZE, read_header
from tidelog.testing.syscalls.conversations import Exchange
from tidelog.testing.syscalls.strace import TraceError
from tidelog.wire.api import ApiKey
from tidelog.wire.types import ZERO_UUID

T = TypeVar("T")

LATEST: Final = -1
ACKS_ALL: Final = -1
TOPIC_RESOURCE: Final = 2
SET, DELETE = 0, 1


@dataclass(slots=True)
class Change(Generic[T]):
    """A value that was asked for."""

    value: T
    asked_at: int
    answered_at: int | None

    def is_promised(self, place: int) -> bool:
        return self.answered_at is not None and self.answered_at <= place


@dataclass(slots=True)
class SentBatch:
    """A batch that a producer sent; `base_offset` is where it was acknowledged."""

    data: bytes
    asked_at: int
    answered_at: int | None
    base_offset: int
    body: bytes
    records: int
    producer_id: int
    base_sequence: int

    def is_promised(self, place: int) -> bool:
        return self.answered_at is not None and self.answered_at <= place


def body_of(batch: bytes | memoryview) -> bytes:
    """What stays the same of a batch when the broker gives it an offset and an epoch, in short."""
    return hashlib.blake2b(
        bytes(batch[8:LOG_OVERHEAD]) + bytes(batch[PATCHED_PREFIX_SIZE:]), digest_size=16
    ).digest()


@dataclass(slots=True)
class PartitionHistory:
    batches: list[SentBatch] = field(default_factory=list)
    deletions: list[Change[int]] = field(default_factory=list)
    """Log starts that were asked for (-1: the high watermark of that moment)."""
    new_starts: list[Change[int]] = field(default_factory=list)
    """Log starts that were answered."""
    high_watermarks: list[Change[int]] = field(default_factory=list)
    """What clients were told: everything below can be read."""


@dataclass(slots=True)
class TopicHistory:
    """One life of a topic, from its creation to its deletion."""

    name: str
    created: Change[None]
    deleted: Change[None] | None = None
    topic_id: bytes = ZERO_UUID
    partition_counts: list[Change[int]] = field(default_factory=list)
    settings: dict[str, list[Change[str | None]]] = field(default_factory=dict)
    partitions: dict[int, PartitionHistory] = field(default_factory=dict)

    def partition(self, index: int) -> PartitionHistory:
        return self.partitions.setdefault(index, PartitionHistory())

    def set(self, name: str, change: Change[str | None]) -> None:
        self.settings.setdefault(name, []).append(change)


class History:
    """All lives of all topics, by name and in order, and the producer ids that were given out."""

    def __init__(self, exchanges: Iterable[Exchange]) -> None:
        self.topics: dict[str, list[TopicHistory]] = {}
        self.producer_ids: list[Change[int]] = []
        self._names: dict[bytes, str] = {}
        for exchange in exchanges:
            note = _NOTES.get(exchange.key)
            if note is not None:
                note(self, exchange)

    @property
    def acknowledged(self) -> int:
        """How many batches were."""
        return sum(batch.answered_at is not None for batch in self.batches())

    def batches(self) -> list[SentBatch]:
        return [
            batch
            for lives in self.topics.values()
            for life in lives
            for partition in life.partitions.values()
            for batch in partition.batches
        ]

    def _life(self, name: str, topic_id: bytes = ZERO_UUID) -> TopicHistory:
        name = name or self._names.get(topic_id, "")
        if name not in self.topics:
            raise TraceError(
                f"a request names the topic {name or topic_id.hex()}, whose creation was not seen"
            )
        return self.topics[name][-1]

    # ---- one note per API

    def _metadata(self, exchange: Exchange) -> None:
        for topic in exchange.response.topics if exchange.response is not None else ():
            if topic.error_code == 0 and topic.name in self.topics and topic.topic_id != ZERO_UUID:
                self._learn_id(self.topics[topic.name][-1], topic.topic_id)

    def _learn_id(self, life: TopicHistory, topic_id: bytes) -> None:
        life.topic_id = topic_id
        self._names[topic_id] = life.name

    def _create_topics(self, exchange: Exchange) -> None:
        results = _by(exchange, "topics", lambda result: result.name)
        for topic in exchange.request.topics:
            place = _answered(exchange, results.get(topic.name))
            life = TopicHistory(topic.name, Change(None, exchange.asked_at, place))
            life.partition_counts.append(Change(topic.num_partitions, exchange.asked_at, place))
            for config in topic.configs:
                life.set(config.name, Change(config.value, exchange.asked_at, place))
            self.topics.setdefault(topic.name, []).append(life)
            result = results.get(topic.name)
            if result is not None and result.topic_id != ZERO_UUID:
                self._learn_id(life, result.topic_id)

    def _delete_topics(self, exchange: Exchange) -> None:
        results = _by(exchange, "responses", lambda result: result.name)
        for name in exchange.request.topic_names or [topic.name for topic in exchange.request.topics]:
            place = _answered(exchange, results.get(name))
            self._life(name).deleted = Change(None, exchange.asked_at, place)

    def _create_partitions(self, exchange: Exchange) -> None:
        results = _by(exchange, "results", lambda result: result.name)
        for topic in exchange.request.topics:
            place = _answered(exchange, results.get(topic.name))
            self._life(topic.name).partition_counts.append(Change(topic.count, exchange.asked_at, place))

    def _alter_configs(self, exchange: Exchange) -> None:
        results = _by(exchange, "responses", lambda result: (result.resource_type, result.resource_name))
        for resource in exchange.request.resources:
            if resource.resource_type != TOPIC_RESOURCE:
                continue
            place = _answered(exchange, results.get((resource.resource_type, resource.resource_name)))
            for config in resource.configs:
                if config.config_operation not in (SET, DELETE):
                    raise TraceError(
                        f"operation {config.config_operation} on {config.name} is not known here"
                    )
                value = config.value if config.config_operation == SET else None
                self._life(resource.resource_name).set(config.name, Change(value, exchange.asked_at, place))

    def _produce(self, exchange: Exchange) -> None:
        results = {
            (topic.name, topic.topic_id, result.index): result
            for topic in (exchange.response.responses if exchange.response is not None else ())
            for result in topic.partition_responses
        }
        for topic in exchange.request.topic_data:
            life = self._life(topic.name, topic.topic_id)
            for data in topic.partition_data:
                result = results.get((topic.name, topic.topic_id, data.index))
                place = _answered(exchange, result) if exchange.request.acks == ACKS_ALL else None
                header = read_header(data.records)
                batch = SentBatch(
                    bytes(data.records), exchange.asked_at, place, -1 if place is None or result is None else result.base_offset,
                    body_of(data.records), header.record_count, header.producer_id, header.base_sequence,
                )  # fmt: skip
                life.partition(data.index).batches.append(batch)

    def _delete_records(self, exchange: Exchange) -> None:
        for topic in exchange.request.topics:
            for asked in topic.partitions:
                partition = self._life(topic.name).partition(asked.partition_index)
                partition.deletions.append(Change(asked.offset, exchange.asked_at, exchange.answered_at))
        for topic in exchange.response.topics if exchange.response is not None else ():
            for result in topic.partitions:
                if result.error_code == 0:
                    self._life(topic.name).partition(result.partition_index).new_starts.append(
                        Change(result.low_watermark, exchange.asked_at, exchange.answered_at)
                    )

    def _list_offsets(self, exchange: Exchange) -> None:
        if exchange.response is None:
            return
        latest = {
            (topic.name, asked.partition_index)
            for topic in exchange.request.topics
            for asked in topic.partitions
            if asked.timestamp == LATEST and exchange.request.isolation_level == 0
        }
        for topic in exchange.response.topics:
            for result in topic.partitions:
                if result.error_code == 0 and (topic.name, result.partition_index) in latest:
                    self._told(topic.name, ZERO_UUID, result.partition_index, result.offset, exchange)

    def _fetch(self, exchange: Exchange) -> None:
        for topic in exchange.response.responses if exchange.response is not None else ():
            for result in topic.partitions:
                if result.error_code == 0:
                    self._told(
                        topic.topic, topic.topic_id, result.partition_index, result.high_watermark, exchange
                    )

    def _told(self, name: str, topic_id: bytes, index: int, high_watermark: int, exchange: Exchange) -> None:
        partition = self._life(name, topic_id).partition(index)
        partition.high_watermarks.append(Change(high_watermark, exchange.asked_at, exchange.answered_at))

    def _init_producer_id(self, exchange: Exchange) -> None:
        if exchange.response is not None and exchange.response.error_code == 0:
            self.producer_ids.append(
                Change(exchange.response.producer_id, exchange.asked_at, exchange.answered_at)
            )


_NOTES: Final[dict[int, Callable[[History, Exchange], None]]] = {
    ApiKey.METADATA: History._metadata,
    ApiKey.CREATE_TOPICS: History._create_topics,
    ApiKey.DELETE_TOPICS: History._delete_topics,
    ApiKey.CREATE_PARTITIONS: History._create_partitions,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: History._alter_configs,
    ApiKey.PRODUCE: History._produce,
    ApiKey.DELETE_RECORDS: History._delete_records,
    ApiKey.LIST_OFFSETS: History._list_offsets,
    ApiKey.FETCH: History._fetch,
    ApiKey.INIT_PRODUCER_ID: History._init_producer_id,
}


def _answered(exchange: Exchange, result: Any) -> int | None:
    """Where the answer was given, if it says that the thing was done."""
    return exchange.answered_at if result is not None and result.error_code == 0 else None


def _by(exchange: Exchange, results: str, key: Callable[[Any], Any]) -> dict[Any, Any]:
    if exchange.response is None:
        return {}
    return {key(result): result for result in getattr(exchange.response, results)}
