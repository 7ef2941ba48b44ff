"""Produce (0), versions 3-13 (0-2 are advertised, because old librdkafka compresses only then, and refused).

3  record batches of magic 2, transactional id    5  log start offset in the answer    7  zstd
8  record errors and message in the answer        9  flexible                          10  leader hints on NOT_LEADER
11-12  transactions v2 (KIP-890)                  13  topic ids instead of names

One batch per partition, checked by its header and CRC, patched and written; records are never walked here (D2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.connection import Pending
from tidelog.broker.dispatch import NO_ANSWER, NoAnswer, RequestContext
from tidelog.errors import ProtocolError, RequestError
from tidelog.internal_topics import is_internal_topic
from tidelog.records.validation import RecordsRefusedError
from tidelog.replication.partition import Partition
from tidelog.replication.purgatory import CommitWait
from tidelog.storage.disk import DiskError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Pending | NoAnswer:
    waiting: list[tuple[Partition, int, PartitionProduceResponse]] = []
    response = ProduceResponse(
        responses=[_produce_topic(broker, context, request, topic, waiting) for topic in request.topic_data]
    )
    if request.acks == ACKS_NONE:
        _end_if_failed(response)
        return NO_ANSWER
    if request.acks == ACKS_ALL and waiting:
        return _wait(broker, context, request, response, waiting)
    return response


def _produce_topic(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    data: TopicProduceData,
    waiting: list[tuple[Partition, int, PartitionProduceResponse]],
) -> TopicProduceResponse:
    by_id = context.version >= 13
    name = broker.partitions.topic_name(data.topic_id) if by_id else data.name
    answers = []
    for partition_data in data.partition_data:
        answer = PartitionProduceResponse(index=partition_data.index, base_offset=-1, log_append_time_ms=-1)
        answers.append(answer)
        try:
            if name is None:
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {data.topic_id.hex()}")
            partition, last_offset = _append(broker, context, request, name, partition_data, answer)
        except RequestError as error:
            answer.error_code = error.code
            answer.error_message = error.message
            if isinstance(error, RecordsRefusedError):
                answer.record_errors = [
                    BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
                    for index, reason in error.record_errors
                ]
        else:
            if not partition.is_committed(last_offset):
                waiting.append((partition, last_offset, answer))
    return TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=answers)


def _append(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    topic: str,
    data: PartitionProduceData,
    answer: PartitionProduceResponse,
) -> tuple[Partition, int]:
    if not ACKS_ALL <= request.acks <= ACKS_LEADER:
        raise RequestError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is 0, 1 or -1 (all), not {request.acks}")
    if is_internal_topic(topic):
        raise RequestError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal and written by brokers only"
        )
    partition = broker.partitions.leader_of(topic, data.index)
    if not data.records:
        raise RequestError(ErrorCode.INVALID_RECORD, f"no records for {partition!r}")
    try:
        result = partition.append(
            data.records, now_ms=broker.clock.wall_ms(), produce_version=context.version
        )
    except DiskError as error:
        broker.partitions.disk_failed(partition, error)
        raise RequestError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {partition!r} failed"
        ) from error
    answer.base_offset = result.base_offset
    answer.log_append_time_ms = result.log_append_time_ms
    answer.log_start_offset = result.log_start_offset
    return partition, result.last_offset


def _wait(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    response: ProduceResponse,
    waiting: list[tuple[Partition, int, PartitionProduceResponse]],
) -> Pending:
    pending = context.defer()
    wait = CommitWait(lambda: context.answer(pending, response))
    for partition, last_offset, answer in waiting:
        wait.add(partition, last_offset, _settler(answer))
    wait.arm(broker.scheduler, timeout_ms=request.timeout_ms)
    return pending


class _settler:
    """Writes the outcome of one batch into its answer."""

    __slots__ = ("answer",)

    def __init__(self, answer: PartitionProduceResponse) -> None:
        self.answer = answer

    def __call__(self, code: ErrorCode) -> None:
        if code:
            self.answer.error_code = code
            self.answer.base_offset = -1
            self.answer.error_message = code.name


def _end_if_failed(response: ProduceResponse) -> None:
    """With acks=0 nobody hears of an error; a closed connection makes the client look at its metadata again."""
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                code = ErrorCode(partition.error_code)
                raise ProtocolError(
                    f"produce with acks=0 to {topic.name or topic.topic_id.hex()}-{partition.index} failed with "
                    f"{code.name}: {partition.error_message}"
                )
