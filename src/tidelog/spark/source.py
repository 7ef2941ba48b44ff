"""`format("tidelog")`: the one name under which Spark reads and writes the log, and what stands behind each way of using it.

Objects of this file travel to worker processes: they hold options and nothing else.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from tidelog.spark.options import OptionError, columns_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter


class TidelogDataSource(DataSource):
    """Reads from brokers (`kafka.bootstrap.servers`) or from segment files (`path`), and writes to brokers."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = {name.lower(): value for name, value in options.items()}

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    @property
    def _reads_files(self) -> bool:
        return "path" in self._given or "paths" in self._given

    def schema(self) -> StructType:
        if self._reads_files:
            from tidelog.spark.segments.schema import segments_schema

            return segments_schema(self._given)
        from tidelog.spark.schema import spark_schema

        return spark_schema(columns_of(self._given))

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._reads_files:
            from tidelog.spark.segments.reader import SegmentsReader

            return SegmentsReader(self._given, schema)
        from tidelog.spark.batch import BatchReader

        return BatchReader(self._given, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self._reads_files:
            raise OptionError(
                "segment files (option path) are read as a batch: use spark.read, or kafka.bootstrap.servers for a stream"
            )
        from tidelog.spark.stream import StreamReader

        return StreamReader(self._given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tidelog.spark.sink import BatchSink

        if overwrite:
            raise OptionError(
                'a log cannot be overwritten: write with mode("append"); to empty a topic, delete and create it'
            )
        sink: Any = BatchSink(self._given, schema)
        return sink  # type: ignore[no-any-return]

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """`overwrite` is output mode "complete": the whole result is appended in each batch, as Spark's Kafka sink does."""
        from tidelog.spark.sink import StreamSink

        sink: Any = StreamSink(self._given, schema)
        return sink  # type: ignore[no-any-return]
