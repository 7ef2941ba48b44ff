"""Produce (0), versions 3-13 (0-2 are advertised, because old librdkafka compresses only then, and refused).

3  record batches of magic 2, transactional id    5  log start offset in the answer    7  zstd
8  record errors and message in the answer        9  flexible                          10  leader hints on NOT_LEADER
11-12  transactions v2 (KIP-890)                  13  topic ids instead of names

One batch per partition, checked by its header and CRC, patched and written; records are never walked here (D2).

Budget: 20 µs of CPU for a request with one batch of one record, the write included (`bench/budgets.py`). It is met by reading and
answering the frame by hand (`wire/produce_frames.py`) and by doing nothing per request that could be done per topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.leader_hints import LeaderHints
from tidelog.broker.pending import Pending
from tidelog.errors import ProtocolError, RequestError
from tidelog.internal_topics import is_internal_topic
from tidelog.records.validation import RecordsRefusedError
from tidelog.replication.partition import Partition
from tidelog.replication.purgatory import CommitWait
from tidelog.storage.disk import DiskError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.produce_frames import (
    FIRST_BY_ID,
    FIRST_WITH_LEADERS,
    Outcome,
    TopicOutcome,
    read_produce,
    write_produce_response,
)

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
_ACKS = frozenset((ACKS_NONE, ACKS_LEADER, ACKS_ALL))


def handle_frame(
    broker: Broker, context: RequestContext, frame: memoryview, position: int
) -> bytes | Pending | None:
    version = context.version
    _, acks, timeout_ms, topics = read_produce(frame, position, version)
    now_ms = broker.clock.wall_ms()
    by_id = version >= FIRST_BY_ID
    find = broker.partitions.find
    acks_all = acks == ACKS_ALL
    answers: list[TopicOutcome] = []
    names: list[str] = []
    waiting: list[tuple[Partition, int, Outcome]] = []
    for key, name, topic_id, batches in topics:
        if by_id:
            name = broker.partitions.topic_name(topic_id) or ""
        outcomes: list[Outcome] = []
        answers.append((key, outcomes))
        names.append(name)
        for index, records in batches:
            partition = find(name, index)
            try:
                if partition is None or not records or partition.internal or acks not in _ACKS:
                    raise _refusal(broker, name, topic_id if by_id else None, index, acks)
                result = partition.append(records, now_ms=now_ms, produce_version=version, acks_all=acks_all)
            except RequestError as error:
                outcomes.append(_refused(index, error))
            except DiskError as error:
                assert partition is not None
                outcomes.append(_disk_failed(broker, partition, error))
            else:
                base_offset, last_offset, append_time_ms, log_start_offset, _ = result
                outcome = Outcome(index, 0, base_offset, append_time_ms, log_start_offset)
                outcomes.append(outcome)
                if last_offset >= partition.log.high_watermark:
                    waiting.append((partition, last_offset, outcome))
    if acks == ACKS_NONE:
        _end_if_failed(answers)
        return None
    if waiting and acks_all:
        return _wait(broker, context, timeout_ms, names, answers, waiting)
    return _write(broker, context, names, answers)


def _write(broker: Broker, context: RequestContext, names: list[str], answers: list[TopicOutcome]) -> bytes:
    version = context.version
    if version < FIRST_WITH_LEADERS or not any(
        outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        for _, outcomes in answers
        for outcome in outcomes
    ):
        return write_produce_response(version, context.correlation_id, answers)
    hints = LeaderHints(broker)
    for name, (_, outcomes) in zip(names, answers, strict=True):
        for outcome in outcomes:
            if outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                outcome.current_leader = hints.leader_of(name, outcome.index)
    endpoints = hints.endpoints(context.connection.listener_name)
    return write_produce_response(version, context.correlation_id, answers, endpoints)


def _refusal(broker: Broker, topic: str, topic_id: bytes | None, index: int, acks: int) -> RequestError:
    """Why a batch may not be appended where it wants to go, in Kafka's order of looking."""
    if acks not in _ACKS:
        return RequestError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is 0, 1 or -1 (all), not {acks}")
    if topic_id is not None and not topic:
        return RequestError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id.hex()}")
    if is_internal_topic(topic):
        return RequestError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal and written by brokers only"
        )
    try:
        partition = broker.partitions.leader_of(topic, index)
    except RequestError as error:
        return error
    return RequestError(ErrorCode.INVALID_RECORD, f"no records for {partition!r}")


def _refused(index: int, error: RequestError) -> Outcome:
    record_errors = error.record_errors if isinstance(error, RecordsRefusedError) else ()
    return Outcome(index, error.code, -1, -1, -1, error.message, record_errors)


def _disk_failed(broker: Broker, partition: Partition, error: DiskError) -> Outcome:
    broker.partitions.disk_failed(partition, error)
    reason = f"the log directory of {partition!r} failed: {error}"
    return Outcome(partition.index, ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, -1, reason)


def _wait(
    broker: Broker,
    context: RequestContext,
    timeout_ms: int,
    names: list[str],
    answers: list[TopicOutcome],
    waiting: list[tuple[Partition, int, Outcome]],
) -> Pending:
    pending = context.defer()

    def answer() -> None:
        pending.complete(_write(broker, context, names, answers))

    wait = CommitWait(answer)
    for partition, last_offset, outcome in waiting:
        wait.add(partition, last_offset, _settler(outcome))
    wait.arm(broker.scheduler, timeout_ms=timeout_ms)
    return pending


class _settler:
    """Writes what became of one batch into its answer."""

    __slots__ = ("outcome",)

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def __call__(self, code: ErrorCode) -> None:
        if code:
            self.outcome.fail(code, code.name)


def _end_if_failed(answers: list[TopicOutcome]) -> None:
    """With acks=0 nobody hears of an error; a closed connection makes the client look at its metadata again."""
    for key, outcomes in answers:
        for outcome in outcomes:
            if outcome.error_code:
                raise ProtocolError(
                    f"produce with acks=0 to partition {outcome.index} of topic {key!r} failed with "
                    f"{ErrorCode(outcome.error_code).name}: {outcome.error_message}"
                )
