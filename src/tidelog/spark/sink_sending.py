"""The rows of one task on their way to the brokers: received from Spark, encoded and sent at the same time, each in a thread, with a few pieces between two of them.

Owns the order: rows of a partition arrive in the order in which the task had them. Every buffer is bounded: pieces that were handed over, pieces without an acknowledgement, and, in
the producer, `buffer.memory`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.metadata import TopicPartition
from tidelog.records.columnar_encode import ColumnError
from tidelog.spark.sink_columns import SinkColumns, by_topic, chunks
from tidelog.spark.sink_delivery import Written
from tidelog.spark.sink_options import SinkError
from tidelog.spark.sink_producers import WarmProducer

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.client.producer.arrow import ArrowDelivery
    from tidelog.client.producer.producer import Producer

HANDED_OVER_MAX: Final = 2
"""Pieces between the thread that hears from Spark and the one that sends."""
UNANSWERED_MAX: Final = 4
"""Pieces whose acknowledgements are not all there. This lets a failure end the task soon."""


def send(warm: WarmProducer, columns: SinkColumns, batches: Iterable[pa.RecordBatch]) -> tuple[Written, ...]:
    """Where they went, once all are acknowledged."""
    sending = _Sending(warm.producer, columns)
    handed_over: deque[Future[None]] = deque()
    try:
        for rows in chunks(batches):
            for topic, part in by_topic(columns, rows):
                if len(handed_over) >= HANDED_OVER_MAX:
                    handed_over.popleft().result()
                handed_over.append(warm.begin(sending.send(topic, part)))
        while handed_over:
            handed_over.popleft().result()
        return warm.run(sending.finish())
    except BaseException:
        for each in handed_over:
            each.cancel()
        raise


class _Sending:
    """The rows of one task on their way. Lives on the producer's loop."""

    def __init__(self, producer: Producer, columns: SinkColumns) -> None:
        self._producer = producer
        self._named: dict[str, Any] = {
            "key": columns.key,
            "value": "value",
            "headers": columns.headers,
            "partition": columns.partition,
            "timestamp": columns.timestamp,
        }
        self._turn = asyncio.Lock()  # waiters get it in their order, which is the rows'
        self._topics: set[str] = set()
        self._unanswered: deque[tuple[str, ArrowDelivery]] = deque()
        self._written: dict[TopicPartition, Written] = {}

    async def send(self, topic: str, rows: pa.RecordBatch) -> None:
        async with self._turn:
            if topic not in self._topics:
                # Asked anew by each task: since the last one it may have been created, have grown, or be another one.
                await self._producer.topics.learn(topic)
                self._topics.add(topic)
            try:
                delivery = await self._producer.send_arrow(topic, rows, **self._named)
            except ColumnError as error:
                raise SinkError(f"topic {topic}: {error}") from None
            self._unanswered.append((topic, delivery))
            while len(self._unanswered) > UNANSWERED_MAX:
                await self._answer()

    async def finish(self) -> tuple[Written, ...]:
        while self._unanswered:
            await self._answer()
        return tuple(self._written[tp] for tp in sorted(self._written))

    async def _answer(self) -> None:
        topic, delivery = self._unanswered.popleft()
        for partition, base, rows in await delivery:
            tp = TopicPartition(topic, partition)
            last = base + rows - 1 if base >= 0 else -1
            before = self._written.get(tp)
            self._written[tp] = (
                Written(topic, partition, rows, base, last)
                if before is None
                else Written(topic, partition, before.rows + rows, before.first_offset, last)
            )
