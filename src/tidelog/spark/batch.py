"""A bounded read from brokers: ranges are settled when the query is planned, and each is read by a task."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tidelog.spark.bounds import batch_ranges, beyond, check_all_there, offsets_of, within
from tidelog.spark.fetch import TaskRange
from tidelog.spark.filters import Narrowing
from tidelog.spark.logs import Logs
from tidelog.spark.loss import DataLossError
from tidelog.spark.options import SourceOptions
from tidelog.spark.ranges import OffsetRange, pack, split
from tidelog.spark.task import TaskPartition, TaskReader

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class PushFilters:
    """`pushFilters` for sessions with filter push-down, and nothing at all for those without: there Spark refuses a source that has one.

    It looks at what the method is made of, and takes the one of its own base class for "not implemented".
    """

    def __init__(self, narrowing: Narrowing) -> None:
        self._narrowing = narrowing
        self.__func__ = (
            DataSourceReader.pushFilters
        )  # of the object: one of the class would be bound, and another

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._narrowing.take(filters)


class BatchReader(DataSourceReader):
    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = options = SourceOptions.parse(given, is_stream=False)
        self._narrowing = Narrowing()
        self._task = TaskReader.of(options, schema)

    @property
    def pushFilters(self) -> PushFilters:
        return PushFilters(self._narrowing)

    def __getstate__(self) -> dict[str, Any]:
        """To workers goes what they need: filters are for planning."""
        return {"_task": self._task}

    def partitions(self) -> list[InputPartition]:
        options = self._options
        warn_of_ignored(options)
        logs = Logs(options)
        view = logs.look()
        check_all_there(options.subscription, view)
        starts = offsets_of(options.start, view, logs.offsets_for_times, option="starting")
        ends = offsets_of(options.end, view, logs.offsets_for_times, option="ending")
        ranges = batch_ranges(starts, ends)
        losses = beyond(ranges, view)
        if losses and options.fail_on_data_loss:
            raise DataLossError(losses)
        for loss in losses:
            logger.warning("reading what is there (failOnDataLoss is false): %s", loss.explanation)
        wanted = self._narrowing.narrowed(within(ranges, view))
        if self._narrowing.not_before_ms is not None and wanted:
            time_ms = max(0, self._narrowing.not_before_ms)
            firsts = logs.offsets_for_times({each.tp: time_ms for each in wanted})
            wanted = Narrowing.from_time(wanted, {tp: found.offset for tp, found in firsts.items()})
        return task_partitions(wanted, view.topic_ids, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._task.read(partition)


def warn_of_ignored(options: SourceOptions) -> None:
    if options.ignored:
        logger.warning(
            "settings of a Java client that have no use here are passed over: %s",
            ", ".join(f"kafka.{name}" for name in options.ignored),
        )


def task_partitions(
    ranges: list[OffsetRange], topic_ids: Mapping[str, str], options: SourceOptions
) -> list[InputPartition]:
    parts = split(ranges, tasks_min=options.tasks_min, size_max=options.task_offsets_max)
    is_split = options.tasks_min is not None or options.task_offsets_max is not None
    tasks = [(each,) for each in parts] if is_split else pack(parts)
    return [
        TaskPartition(
            [
                TaskRange(
                    each.tp.topic, each.tp.partition, each.start, each.end, topic_ids.get(each.tp.topic, "")
                )
                for each in task
            ]
        )
        for task in tasks
    ]
