"""Fetch (1), versions 4-18.

5  log start offset            7  incremental sessions (KIP-227)     9  current leader epoch (KIP-320)
11 rack id (KIP-392)           12 flexible; diverging epoch          13 topic ids instead of names
15 replica state               16 leader hints on NOT_LEADER         17 directory id    18 high watermark of the follower

Answers are header bytes plus file ranges: data goes from the page cache to the socket. A fetch that finds fewer than
`min_bytes` waits for more, at most `max_wait_ms`; an error on any partition ends the wait at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidelog.broker.connection import Pending
from tidelog.broker.dispatch import RequestContext
from tidelog.errors import CorruptDataError, RequestError
from tidelog.replication.fetch_session import FetchContext, FetchTarget, PartitionKey, SessionError
from tidelog.replication.partition import Partition
from tidelog.storage.disk import DiskError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.wire.types import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

READ_COMMITTED = 1

logger = logging.getLogger("tidelog.broker")


def handle(broker: Broker, context: RequestContext, request: FetchRequest) -> FetchResponse | Pending:
    by_id = context.version >= 13
    try:
        fetch = broker.fetch_sessions.resolve(
            session_id=request.session_id,
            epoch=request.session_epoch,
            by_id=by_id,
            targets=_targets(broker, request, by_id=by_id),
            forgotten=_forgotten(request, by_id=by_id),
            now=broker.clock.monotonic(),
        )
    except SessionError as error:
        return FetchResponse(error_code=error.code)
    return _Fetch(broker, context, request, fetch).serve()


def _targets(broker: Broker, request: FetchRequest, *, by_id: bool) -> list[FetchTarget]:
    targets: list[FetchTarget] = []
    for topic in request.topics:
        name = (broker.partitions.topic_name(topic.topic_id) or "") if by_id else topic.topic
        targets.extend(
            FetchTarget(
                _key(topic.topic, topic.topic_id, partition.partition, by_id=by_id),
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
                partition.log_start_offset,
                name,
            )
            for partition in topic.partitions
        )
    return targets


def _forgotten(request: FetchRequest, *, by_id: bool) -> list[PartitionKey]:
    return [
        _key(topic.topic, topic.topic_id, partition, by_id=by_id)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]


def _key(name: str, topic_id: bytes, partition: int, *, by_id: bool) -> PartitionKey:
    return PartitionKey("", topic_id, partition) if by_id else PartitionKey(name, ZERO_UUID, partition)


class _Fetch:
    """One fetch request on its way: read, perhaps wait, answer."""

    __slots__ = (
        "broker",
        "committed_only",
        "context",
        "fetch",
        "limit_bytes",
        "min_bytes",
        "pending",
        "request",
        "waits_for",
    )

    def __init__(
        self, broker: Broker, context: RequestContext, request: FetchRequest, fetch: FetchContext
    ) -> None:
        self.broker = broker
        self.context = context
        self.request = request
        self.fetch = fetch
        self.committed_only = request.isolation_level == READ_COMMITTED
        self.limit_bytes = min(request.max_bytes, broker.fetch_bytes_max)
        # A reader that asks for more than fits into an answer would wait in vain.
        self.min_bytes = min(request.min_bytes, self.limit_bytes)
        self.waits_for: list[Partition] = []
        self.pending: Pending | None = None

    def serve(self) -> FetchResponse | Pending:
        request = self.request
        if request.max_wait_ms > 0 and self.min_bytes > 0 and self.fetch.targets and self._should_wait():
            return self._park()
        return self._respond()

    # ---- waiting

    def _should_wait(self) -> bool:
        """True when no partition has an error and all together have fewer than min_bytes; remembers what to watch."""
        available = 0
        self.waits_for = []
        for target in self.fetch.targets:
            try:
                partition = self._partition(target)
                available += self._available(partition, target)
                if target.last_fetched_epoch >= 0 and _diverging(partition, target) is not None:
                    return False
            except RequestError:
                return False
            if available >= self.min_bytes:
                return False
            self.waits_for.append(partition)
        return True

    def _available(self, partition: Partition, target: FetchTarget) -> int:
        log, offset = partition.log, target.fetch_offset
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise RequestError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset == log.log_end_offset:
            # Where a reader waits. Remembered, the bytes that will arrive are counted exactly, and found without a search.
            log.positions.remember(offset, log.active, log.active.size)
            return 0
        end = partition.visible_end(committed_only=self.committed_only)
        return min(log.bytes_between(offset, end), target.max_bytes) if offset < end else 0

    def _park(self) -> Pending:
        self.pending = self.context.defer()
        watched = self.waits_for
        parked = self.broker.fetch_purgatory.park(
            watched,
            max_wait_ms=self.request.max_wait_ms,
            is_ready=lambda: any(p.stopped_with is not None for p in watched) or not self._should_wait(),
            complete=self._complete,
        )
        self.pending.on_cancel = parked.cancel
        return self.pending

    def _complete(self) -> None:
        assert self.pending is not None
        self.context.answer(self.pending, self._respond())

    # ---- reading

    def _respond(self) -> FetchResponse:
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        session, incremental = self.fetch.session, self.fetch.incremental
        left = self.limit_bytes
        found_any = False
        for target in self.fetch.targets:
            key = target.key
            data = self._read(target, left, whole_first_batch=not found_any)
            size = len(data.records) if data.records is not None else 0
            left -= size
            found_any = found_any or size > 0
            if session is not None:
                must_answer = session.must_answer(
                    key,
                    has_records=size > 0,
                    error=data.error_code,
                    diverging=data.diverging_epoch.epoch >= 0,
                    high_watermark=data.high_watermark,
                    log_start_offset=data.log_start_offset,
                )
                if incremental and not must_answer:
                    continue
            topic = topics.get(key[:2])
            if topic is None:
                topic = topics[key[:2]] = FetchableTopicResponse(topic=key.topic, topic_id=key.topic_id)
            topic.partitions.append(data)
        return FetchResponse(session_id=self.fetch.session_id, responses=list(topics.values()))

    def _read(self, target: FetchTarget, left: int, *, whole_first_batch: bool) -> PartitionData:
        data = PartitionData(
            partition_index=target.key.partition,
            high_watermark=-1,
            log_start_offset=-1,
            aborted_transactions=[] if self.committed_only else None,
            records=b"",
        )
        try:
            partition = self._partition(target)
            try:
                self._fill(data, partition, target, left, whole_first_batch=whole_first_batch)
            except DiskError as error:
                self.broker.partitions.disk_failed(partition, error)
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR) from error
            except CorruptDataError as error:
                logger.error("%r cannot be read at offset %d: %s", partition, target.fetch_offset, error)
                raise RequestError(ErrorCode.CORRUPT_MESSAGE) from error
        except RequestError as error:
            data.error_code = error.code
        return data

    def _partition(self, target: FetchTarget) -> Partition:
        if not target.name:
            # Unknown when the session heard of it; perhaps the topic is there by now.
            target.name = self.broker.partitions.topic_name(target.key.topic_id) or ""
            if not target.name:
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = self.broker.partitions.leader_of(target.name, target.key.partition)
        if target.key.topic_id not in (ZERO_UUID, partition.topic_id):
            raise RequestError(ErrorCode.INCONSISTENT_TOPIC_ID)
        partition.check_leader_epoch(target.current_leader_epoch)
        return partition

    def _fill(
        self,
        data: PartitionData,
        partition: Partition,
        target: FetchTarget,
        left: int,
        *,
        whole_first_batch: bool,
    ) -> None:
        log = partition.log
        if target.last_fetched_epoch >= 0:
            diverging = _diverging(partition, target)
            if diverging is not None:
                data.diverging_epoch = diverging
                _fill_watermarks(data, partition)
                return
        end = partition.visible_end(committed_only=self.committed_only)
        read = log.read(
            target.fetch_offset,
            max(min(target.max_bytes, left), 0),
            end_offset=end,
            min_one_batch=whole_first_batch,
        )
        _fill_watermarks(data, partition)
        if read.range is not None:
            data.records = read.range
            if self.committed_only:
                data.aborted_transactions = [
                    AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                    for aborted in log.aborted_transactions(target.fetch_offset, read.upper_offset)
                ]


def _fill_watermarks(data: PartitionData, partition: Partition) -> None:
    log = partition.log
    data.high_watermark = log.high_watermark
    data.last_stable_offset = log.last_stable_offset
    data.log_start_offset = log.log_start_offset


def _diverging(partition: Partition, target: FetchTarget) -> EpochEndOffset | None:
    """KIP-595: a reader whose last epoch ended earlier in our log than it thinks has records that we do not have."""
    epoch, end_offset = partition.log.end_offset_for_epoch(target.last_fetched_epoch)
    if epoch < 0:
        raise RequestError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < target.last_fetched_epoch or end_offset < target.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None
