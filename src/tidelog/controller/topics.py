"""CreateTopics: which topics may be created, and as what.

Owns the order in which a topic is checked (Kafka's: name, existence, settings, replicas, partitions), because the first
problem decides the answer. Topics of one request succeed or fail one by one; what succeeds is appended as one whole.
Unlike Kafka 4.3, two names that collide ('a.b', 'a_b') are refused also when they come in the same request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from tidelog.controller.assignment import Assignment, check_manual, partition_records, placed
from tidelog.controller.image import MetadataImage, ResourceType
from tidelog.controller.metadata_records import ConfigRecord, TopicRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.result import ConfigValidator, ControllerResult, ControllerSettings
from tidelog.controller.topic_ids import new_topic_id
from tidelog.errors import RequestError
from tidelog.ports import Rng
from tidelog.storage.files import topic_name_problem
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

METADATA_TOPIC: Final = "__cluster_metadata"
USE_DEFAULT: Final = -1


class TopicCreator:
    """One CreateTopics request against one image. `rng` draws topic ids and places replicas."""

    def __init__(
        self, image: MetadataImage, settings: ControllerSettings, validator: ConfigValidator, rng: Rng
    ) -> None:
        self._image = image
        self._settings = settings
        self._validator = validator
        self._rng = rng
        self._accepted: list[str] = []
        self._names: dict[str, str] | None = None
        """Existing and just accepted names by the form in which '.' and '_' are the same; made when first needed."""

    def create(self, request: CreateTopicsRequest) -> ControllerResult[CreateTopicsResponse]:
        try:
            self._check_limits(request)
        except RequestError as error:
            return _all_failed(dict.fromkeys(topic.name for topic in request.topics), error)
        records: list[MetadataRecord] = []
        results: dict[str, CreatableTopicResult] = {}
        occurrences = Counter(topic.name for topic in request.topics)
        for topic in request.topics:
            if topic.name in results:
                continue
            try:
                if occurrences[topic.name] > 1:
                    raise RequestError(
                        ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is in the request more than once"
                    )
                topic_records, results[topic.name] = self._plan(topic)
            except RequestError as error:
                results[topic.name] = _failed(topic.name, error)
            else:
                records += topic_records
                self._accept(topic.name)
        if len(records) > self._settings.records_per_request_max:
            return _all_failed(
                results,
                RequestError(
                    ErrorCode.POLICY_VIOLATION,
                    f"the request needs {len(records)} metadata records at once, at most"
                    f" {self._settings.records_per_request_max} are allowed: create the topics in several requests",
                ),
            )
        response = CreateTopicsResponse(topics=list(results.values()))
        return ControllerResult(response, [] if request.validate_only else records)

    def _check_limits(self, request: CreateTopicsRequest) -> None:
        wanted = sum(self._wanted_partitions(topic) for topic in request.topics)
        check_partition_limits(self._image, self._settings, wanted)

    def _wanted_partitions(self, topic: CreatableTopic) -> int:
        if topic.assignments:
            return len(topic.assignments)
        return (
            self._settings.num_partitions
            if topic.num_partitions == USE_DEFAULT
            else max(0, topic.num_partitions)
        )

    def _plan(self, topic: CreatableTopic) -> tuple[list[MetadataRecord], CreatableTopicResult]:
        self._check_name(topic.name)
        configs = self._checked_configs(topic)
        assignments = self._manual(topic) if topic.assignments else self._automatic(topic)
        topic_id = new_topic_id(self._rng, self._image.topics_by_id)
        records: list[MetadataRecord] = [TopicRecord(topic.name, topic_id)]
        records += [
            ConfigRecord(ResourceType.TOPIC, topic.name, name, value) for name, value in configs.items()
        ]
        records += partition_records(self._image, topic_id, 0, assignments)
        result = CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            error_message=None,
            num_partitions=len(assignments),
            replication_factor=len(assignments[0]),
            configs=self._validator.describe_topic(configs, self._image.broker_defaults),
        )
        return records, result

    # ---- names

    def _check_name(self, name: str) -> None:
        if name == METADATA_TOPIC:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, f"{name} is the cluster's own log and cannot be created"
            )
        problem = topic_name_problem(name)
        if problem is not None:
            raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name in self._image.topics_by_name:
            raise RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        if "." in name or "_" in name:
            other = self._known_names().get(_collision_form(name))
            if other is not None:
                raise RequestError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"topic {name!r} would collide with {other!r}: in metric names '.' and '_' are the same",
                )

    def _known_names(self) -> dict[str, str]:
        if self._names is None:
            known = (*self._image.topics_by_name, *self._accepted)
            self._names = {_collision_form(name): name for name in known}
        return self._names

    def _accept(self, name: str) -> None:
        self._accepted.append(name)
        if self._names is not None:
            self._names[_collision_form(name)] = name

    # ---- settings, partitions, replicas

    def _checked_configs(self, topic: CreatableTopic) -> dict[str, str]:
        configs: dict[str, str] = {}
        for config in topic.configs:
            if config.value is None:
                raise RequestError(
                    ErrorCode.INVALID_CONFIG,
                    f"{config.name} of topic {topic.name!r} has no value; leave it out instead",
                )
            configs[config.name] = config.value
        self._validator.validate_topic(topic.name, configs)
        return configs

    def _manual(self, topic: CreatableTopic) -> list[Assignment]:
        for given, what in (
            (topic.replication_factor, "replication factor"),
            (topic.num_partitions, "partition count"),
        ):
            if given != USE_DEFAULT:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST,
                    f"topic {topic.name!r} comes with an assignment of its own, so the {what} must be -1, not {given}",
                )
        by_index: dict[int, list[int]] = {}
        for assignment in topic.assignments:
            index = assignment.partition_index
            if index in by_index:
                raise RequestError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {index} is assigned more than once"
                )
            by_index[index] = assignment.broker_ids
        if sorted(by_index) != list(range(len(by_index))):
            raise RequestError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the assigned partitions must be 0 to {len(by_index) - 1} without a gap, not {sorted(by_index)}",
            )
        return check_manual(self._image, (by_index[index] for index in range(len(by_index))), None)

    def _automatic(self, topic: CreatableTopic) -> list[Assignment]:
        factor, count = topic.replication_factor, topic.num_partitions
        if factor == USE_DEFAULT:
            factor = self._settings.default_replication_factor
        elif factor <= 0:
            raise RequestError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"the replication factor must be 1 or more, or -1 for the default, not {factor}",
            )
        if count == USE_DEFAULT:
            count = self._settings.num_partitions
        elif count <= 0:
            raise RequestError(
                ErrorCode.INVALID_PARTITIONS,
                f"the number of partitions must be 1 or more, or -1 for the default, not {count}",
            )
        return placed(self._image, self._rng, partition_count=count, replication_factor=factor)


def check_partition_limits(image: MetadataImage, settings: ControllerSettings, wanted: int) -> None:
    """Refuses a request before any work is done for it (D9)."""
    if wanted > settings.partitions_per_request_max:
        raise RequestError(
            ErrorCode.POLICY_VIOLATION,
            f"the request asks for {wanted} partitions, at most {settings.partitions_per_request_max} are allowed in one",
        )
    if image.partition_count + wanted > settings.partitions_per_cluster_max:
        raise RequestError(
            ErrorCode.POLICY_VIOLATION,
            f"the cluster has {image.partition_count} partitions and {wanted} more would exceed its limit of"
            f" {settings.partitions_per_cluster_max}",
        )


def _collision_form(name: str) -> str:
    return name.replace(".", "_")


def _all_failed(names: Iterable[str], error: RequestError) -> ControllerResult[CreateTopicsResponse]:
    return ControllerResult(CreateTopicsResponse(topics=[_failed(name, error) for name in names]))


def _failed(name: str, error: RequestError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message, configs=None)
