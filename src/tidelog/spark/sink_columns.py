"""What a DataFrame must look like to be written, and its rows as the records of each topic.

The columns are those of Spark's Kafka sink: `value` (which must be there), `key`, `headers`, `partition` and `topic`; with `includeTimestamp` also `timestamp`. Others are not written, as
they are not there. Checked when the query is planned, except for what only the rows can tell: a topic that is null, a partition below zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidelog.spark.sink_options import SinkError, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

CHUNK_ROWS: Final = 200_000
CHUNK_BYTES: Final = 8 << 20
"""Rows are sent in pieces of about this size: Spark hands over ten thousand at a time, which make small batches once they are sorted by partition."""


class SinkSchemaError(SinkError, TypeError):
    """A DataFrame that lacks a column, or has one of another type."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns that are written; None for one that there is not."""

    topic: str | None
    """The topic of all rows; None: the column says it."""
    key: str | None
    headers: str | None
    partition: str | None
    timestamp: str | None

    @property
    def names(self) -> list[str]:
        own = (self.key, "value", self.headers, self.partition, self.timestamp)
        return [name for name in own if name is not None]


def columns_for(options: SinkOptions, schema: StructType) -> SinkColumns:
    """SinkSchemaError says what is missing, or of which type a column must be."""
    types = {each.name: each.dataType for each in schema.fields}
    wanted = {"value", "key", "headers", "partition"}
    if options.topic is None:
        wanted.add("topic")
    if options.writes_timestamps:
        wanted.add("timestamp")
    _refuse_ambiguous(schema.names, wanted)
    if "value" not in types:
        raise SinkSchemaError(
            f"there is no column value, which holds what is written; there are {_listed(schema.names)}: rename one, or make one, such as to_json(struct(*)) as value"
        )
    if options.topic is None and "topic" not in types:
        raise SinkSchemaError(
            "no topic is named: say option('topic', …) to write all rows to one, or give the DataFrame a column topic"
        )
    if options.writes_timestamps and "timestamp" not in types:
        raise SinkSchemaError(
            "includeTimestamp is set, and there is no column timestamp: add one, or leave the option out"
        )
    for name in sorted(wanted & types.keys()):
        _check_type(name, types[name])

    def named(name: str) -> str | None:
        return name if name in types and name in wanted else None

    return SinkColumns(options.topic, named("key"), named("headers"), named("partition"), named("timestamp"))


def _refuse_ambiguous(names: Iterable[str], wanted: set[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        lower = name.lower()
        if lower in wanted and lower != name:
            raise SinkSchemaError(f"the column {name} must be written {lower} to be used: rename it")
        if lower in wanted and lower in seen:
            raise SinkSchemaError(f"there are two columns {name}: drop or rename one")
        seen[lower] = name


def _check_type(name: str, found: DataType) -> None:
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        NullType,
        StringType,
        StructType,
        TimestampType,
    )

    if name in ("key", "value"):
        fits, should = isinstance(found, StringType | BinaryType | NullType), "string or binary"
    elif name == "topic":
        fits, should = isinstance(found, StringType), "string"
    elif name == "partition":
        fits, should = isinstance(found, IntegerType), "int"
    elif name == "timestamp":
        fits, should = isinstance(found, TimestampType), "timestamp"
    else:
        item = found.elementType if isinstance(found, ArrayType) else None
        fits = (
            isinstance(item, StructType)
            and item.names == ["key", "value"]
            and isinstance(item["key"].dataType, StringType)
            and isinstance(item["value"].dataType, BinaryType)
        )
        should = "array<struct<key:string,value:binary>>"
    if not fits:
        raise SinkSchemaError(
            f"column {name} is {found.simpleString()} and must be {should}: cast it"
            + (", or encode it as JSON or Avro first" if name in ("key", "value") else "")
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


# ---- rows


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches that are worth sorting by partition."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if held and (rows + batch.num_rows > CHUNK_ROWS or size + batch.nbytes > CHUNK_BYTES):
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if held:
        yield held[0] if len(held) == 1 else pa.concat_batches(held)


def by_topic(columns: SinkColumns, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """(topic, its rows in their order). SinkError for rows that have none."""
    if columns.partition is not None:
        _refuse_negative(rows.column(columns.partition))
    if columns.topic is not None:
        yield columns.topic, rows
        return
    import numpy as np
    import pyarrow as pa

    topics = rows.column("topic")
    if topics.null_count:
        raise SinkError(
            f"{topics.null_count} of {len(topics)} rows have null in column topic: filter them out, or name one topic for all with option('topic', …)"
        )
    encoded = topics.dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], rows
        return
    numbers = encoded.indices.to_numpy()
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(len(names) + 1))
    rows = rows.select(columns.names).take(pa.array(order))
    for number, name in enumerate(names):
        yield name, rows.slice(int(ends[number]), int(ends[number + 1] - ends[number]))


def _refuse_negative(partitions: Any) -> None:
    import pyarrow.compute as pc

    least = pc.min(partitions).as_py()
    if least is not None and least < 0:
        raise SinkError(
            f"column partition holds {least}: partitions are numbered from 0; null leaves the choice to the key"
        )
