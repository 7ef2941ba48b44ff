"""DeleteTopics: by name or by id, each topic at most once in a request.

Owns who is answered what. A topic id tells the topic that was meant from one of the same name created since.
"""

from __future__ import annotations

from collections import Counter

from tidelog.controller.image import MetadataImage, TopicImage
from tidelog.controller.metadata_records import RemoveTopicRecord
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.wire.types import ZERO_UUID


def delete_topics(
    image: MetadataImage, request: DeleteTopicsRequest, settings: ControllerSettings
) -> ControllerResult[DeleteTopicsResponse]:
    """Reads `topics` (version 6 on) and `topic_names` (before)."""
    wanted = [*request.topics, *(DeleteTopicState(name=name) for name in request.topic_names)]
    names = Counter(state.name for state in wanted if state.name is not None)
    ids = Counter(state.topic_id for state in wanted if state.topic_id != ZERO_UUID)
    records: list[MetadataRecord] = []
    results: list[DeletableTopicResult] = []
    answered: set[tuple[str | None, bytes]] = set()
    for state in wanted:
        if (state.name, state.topic_id) in answered and (
            state.name is not None or state.topic_id != ZERO_UUID
        ):
            continue  # a duplicate: one answer says so
        answered.add((state.name, state.topic_id))
        try:
            topic = _resolve(image, state, names, ids, settings)
        except RequestError as error:
            results.append(DeletableTopicResult(state.name, state.topic_id, error.code, error.message))
        else:
            records.append(RemoveTopicRecord(topic.topic_id))
            results.append(DeletableTopicResult(topic.name, topic.topic_id))
    return ControllerResult(DeleteTopicsResponse(responses=results), records)


def _resolve(
    image: MetadataImage,
    state: DeleteTopicState,
    names: Counter[str],
    ids: Counter[bytes],
    settings: ControllerSettings,
) -> TopicImage:
    if not settings.delete_topic_enable:
        raise RequestError(
            ErrorCode.TOPIC_DELETION_DISABLED, "topics cannot be deleted: delete.topic.enable is false"
        )
    by_name, by_id = state.name is not None, state.topic_id != ZERO_UUID
    if by_name == by_id:
        given = "both a name and an id" if by_name else "neither a name nor an id"
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"a topic to delete needs one of name and id, {given} was given"
        )
    if state.name is not None:
        if names[state.name] > 1:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, f"topic {state.name!r} is in the request more than once"
            )
        topic = image.topic(state.name)
        if topic is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {state.name!r}")
        if ids[topic.topic_id]:
            raise _named_twice(topic)
        return topic
    if ids[state.topic_id] > 1:
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"topic id {state.topic_id.hex()} is in the request more than once"
        )
    topic = image.topic_by_id(state.topic_id)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {state.topic_id.hex()}")
    if names[topic.name]:
        raise _named_twice(topic)
    return topic


def _named_twice(topic: TopicImage) -> RequestError:
    return RequestError(
        ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is in the request by its name and by its id"
    )
