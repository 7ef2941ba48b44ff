"""Where a replay writes. A step goes to a table exactly once and to a file exactly once; to a topic at least once: records of a step that a crash interrupts are sent again."""

from __future__ import annotations

import base64
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidelog.pipeline.context import JobContext
from tidelog.pipeline.replay_plan import ReplayError, ReplayPlan
from tidelog.pipeline.tables.table import TableFormat, TableSettings, open_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ORIGIN: Final = ("topic", "partition", "offset", "timestamp")
HEADER: Final = "replay."
_COUNT: Final = "count"


class Target(ABC):
    @abstractmethod
    def write(self, rows: DataFrame, plan: ReplayPlan) -> ReplayPlan:
        """The step `plan.done`, and the plan after it."""


class TopicTarget(Target):
    def __init__(
        self,
        context: JobContext,
        topic: str,
        *,
        keeps_partitions: bool,
        adds_headers: bool,
        keeps_timestamps: bool,
    ) -> None:
        self._context = context
        self._topic = topic
        self._keeps_partitions = keeps_partitions
        self._adds_headers = adds_headers
        self._keeps_timestamps = keeps_timestamps

    def write(self, rows: DataFrame, plan: ReplayPlan) -> ReplayPlan:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        columns = [
            F.col("key"),
            F.col("value"),
            (with_origin() if self._adds_headers else F.col("headers")).alias("headers"),
        ]
        if self._keeps_partitions:
            columns.append(F.col("partition"))
        if self._keeps_timestamps:
            columns.append(F.col("timestamp"))
        (
            rows.observe(seen, F.count(F.lit(1)).alias(_COUNT))
            .select(*columns)
            .write.format("tidelog")
            .options(**self._context.kafka_options(), topic=self._topic)
            .option("includeTimestamp", str(self._keeps_timestamps).lower())
            .mode("append")
            .save()
        )
        return plan.after_step(records=int(seen.get[_COUNT]))


def with_origin() -> Any:
    """The headers, and where the record was first."""
    from pyspark.sql import functions as F

    texts = {
        "topic": F.col("topic"),
        "partition": F.col("partition").cast("string"),
        "offset": F.col("offset").cast("string"),
        "timestamp": F.unix_millis("timestamp").cast("string"),
    }
    added = F.array(
        *(
            F.struct(F.lit(f"{HEADER}{name}").alias("key"), texts[name].cast("binary").alias("value"))
            for name in ORIGIN
        )
    )
    return F.concat(
        F.coalesce(F.col("headers"), F.array().cast("array<struct<key:string,value:binary>>")), added
    )


class TableTarget(Target):
    def __init__(self, path: str, kind: TableFormat) -> None:
        self._table = open_table(kind, TableSettings(path=path, schema_changes="fail"))

    def write(self, rows: DataFrame, plan: ReplayPlan) -> ReplayPlan:
        written = self._table.append(rows, query=plan.id, batch=plan.done)
        # A step that is there already, because it was not noted any more, is part of the replay all the same.
        return plan.after_step(records=rows.count() if written.is_repeat else written.rows)


class FileTarget(Target):
    """A line of JSON for each record, as `tidelog consume` writes it, by topic, partition and offset within a step."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, rows: DataFrame, plan: ReplayPlan) -> ReplayPlan:
        table = rows.toArrow().sort_by([(name, "ascending") for name in ("topic", "partition", "offset")])
        with open(self._path, "r+b" if os.path.exists(self._path) else "w+b") as file:
            if file.seek(0, os.SEEK_END) < plan.file_bytes:
                raise ReplayError(
                    f"{self._path} has {file.tell()} bytes, and {plan.file_bytes} were written: somebody has cut it. Remove it and the replay's state to begin anew"
                )
            file.truncate(plan.file_bytes)
            file.seek(plan.file_bytes)
            for line in lines(table):
                file.write(line)
            file.flush()
            os.fsync(file.fileno())
            return plan.after_step(records=table.num_rows, file_bytes=file.tell())


def lines(rows: pa.Table) -> Iterator[bytes]:
    for batch in rows.to_batches(max_chunksize=1_000):
        for row in batch.to_pylist():
            yield json.dumps(_document(row), ensure_ascii=False).encode() + b"\n"


def _document(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": round(row["timestamp"].timestamp() * 1000),
        **_bytes("key", row["key"]),
        **_bytes("value", row["value"]),
        "headers": [{"name": each["key"], **_bytes("value", each["value"])} for each in row["headers"] or ()],
    }


def _bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """As text where they are UTF-8, otherwise under `<name>_base64`, so that nothing is lost."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
