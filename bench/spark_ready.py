"""A Python source for Spark that does nothing but hand over: Arrow batches that are ready before the first is asked for. What it takes is what any Python source takes at least."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.spark.schema import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

NAME: Final = "bench-ready"
BATCH_BYTES: Final = 4 << 20
"""As the readers of segments and of fetched bytes make them."""
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


class ReadyMade(DataSource):
    """Options: `rows` in all, `size` of a value, `tasks`."""

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


class _Reader(DataSourceReader):
    def __init__(self, rows: int, size: int, tasks: int) -> None:
        self._rows = rows // tasks
        self._size = size
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from bench.spark_data import rows_of, some_values

        each = max(1, BATCH_BYTES // self._size)
        batch = rows_of(next(some_values(partition.value, self._size, each)), "ready", partition.value, 0)
        left = self._rows
        while left:
            count = min(left, each)
            yield batch[:count]
            left -= count
