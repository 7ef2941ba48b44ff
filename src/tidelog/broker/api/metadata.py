"""Metadata (3), versions 0-13: which brokers there are, and who leads which partition.

1  null asks for all topics, internal flag    2  cluster id     4  auto-creation may be forbidden     5  offline replicas
7  leader epochs     8  authorized operations     9  flexible     10  topic ids     11  cluster operations moved out
12 topics may be asked for by id              13  error that asks the client to start over (KIP-1102)

A topic that does not exist is created where `auto.create.topics.enable` and the client allow it. As with Kafka, the request
that creates it is still answered with UNKNOWN_TOPIC_OR_PARTITION: a client that waits for a topic to be gone must see that it
was, also if its own question brings it back. The topic is there before the answer leaves, so the next request finds it.

A client whose leader has died asks at once, before anybody else can lead, and asks again only a second or two later. So an answer that would name a leader that has just gone
(`cluster/missing_nodes.py`) waits for the next one, a second at most. And one that names other nodes at all leaves a moment after the question: the client may have heard of a death sooner than this
broker, whose own connections to the dead close in the same few milliseconds; by then it has looked whether their ports are open. Brokers that have just left are still in the list of brokers (`cluster/departures.py`).
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.api.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from tidelog.broker.dispatch import RequestContext
from tidelog.broker.pending import Pending
from tidelog.cluster.missing_nodes import HOLD_S
from tidelog.controller.image import MetadataImage, PartitionImage, TopicImage
from tidelog.errors import RequestError
from tidelog.internal_topics import CLUSTER_METADATA, is_internal_topic
from tidelog.replication.assignment import NO_LEADER
from tidelog.storage.files import is_topic_name
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.types import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

LOOK_AROUND_S: Final = 0.01


def handle(
    broker: Broker, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | Pending | Coroutine[Any, Any, MetadataResponse]:
    topics = request.topics
    wants_all = topics is None or (context.version == 0 and not topics)
    if topics is not None and not wants_all:
        if context.version < 12 and any(
            topic.name is None or topic.topic_id != ZERO_UUID for topic in topics
        ):
            return _response(broker, context, request, [_refused(topic) for topic in topics])
        missing = _missing(broker, request, topics)
        if missing:
            return _create_and_answer(broker, context, request, topics, missing)
    asked = None if wants_all else topics
    if len(broker.image.brokers) == 1 or _leaders(broker.image, asked) <= {broker.node_id, NO_LEADER}:
        return _known(broker, context, request, asked)
    pending = context.defer()
    asked_at = broker.clock.monotonic()
    broker.scheduler.call_later(LOOK_AROUND_S, _look, broker, context, request, asked, pending, asked_at)
    return pending


def _known(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic] | None,
) -> MetadataResponse:
    """What is known about topics; None: about all."""
    if asked is not None:
        found = _find_all(broker, context, request, asked, {})
    else:
        found = [_describe(broker, request, topic) for topic in broker.image.topics_by_name.values()]
    return _response(broker, context, request, found)


def _look(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic] | None,
    pending: Pending,
    asked_at: float,
) -> None:
    if not pending.done and not context.connection.closed:
        others = _leaders(broker.image, asked) - {broker.node_id, NO_LEADER}
        answer = partial(_answer_when_leaders_are_there, broker, context, request, asked, pending)
        broker.node.missing.look(others, answer, since=asked_at)


def _answer_when_leaders_are_there(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic] | None,
    pending: Pending,
) -> None:
    def are_there(image: MetadataImage) -> bool:
        return not any(map(broker.node.missing.is_missing, _leaders(image, asked)))

    def done() -> None:
        timer.cancel()
        if not pending.done and not context.connection.closed:
            context.answer(pending, _known(broker, context, request, asked))

    timer = broker.scheduler.call_later(HOLD_S, done)
    if not broker.node.missing.any_missing() or are_there(broker.image):
        done()
    else:
        broker.node.replicas.when(are_there, done)


def _leaders(image: MetadataImage, asked: list[MetadataRequestTopic] | None) -> set[int]:
    """Who leads the topics of these that exist; None: all topics."""
    topics: Iterable[TopicImage | None] = image.topics_by_name.values()
    if asked is not None:
        topics = (
            image.topic(topic.name or "")
            if topic.topic_id == ZERO_UUID
            else image.topic_by_id(topic.topic_id)
            for topic in asked
        )
    return {
        partition.leader for topic in topics if topic is not None for partition in topic.partitions.values()
    }


def _missing(broker: Broker, request: MetadataRequest, topics: list[MetadataRequestTopic]) -> list[str]:
    """The topics to create before answering."""
    if not (request.allow_auto_topic_creation and broker.config.bool("auto.create.topics.enable")):
        return []
    known = broker.image.topics_by_name
    return [
        topic.name
        for topic in topics
        if topic.name is not None
        and topic.topic_id == ZERO_UUID
        and topic.name not in known
        and is_topic_name(topic.name)
        # The brokers' own topics come from their coordinators, with partition counts of their own.
        and not is_internal_topic(topic.name)
        and topic.name != CLUSTER_METADATA
    ]


async def _create_and_answer(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    topics: list[MetadataRequestTopic],
    missing: list[str],
) -> MetadataResponse:
    outcomes: dict[str, ErrorCode] = {}
    for name in missing:
        outcomes[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            await broker.topics.create_with_defaults(name)
        except RequestError as error:
            outcomes[name] = error.code
    return _response(broker, context, request, _find_all(broker, context, request, topics, outcomes))


def _find_all(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    topics: list[MetadataRequestTopic],
    outcomes: dict[str, ErrorCode],
) -> list[MetadataResponseTopic]:
    if any(topic.topic_id != ZERO_UUID for topic in topics):
        # A request by id is by id alone: names beside ids are not looked at, as in Kafka.
        return [
            _find_by_id(broker, request, topic.topic_id) for topic in topics if topic.topic_id != ZERO_UUID
        ]
    names = dict.fromkeys(topic.name or "" for topic in topics)
    return [_find(broker, request, name, outcomes) for name in names]


def _refused(topic: MetadataRequestTopic) -> MetadataResponseTopic:
    """Versions 10 and 11 have a field for the id, but topics can be asked for by id from 12 on only."""
    return MetadataResponseTopic(
        error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id
    )


def _find_by_id(broker: Broker, request: MetadataRequest, topic_id: bytes) -> MetadataResponseTopic:
    topic = broker.image.topic_by_id(topic_id)
    if topic is None:
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    return _describe(broker, request, topic)


def _find(
    broker: Broker, request: MetadataRequest, name: str, outcomes: dict[str, ErrorCode]
) -> MetadataResponseTopic:
    topic = broker.image.topic(name)
    if topic is not None and name not in outcomes:
        return _describe(broker, request, topic)
    if not is_topic_name(name):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        code = outcomes.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return MetadataResponseTopic(error_code=code, name=name, is_internal=is_internal_topic(name))


def _describe(broker: Broker, request: MetadataRequest, topic: TopicImage) -> MetadataResponseTopic:
    response = MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal_topic(topic.name),
        partitions=[
            _partition(broker, topic, index, partition) for index, partition in topic.partitions.items()
        ],
    )
    if request.include_topic_authorized_operations:
        response.topic_authorized_operations = TOPIC_OPERATIONS
    return response


def _partition(
    broker: Broker, topic: TopicImage, index: int, partition: PartitionImage
) -> MetadataResponsePartition:
    leader = broker.view.live_leader(topic, index, partition)
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=broker.view.offline_replicas(topic, index, partition),
    )


def _response(
    broker: Broker, context: RequestContext, request: MetadataRequest, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=found.node_id, host=found.host, port=found.port, rack=found.rack)
            for found in broker.view.endpoints(context.connection.listener_name, departed_too=True)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response
