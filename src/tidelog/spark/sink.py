"""The sink of `format("tidelog")`, batch and streaming: Arrow batches from Spark become records, by the column.

Owns Spark's side: what is checked when a query is planned, what is pickled to workers and back. How rows are delivered, and what that promises, is `sink_delivery`'s. A writer holds options and
names of columns, nothing that lives. Spark runs `commit` and `abort` in another process than `write`, a new one for each micro-batch: no state is kept between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidelog.spark.sink_columns import columns_for
from tidelog.spark.sink_delivery import AtLeastOnce, Delivery, Task, TaskResult
from tidelog.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a micro-batch. Not documented: a test holds it to them."""


@dataclass(frozen=True, slots=True)
class TaskWritten(WriterCommitMessage):
    """What a task tells the driver: what it has written, and where."""

    result: TaskResult


class _Sink:
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SinkOptions.parse(options)
        self._columns = columns_for(self._options, schema)
        self._delivery: Delivery = AtLeastOnce()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        return TaskWritten(self._delivery.write(self._options, self._columns, this_task(), iterator))


class BatchSink(_Sink, DataSourceArrowWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._delivery.commit(self._options, _results(messages), None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._delivery.abort(self._options, _results(messages), None)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._delivery.commit(self._options, _results(messages), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._delivery.abort(self._options, _results(messages), batchId)


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    return [each.result for each in messages if isinstance(each, TaskWritten)]


def this_task() -> Task:
    """Which task of which micro-batch this worker runs."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("rows are written by Spark's tasks, and this is none")
    batch_id = context.getLocalProperty(BATCH_ID)
    return Task(
        partition_id=context.partitionId(),
        attempt=context.attemptNumber(),
        query_id=context.getLocalProperty(QUERY_ID),
        batch_id=None if batch_id is None else int(batch_id),
    )
