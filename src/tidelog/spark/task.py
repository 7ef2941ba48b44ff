"""What runs in a Python worker of Spark: the ranges of a task as Arrow batches, decoded while the next bytes are on their way."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from tidelog.spark.fetch import RangesFetch, TaskRange
from tidelog.spark.options import SourceOptions
from tidelog.spark.schema import check_schema
from tidelog.spark.warm import warm_client

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_is_frozen = False


class TaskPartition(InputPartition):
    """The ranges of one task."""

    def __init__(self, ranges: Sequence[TaskRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return f"TaskPartition({', '.join(f'{each.tp} [{each.start}, {each.end})' for each in self.ranges)})"


class TaskReader:
    """What a task needs to know beside its ranges: small, and pickled with each task."""

    @classmethod
    def of(cls, options: SourceOptions, schema: StructType) -> TaskReader:
        return cls(
            servers=options.servers,
            client=options.client,
            names=check_schema(schema),
            fields=schema.fieldNames(),
            required=[each.name for each in schema.fields if not each.nullable],
            fail_on_data_loss=options.fail_on_data_loss,
            patience_ms=options.poll_timeout_ms,
        )

    def __init__(
        self,
        *,
        servers: str,
        client: Mapping[str, Any],
        names: Sequence[str],
        fields: Sequence[str],
        required: Sequence[str],
        fail_on_data_loss: bool,
        patience_ms: int,
    ) -> None:
        self._servers = servers
        self._client = dict(client)
        self._names = tuple(names)
        self._fields = tuple(fields)
        self._required = tuple(required)
        self._fail_on_data_loss = fail_on_data_loss
        self._patience_ms = patience_ms

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskPartition):  # Spark's own, where a batch has no partitions at all
            return
        from tidelog.spark.columns import (
            ColumnsOfTask,  # numba and all that: for those who read, not for those who plan
        )

        client = warm_client(self._servers, self._client)
        columns = ColumnsOfTask(self._names, self._fields, self._required)
        fetch = RangesFetch(
            client.cluster,
            client.settings,
            partition.ranges,
            fail_on_data_loss=self._fail_on_data_loss,
            patience_ms=self._patience_ms,
            sizes=client.sizes,
        )
        try:
            while not fetch.is_over:
                for chunk, end_offset in client.run(fetch.next()):
                    yield from columns.batches(chunk, end_offset, check_crcs=client.settings.check_crcs)
        finally:
            if not fetch.is_over:
                client.run(fetch.close())
        _freeze_once()


def _freeze_once() -> None:
    """pyspark's worker collects garbage after each task, all generations: with numba loaded that is 60 ms for nothing, unless what stays is left out."""
    global _is_frozen
    if not _is_frozen:
        _is_frozen = True
        gc.collect()
        gc.freeze()
