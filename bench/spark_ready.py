"""A Python source for Spark that does nothing but hand over: Arrow batches that are ready before the first is asked for. What it takes is what any Python source takes at least."""

from __future__ import annotations

import gc
from collections.abc import Iterator, MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidelog.spark.schema import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

NAME: Final = "bench-ready"
BATCH_BYTES: Final = 4 << 20
"""As the readers of segments and of fetched bytes make them."""
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


class ReadyMade(DataSource):
    """Options: `rows` in all, `size` of a value, `tasks`; of a stream also `batchRows`, of a micro-batch."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = {name.lower(): int(value) for name, value in options.items()}

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_schema(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._given["rows"], self._given["size"], self._given["tasks"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given = self._given
        return _StreamReader(given["rows"], given["size"], given["tasks"], given["batchrows"])


class _Task(InputPartition):
    def __init__(self, number: int, rows: int) -> None:
        super().__init__(None)
        self.number = number
        self.rows = rows


def _tasks(rows: int, count: int) -> list[InputPartition]:
    return [_Task(number, rows // count) for number in range(count)]


def _read(task: Any, size: int) -> Iterator[pa.RecordBatch]:
    """Nothing for the partition that Spark itself makes up where a batch has none."""
    left = task.rows if isinstance(task, _Task) else 0
    if not left:
        return
    batch = _ready(size)
    while left:
        count = min(left, batch.num_rows)
        yield batch[:count]
        left -= count


@cache
def _ready(size: int) -> pa.RecordBatch:
    """Made once in a process. What stays is left out of the collection of garbage after each task, as our source has it."""
    from bench.spark_data import rows_of, some_values

    batch = rows_of(next(some_values(0, size, max(1, BATCH_BYTES // size))), "ready", 0, 0)
    gc.collect()
    gc.freeze()
    return batch


class _Reader(DataSourceReader):
    def __init__(self, rows: int, size: int, tasks: int) -> None:
        self._rows = rows
        self._size = size
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        return _tasks(self._rows, self._tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._size)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: int, size: int, tasks: int, batch_rows: int) -> None:
        self._rows = rows
        self._size = size
        self._tasks = tasks
        self._batch_rows = batch_rows

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"rows": min(start["rows"] + self._batch_rows, self._rows)}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._batch_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """All rows are there from the beginning."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return _tasks(end["rows"] - start["rows"], self._tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._size)
