"""Writing batches to one topic, as the command line needs it: bounded, ordered, and not one record twice.

A batch per partition is open, at most one per partition is on its way; `append` waits when both are full, which is all
the flow control there is. With acks=all the broker drops repeated batches by their sequence numbers, and with one batch
in flight a sequence number is given only after the one before it was accepted, so a retry neither duplicates nor
reorders. With acks 0 or 1 a retry after a lost connection may duplicate. The first batch that fails for good fails the
producer: everything after it would be out of order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.client.cluster import ClusterClient, PartitionMissingError
from tidelog.client.errors import BrokerError, ClientError, UnsupportedRequestError, check
from tidelog.client.metadata import ZERO_ID, TopicInfo, TopicPartition
from tidelog.client.partitioner import StickyPartitioner, partition_for_key
from tidelog.records.builder import BatchBuilder
from tidelog.records.compression import Codec
from tidelog.records.record import Headers
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

ACKS_ALL = -1
LAST_VERSION_WITH_NAMES = 12
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_RECORD_OVERHEAD = 24
_SEQUENCE_SPACE = 1 << 31


class OutgoingRecord(NamedTuple):
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of one batch. `base_offset` is -1 where the broker does not say (acks=0, a recognised repeat)."""

    partition: int
    base_offset: int
    record_count: int
    size_bytes: int
    latency_seconds: float


@dataclass(slots=True)
class _OpenBatch:
    records: list[OutgoingRecord] = field(default_factory=list)
    size_bytes: int = 0


class BatchProducer:
    def __init__(
        self,
        cluster: ClusterClient,
        topic: TopicInfo,
        *,
        acks: int = ACKS_ALL,
        codec: Codec = Codec.NONE,
        batch_bytes: int = 256 * 1024,
        delivery_timeout_ms: int = 120_000,
        on_delivered: Callable[[Delivered], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._acks = acks
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._on_delivered = on_delivered
        self._sticky = StickyPartitioner(list(topic.partitions))
        self._open: dict[int, _OpenBatch] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._producer_id = -1
        self._producer_epoch = -1
        self._sequences: dict[int, int] = {}

    async def start(self) -> None:
        """Get a producer id where repeats are recognised by it."""
        if self._acks != ACKS_ALL:
            return

        async def ask() -> InitProducerIdResponse:
            response: InitProducerIdResponse = await self._cluster.request(
                ApiKey.INIT_PRODUCER_ID,
                InitProducerIdRequest(
                    transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
                ),
            )
            check(response.error_code, "asking for a producer id")
            return response

        try:
            answer = await self._cluster.retrying(ask)
        except UnsupportedRequestError:
            return  # an old or small broker: retries may then duplicate, as they always did
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch

    # -- the caller's side ------------------------------------------------------------------------------------------

    async def append(self, record: OutgoingRecord, *, partition: int | None = None) -> None:
        """Take one record; waits while its partition has a full batch and another on its way."""
        if partition is None:
            partition = self._partition_for(record.key)
        elif partition not in self._topic.partitions:
            raise PartitionMissingError(
                TopicPartition(self._topic.name, partition), len(self._topic.partitions)
            )
        size = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD
        size += sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
        batch = self._open.get(partition)
        if batch is not None and batch.size_bytes + size > self._batch_bytes:
            await self._dispatch(partition)
            batch = None
        if batch is None:
            batch = self._open[partition] = _OpenBatch()
        batch.records.append(record)
        batch.size_bytes += size

    async def flush(self) -> None:
        """Everything appended so far is delivered when this returns, or it raises."""
        for partition in list(self._open):
            await self._dispatch(partition)
        sending, self._sending = self._sending, {}
        results = await asyncio.gather(*sending.values(), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        """Stop without delivering what is still open; flush first."""
        for task in self._sending.values():
            task.cancel()
        await asyncio.gather(*self._sending.values(), return_exceptions=True)

    def _partition_for(self, key: bytes | None) -> int:
        if key is None:
            return self._sticky.current
        return partition_for_key(key, len(self._topic.partitions))

    async def _dispatch(self, partition: int) -> None:
        previous = self._sending.pop(partition, None)
        if previous is not None:
            await previous
        batch = self._open.pop(partition)
        self._sticky.batch_closed(partition)
        self._sending[partition] = asyncio.create_task(self._deliver(partition, batch.records))

    # -- delivery ---------------------------------------------------------------------------------------------------

    async def _deliver(self, partition: int, records: list[OutgoingRecord]) -> None:
        sequence = self._sequences.get(partition, 0)
        batch = self._build(records, sequence)
        try:
            delivered = await self._deliver_batch(partition, batch, len(records))
        except BrokerError as error:
            if error.code not in _TOO_LARGE or len(records) == 1:
                raise
            # The topic's max.message.bytes is below our batch size: half of it may fit.
            middle = len(records) // 2
            await self._deliver(partition, records[:middle])
            await self._deliver(partition, records[middle:])
            return
        self._sequences[partition] = (sequence + len(records)) % _SEQUENCE_SPACE
        if self._on_delivered is not None:
            self._on_delivered(delivered)

    def _build(self, records: list[OutgoingRecord], sequence: int) -> bytes:
        idempotent = self._producer_id >= 0
        builder = BatchBuilder(
            codec=self._codec,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence if idempotent else -1,
        )
        for record in records:
            builder.append(record.timestamp, record.key, record.value, record.headers)
        return builder.build()

    async def _deliver_batch(self, partition: int, batch: bytes, record_count: int) -> Delivered:
        loop = asyncio.get_running_loop()
        tp = TopicPartition(self._topic.name, partition)
        started = loop.time()

        async def attempt() -> int:
            return await produce_batch(self._cluster, tp, batch, acks=self._acks)

        try:
            base_offset = await self._cluster.retrying(attempt, timeout_ms=self._delivery_timeout_ms)
        except ClientError as error:
            error.add_note(f"{record_count} records for {tp} were not delivered")
            raise
        return Delivered(partition, base_offset, record_count, len(batch), loop.time() - started)


async def produce_batch(
    cluster: ClusterClient, tp: TopicPartition, batch: bytes, *, acks: int, timeout_ms: int = 30_000
) -> int:
    """One batch to its leader, once. Returns the base offset, -1 if the broker does not say."""
    (leader,) = await cluster.by_leader([tp])
    topic_id = cluster.metadata.topics[tp.topic].topic_id
    connection = await cluster.connection(leader, lane="produce")
    request = ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=tp.topic,
                topic_id=topic_id,
                partition_data=[PartitionProduceData(index=tp.partition, records=batch)],
            )
        ],
    )
    at_most = LAST_VERSION_WITH_NAMES if topic_id == ZERO_ID else None
    if acks == 0:
        await connection.send_unanswered(ApiKey.PRODUCE, request, at_most=at_most)
        return -1
    response: ProduceResponse = await connection.request(
        ApiKey.PRODUCE, request, at_most=at_most, timeout_ms=timeout_ms + 5_000
    )
    answer = response.responses[0].partition_responses[0]
    if answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return -1  # an earlier try of this very batch had arrived, only its answer was lost
    details = [e.batch_index_error_message for e in answer.record_errors if e.batch_index_error_message]
    check(answer.error_code, f"writing to {tp}", answer.error_message or "; ".join(details) or None)
    return answer.base_offset
