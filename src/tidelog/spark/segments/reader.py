"""What Spark calls for `format("tidelog")` with a path: plans tasks on the driver, reads stretches in workers.

Objects of this file travel to worker processes: they hold options and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.spark.batch import PushFilters
from tidelog.spark.bounds import batch_ranges, beyond, check_all_there, offsets_of, within
from tidelog.spark.filters import Narrowing
from tidelog.spark.loss import DataLossError
from tidelog.spark.ranges import split
from tidelog.spark.segments.bounds import StoredLogs, chosen
from tidelog.spark.segments.errors import Harm, SegmentsError
from tidelog.spark.segments.layout import partition_directories
from tidelog.spark.segments.options import SegmentOptions
from tidelog.spark.segments.plan import Task, cut_and_packed, stretches_of, tasks_by_bytes
from tidelog.spark.segments.schema import columns_of_schema

if TYPE_CHECKING:
    import pyarrow as pa

logger: Final = logging.getLogger(__name__)
PLANS_MAX: Final = 4


class SegmentsTask(InputPartition):
    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task

    def __repr__(self) -> str:
        parts = ", ".join(f"{each.tp} [{each.start_offset}, {each.end_offset})" for each in self.task)
        return f"SegmentsTask({parts})"


class SegmentsReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SegmentOptions.parse(options)
        self._names = columns_of_schema(schema)
        self._fields = tuple(schema.fieldNames())
        self._narrowing = Narrowing()
        self._timestamp_min: int | None = None

    @property
    def pushFilters(self) -> PushFilters:
        return PushFilters(self._narrowing)

    def __getstate__(self) -> dict[str, Any]:
        """Filters are for planning; of them workers only need the earliest time that is asked for."""
        return {**self.__dict__, "_narrowing": None, "_timestamp_min": self._narrowing.not_before_ms}

    def partitions(self) -> list[InputPartition]:
        return [SegmentsTask(task) for task in plan_tasks(self._options, self._narrowing)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SegmentsTask):  # Spark's own, where there is nothing to read
            return
        from tidelog.spark.columns import slices
        from tidelog.spark.segments.ahead import ahead

        for batch in ahead(self._batches(partition.task)):
            yield from slices(batch)

    def _batches(self, task: Task) -> Iterator[pa.RecordBatch]:
        from tidelog.spark.segments.pieces import Wanted, read_stretch
        from tidelog.spark.segments.rows import Rows, decoder_columns, needs_batches

        rows = Rows(self._names, self._fields)
        wanted = Wanted(
            columns=decoder_columns(self._names),
            with_batches=needs_batches(self._names),
            timestamp_min=self._timestamp_min,
            includes_control=self._options.includes_control,
        )
        buffer = bytearray()
        on_harm = _report if self._options.skips_damage else None
        for stretch in task:
            for piece in read_stretch(stretch, wanted, on_harm=on_harm, buffer=buffer):
                yield rows.batch(stretch, piece)


def plan_tasks(options: SegmentOptions, narrowing: Narrowing) -> list[Task]:
    """Files of a live broker may go while they are looked at: then it is looked again."""
    for _ in range(PLANS_MAX - 1):
        try:
            return _plan(options, narrowing)
        except FileNotFoundError as error:
            logger.info("planning again, a file has gone meanwhile: %s", error)
    try:
        return _plan(options, narrowing)
    except FileNotFoundError as error:
        raise SegmentsError(
            f"{error.filename} went while the query was planned, as others did before: run the query again"
        ) from error


def _plan(options: SegmentOptions, narrowing: Narrowing) -> list[Task]:
    source = options.source
    partitions = chosen(partition_directories(options.paths), source.subscription)
    stored = StoredLogs(partitions, options)
    try:
        view = stored.view
        check_all_there(source.subscription, view)
        starts = offsets_of(source.start, view, stored.offsets_for_times, option="starting")
        ends = offsets_of(source.end, view, stored.offsets_for_times, option="ending")
        ranges = batch_ranges(starts, ends)
        if losses := beyond(ranges, view):
            if source.fail_on_data_loss:
                raise DataLossError(losses)
            for loss in losses:
                logger.warning("reading what is there (failOnDataLoss is false): %s", loss.explanation)
        asked = narrowing.narrowed(within(ranges, view))
        is_split = source.tasks_min is not None or source.task_offsets_max is not None
        parts = split(asked, tasks_min=source.tasks_min, size_max=source.task_offsets_max)
        stretches = [
            stretches_of(
                stored.logs[part.tp],
                part,
                aborted=stored.aborted.get(part.tp, ()),
                timestamp_min=narrowing.not_before_ms,
            )
            for part in parts
        ]
        if is_split:
            return [task for part in stretches for task in cut_and_packed(part, options.task_bytes_max)]
        return tasks_by_bytes([each for part in stretches for each in part], bytes_max=options.task_bytes_max)
    finally:
        stored.close()


def _report(harm: Harm) -> None:
    logger.warning(
        "left out (onDamage is skip): %d offsets in %d bytes: %s",
        harm.end_offset - harm.first_offset,
        harm.length,
        harm,
    )
