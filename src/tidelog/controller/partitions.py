"""CreatePartitions: more partitions for topics that exist.

Owns the rule that the count only grows. New partitions have as many replicas as the topic's first.
"""

from __future__ import annotations

from collections import Counter

from tidelog.controller.assignment import check_manual, partition_records, placed
from tidelog.controller.image import MetadataImage, TopicImage
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.controller.topics import check_partition_limits
from tidelog.errors import RequestError
from tidelog.ports import Rng
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def create_partitions(
    image: MetadataImage, request: CreatePartitionsRequest, settings: ControllerSettings, rng: Rng
) -> ControllerResult[CreatePartitionsResponse]:
    occurrences = Counter(topic.name for topic in request.topics)
    records: list[MetadataRecord] = []
    results: dict[str, CreatePartitionsTopicResult] = {}
    for wanted in request.topics:
        if wanted.name in results:
            continue
        result = results[wanted.name] = CreatePartitionsTopicResult(name=wanted.name)
        try:
            if occurrences[wanted.name] > 1:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST, f"topic {wanted.name!r} is in the request more than once"
                )
            topic = _existing(image, wanted)
            added = wanted.count - len(topic.partitions)
            check_partition_limits(image, settings, len(records) + added)
            records += _new_partitions(image, topic, wanted, added, rng)
        except RequestError as error:
            result.error_code, result.error_message = error.code, error.message
    response = CreatePartitionsResponse(results=list(results.values()))
    return ControllerResult(response, [] if request.validate_only else records)


def _existing(image: MetadataImage, wanted: CreatePartitionsTopic) -> TopicImage:
    topic = image.topic(wanted.name)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {wanted.name!r}")
    current = len(topic.partitions)
    if wanted.count <= current:
        raise RequestError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {wanted.name!r} has {current} partitions; {wanted.count} would not be more, and partitions are never removed",
        )
    return topic


def _new_partitions(
    image: MetadataImage, topic: TopicImage, wanted: CreatePartitionsTopic, added: int, rng: Rng
) -> list[MetadataRecord]:
    replicas = len(topic.partitions[0].replicas)
    if wanted.assignments is None:
        assignments = placed(image, rng, partition_count=added, replication_factor=replicas)
    elif len(wanted.assignments) != added:
        raise RequestError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} partitions would be added to topic {topic.name!r}, but {len(wanted.assignments)} assignments are given",
        )
    else:
        assignments = check_manual(image, (given.broker_ids for given in wanted.assignments), replicas)
    return [*partition_records(image, topic.topic_id, len(topic.partitions), assignments)]
