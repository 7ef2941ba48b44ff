"""A stream from brokers: which offsets the next micro-batch ends at, and the tasks between two of them.

Lives in a process of its own for as long as the query runs, beside the driver. What a batch reads is said by its two offsets alone (`offsets`), so that a batch
that is run again reads the same records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidelog.client.metadata import TopicPartition
from tidelog.spark.batch import task_partitions, warn_of_ignored
from tidelog.spark.bounds import check_all_there, offsets_of
from tidelog.spark.limits import Patience, limited_by_bytes, limited_by_offsets
from tidelog.spark.logs import Logs
from tidelog.spark.loss import DataLossError, LogView, Loss, go_on
from tidelog.spark.offsets import Offsets
from tidelog.spark.options import LATEST, At, AtTime, OptionError, SourceOptions
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.task import TaskReader

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = options = SourceOptions.parse(given, is_stream=True)
        self._task = TaskReader.of(options, schema)
        self._logs = Logs(options)
        self._patience = Patience(options.offsets_min or 0, options.delay_ms_max)
        self._target: Mapping[TopicPartition, int] | None = None
        self._latest: Offsets | None = None
        self._committed: Offsets | None = None
        self._initial: Offsets | None = None

    # -- which offsets ----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        view = self._logs.look()
        check_all_there(self._options.subscription, view)
        starts = offsets_of(self._options.start, view, self._logs.offsets_for_times, option="starting")
        for tp, offset in starts.items():
            if offset > view.latest[tp] and self._options.fail_on_data_loss:
                raise OptionError(
                    f"startingOffsets says {offset} for {tp}, which has offsets {view.earliest[tp]} to {view.latest[tp]}; "
                    "to begin at its end instead, set failOnDataLoss to false"
                )
        reachable = {tp: min(offset, view.latest[tp]) for tp, offset in starts.items()}
        self._initial = Offsets(reachable, view.topic_ids, view.epochs)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        read = Offsets.from_json(start)
        self._commit(read)
        view, losses = self._logs.losses(read, self._logs.look(read))
        self._latest = Offsets(view.latest, view.topic_ids, view.epochs)
        if losses and self._options.fail_on_data_loss:
            raise DataLossError(losses)
        for loss in losses:
            logger.warning("going on after a loss (failOnDataLoss is false): %s", loss.explanation)
        begins = self._begins(read, view, losses)
        end = self._end(begins, view, limit)
        is_first = self._initial is not None and read == self._initial
        changed = {tp: offset for tp, offset in begins.items() if is_first or read.next.get(tp) != offset}
        # A checkpoint of another source has no ids: a batch without records brings them there, so that no topic is made anew unnoticed.
        lacks_ids = any(topic not in read.topic_ids for topic in read.topics & view.topic_ids.keys())
        is_same = end == read.next and begins == read.next and not lacks_ids
        if is_same and not (is_first and self._begins_at_end):
            return start
        self._initial = None
        epochs = {tp: epoch for tp, epoch in view.epochs.items() if tp in end}
        return Offsets(end, view.topic_ids, epochs, changed).to_json()

    @property
    def _begins_at_end(self) -> bool:
        """Whether the initial offsets are others each time they are asked for. Spark does not keep those of a Python source until the first batch is planned, so
        it is planned at once, empty if need be: a query that is restarted goes on from when it was first started.
        """
        match self._options.start:
            case At(everywhere, None):
                return everywhere == LATEST
            case At(_, each):
                return each is not None and LATEST in each.values()
            case AtTime(is_error_if_none=is_error):
                return not is_error

    def _begins(self, read: Offsets, view: LogView, losses: list[Loss]) -> dict[TopicPartition, int]:
        """Where the next batch begins: where the last one has ended, unless that is gone; new partitions at their beginning."""
        begins = {
            tp: offset for tp, offset in view.earliest.items() if self._target is None or tp in self._target
        }
        begins.update(go_on(read, losses, view).next)
        return begins

    def _end(
        self, begins: Mapping[TopicPartition, int], view: LogView, limit: ReadLimit
    ) -> dict[TopicPartition, int]:
        end = {tp: max(offset, self._reachable(tp, view)) for tp, offset in begins.items()}
        is_patient = self._target is None and self._options.offsets_min is not None
        if is_patient and not self._patience.is_over(begins, end, time.monotonic_ns() // 1_000_000):
            return dict(begins)
        if isinstance(limit, ReadAllAvailable):
            return end
        if self._options.offsets_max is not None:
            end = limited_by_offsets(begins, end, self._options.offsets_max)
        if self._options.bytes_max is not None:
            behind = {tp: begins[tp] for tp, offset in end.items() if offset > begins[tp]}
            sizes = self._logs.bytes_per_offset(behind) if behind else {}
            end = limited_by_bytes(begins, end, self._options.bytes_max, sizes)
        return end

    def _reachable(self, tp: TopicPartition, view: LogView) -> int:
        return view.latest[tp] if self._target is None else min(view.latest[tp], self._target.get(tp, 0))

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark hands back to `latestOffset`. There the options themselves count; it is told one of them so that it knows there is a limit.

        It asks once for each run of a query, which makes this the place for warnings.
        """
        options = self._options
        warn_of_ignored(options)
        if options.offsets_max is not None:
            return ReadMaxRows(options.offsets_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        if options.offsets_min is not None:
            return ReadMinRows(options.offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._logs.look().latest

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    # -- what to read -----------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        since, upto = Offsets.from_json(start), Offsets.from_json(end)
        earliest = self._logs.look().earliest if upto.unknown_since(since) else {}
        ranges = [
            OffsetRange(tp, begin, offset)
            for tp, (begin, offset) in sorted(upto.since(since, earliest).items())
        ]
        return task_partitions(ranges, upto.topic_ids, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._task.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._commit(Offsets.from_json(end))

    def _commit(self, offsets: Offsets) -> None:
        if self._options.commit_group is not None and offsets != self._committed:
            self._logs.commit(self._options.commit_group, offsets)
            self._committed = offsets
