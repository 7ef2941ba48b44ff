"""How the rows of a task reach the brokers, and what their being there is worth: at least once.

This is the seam for stronger promises. A strategy writes the rows of one task and says where they are (`write`, in a worker); once all tasks are done it is told on the driver, with
what each of them said, to make it count (`commit`) or to take it back (`abort`). At least once needs neither: a record counts as soon as the broker has acknowledged it, and
cannot be taken back. A task that Spark runs again writes its rows again; within a task, retries do not repeat or reorder any (the producer is idempotent).

Spark plans a write and commits each micro-batch in a new process: what only tasks need (Arrow, the encoder, sockets) is imported by `write`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidelog.client.errors import ClientError
from tidelog.spark.sink_options import SinkError, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.spark.sink_columns import SinkColumns

logger = logging.getLogger(__name__)


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
        from tidelog.spark.sink_producers import warm_producer
        from tidelog.spark.sink_sending import send

        try:
            with warm_producer(options.servers, options.client) as warm:
                return TaskResult(task, send(warm, columns, batches))
        except (ClientError, SinkError) as error:
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
