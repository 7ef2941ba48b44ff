"""How the rows of a task reach the brokers, and what their being there is worth: at least once.

This is the seam for stronger promises. A strategy writes the rows of one task and says where they are (`write`, in a worker); once all tasks are done it is told on the driver, with
what each of them said, to make it count (`commit`) or to take it back (`abort`). At least once needs neither: a record counts as soon as the broker has acknowledged it, and
cannot be taken back. A task that Spark runs again writes its rows again; within a task, retries do not repeat or reorder any (the producer is idempotent).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidelog.client.errors import ClientError
from tidelog.client.metadata import TopicPartition
from tidelog.records.columnar_encode import ColumnError
from tidelog.spark.sink_columns import SinkColumns, by_topic, chunks
from tidelog.spark.sink_options import SinkError, SinkOptions
from tidelog.spark.sink_producers import WarmProducer, warm_producer

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.client.producer.arrow import ArrowDelivery
    from tidelog.client.producer.producer import Producer

logger = logging.getLogger(__name__)

HANDED_OVER_MAX: Final = 2
"""Pieces between the thread that hears from Spark and the one that sends."""
UNANSWERED_MAX: Final = 4
"""Pieces whose acknowledgements are not all there. The bytes are bounded by `buffer.memory`; this lets a failure end the task soon."""


@dataclass(frozen=True, slots=True)
class Task:
    """Which part of the query's work this is. `query_id` and `batch_id` are None for a batch write."""

    partition_id: int
    attempt: int
    query_id: str | None
    batch_id: int | None

    def __str__(self) -> str:
        batch = "" if self.batch_id is None else f" of micro-batch {self.batch_id}"
        return f"task {self.partition_id}{batch} (attempt {self.attempt})"


@dataclass(frozen=True, slots=True)
class Written:
    """Rows of a task in one partition. Others may have written between them; offsets are -1 where the broker does not tell them (acks=0)."""

    topic: str
    partition: int
    rows: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class TaskResult:
    task: Task
    written: tuple[Written, ...]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.written)


class Delivery(Protocol):
    def write(
        self, options: SinkOptions, columns: SinkColumns, task: Task, batches: Iterable[pa.RecordBatch]
    ) -> TaskResult:
        """In a worker. Everything is acknowledged when this returns; SinkError says what was not, and why."""

    def commit(self, options: SinkOptions, results: Sequence[TaskResult], batch_id: int | None) -> None:
        """On the driver, once every task has succeeded."""

    def abort(self, options: SinkOptions, results: Sequence[TaskResult], batch_id: int | None) -> None:
        """On the driver, with the results of the tasks that had succeeded when another one failed for good."""


class AtLeastOnce:
    """Records count as soon as they are acknowledged."""

    def write(
        self, options: SinkOptions, columns: SinkColumns, task: Task, batches: Iterable[pa.RecordBatch]
    ) -> TaskResult:
        try:
            with warm_producer(options.servers, options.client) as warm:
                return TaskResult(task, _send(warm, columns, batches))
        except (ClientError, ColumnError, SinkError) as error:
            reasons = "; ".join([str(error), *getattr(error, "__notes__", ())])
            raise SinkError(f"{task} could not write all of its rows: {reasons}") from error

    def commit(self, options: SinkOptions, results: Sequence[TaskResult], batch_id: int | None) -> None:
        logger.debug("batch %s: %d rows written", batch_id, sum(each.rows for each in results))

    def abort(self, options: SinkOptions, results: Sequence[TaskResult], batch_id: int | None) -> None:
        rows = sum(each.rows for each in results)
        if rows:
            logger.warning(
                "a write failed after %d rows of other tasks had been written; they stay, and are written again if the write is repeated",
                rows,
            )


def _send(warm: WarmProducer, columns: SinkColumns, batches: Iterable[pa.RecordBatch]) -> tuple[Written, ...]:
    """Rows are received, encoded and sent at the same time, each in a thread; a few pieces are between two of them."""
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
            self._unanswered.append((topic, await self._producer.send_arrow(topic, rows, **self._named)))
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
