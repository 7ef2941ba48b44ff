"""Batches as a Produce request, and what its answer says of each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.client.metadata import ZERO_ID, ClusterMetadata, TopicPartition
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.sender import Answer
from tidelog.client.settings import ProducerSettings
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

LAST_VERSION_WITH_NAMES: Final = 12


class WireRequest(NamedTuple):
    message: ProduceRequest
    at_most: int | None
    """The version up to which it can be sent; None: any."""
    names: Mapping[bytes, str]
    """Newer answers name topics by their ids."""


def produce_request(
    batches: Iterable[ProducerBatch], metadata: ClusterMetadata, settings: ProducerSettings
) -> WireRequest:
    topics: dict[str, TopicProduceData] = {}
    names: dict[bytes, str] = {}
    for batch in batches:
        name, number = batch.tp
        data = topics.get(name)
        if data is None:
            info = metadata.topics.get(name)
            topic_id = info.topic_id if info is not None else ZERO_ID
            names[topic_id] = name
            data = topics[name] = TopicProduceData(name=name, topic_id=topic_id, partition_data=[])
        records = batch.seal(settings.codec, settings.compression_level)
        data.partition_data.append(PartitionProduceData(index=number, records=records))
    request = ProduceRequest(
        acks=settings.required_acks,
        timeout_ms=settings.request_timeout_ms,
        topic_data=list(topics.values()),
    )
    return WireRequest(request, LAST_VERSION_WITH_NAMES if ZERO_ID in names else None, names)


def answers_of(response: ProduceResponse, names: Mapping[bytes, str]) -> dict[TopicPartition, Answer]:
    answers: dict[TopicPartition, Answer] = {}
    for topic in response.responses:
        name = topic.name or names.get(topic.topic_id, "")
        for each in topic.partition_responses:
            details = [e.batch_index_error_message for e in each.record_errors if e.batch_index_error_message]
            answers[TopicPartition(name, each.index)] = Answer(
                each.error_code,
                each.base_offset,
                each.log_append_time_ms,
                each.error_message or "; ".join(details) or None,
            )
    return answers
