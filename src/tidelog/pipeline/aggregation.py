"""A stream of records as a stream of results by window and group, with Spark's own aggregation. On the way it is observed how many rows end in which windows, and how many
could not be decoded; what that means is for `windows`. Which ones could not is found out by a second look at the batch (`marked`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.pipeline.decoding import DATA, PROBLEM, Decoder
from tidelog.pipeline.windows import Windows, histogram

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

FUNCTIONS: Final = ("count", "sum", "avg", "min", "max", "approx_distinct")
RECORD_TIME: Final = "record timestamp"
AGGREGATE: Final = re.compile(r"(\w+)(?:\(\s*([\w.`]*)\s*\))?")
SEEN: Final = "tidelog_seen"
"""The observation: undecodable, first_ends, last_ends."""
_EVENT: Final = "tidelog_event"
_GOOD: Final = "tidelog_good"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    columns: StructType
    event_time: str
    window: str
    slide: str | None
    windows: Windows
    watermark: str
    group_by: tuple[str, ...]
    aggregates: Mapping[str, str]
    where: str | None


def aggregated(records: DataFrame, asked: Aggregation, decoder: Decoder) -> DataFrame:
    """window_start, window_end, the groups, the aggregates."""
    from pyspark.sql import functions as F

    counted = _rows(marked(records, asked, decoder), asked)
    first, last = (F.when(F.col(_GOOD), each) for each in asked.windows.ends(F.col(_EVENT)))
    watched = counted.withWatermark(_EVENT, asked.watermark).observe(
        SEEN,
        F.count_if(~F.col(_GOOD)).alias("undecodable"),
        histogram(first).alias("first_ends"),
        histogram(last).alias("last_ends"),
    )
    groups = [F.col(name).alias(alias_of(name)) for name in asked.group_by]
    found = [_aggregate(text).alias(name) for name, text in asked.aggregates.items()]
    return (
        watched.where(F.col(_GOOD))
        .groupBy(F.window(_EVENT, asked.window, asked.slide).alias("tidelog_window"), *groups)
        .agg(*found)
        .select(
            F.col("tidelog_window.start").alias("window_start"),
            F.col("tidelog_window.end").alias("window_end"),
            *(plain(alias_of(name)) for name in asked.group_by),
            *(plain(name) for name in asked.aggregates),
        )
    )


def marked(records: DataFrame, asked: Aggregation, decoder: Decoder) -> DataFrame:
    """The records, decoded, with their event time, and why one cannot be counted. As streams and as batches."""
    from pyspark.sql import functions as F

    decoded = decoder.decode(records).withColumn(_EVENT, _event_time(asked.event_time, asked.columns))
    problem = F.coalesce(
        F.col(PROBLEM),
        F.when(F.col(DATA).isNull(), F.lit("there is no value")),
        F.when(F.col(_EVENT).isNull(), F.lit(f"there is no event time: {asked.event_time} is null")),
    )
    return decoded.withColumn(PROBLEM, problem)


def _rows(records: DataFrame, asked: Aggregation) -> DataFrame:
    """The columns of the schema, the event time, and whether a row is good; rows that the condition leaves out are gone."""
    from pyspark.sql import functions as F

    rows = records.select(F.col(f"{DATA}.*"), F.col(_EVENT), F.col(PROBLEM).isNull().alias(_GOOD))
    return rows if asked.where is None else rows.where(~F.col(_GOOD) | F.expr(asked.where))


def _event_time(path: str, columns: StructType) -> Column:
    from pyspark.sql import functions as F

    if path == RECORD_TIME:
        return F.col("timestamp")
    kind = type_of(path, columns)
    column = F.col(f"{DATA}.{path}")
    return F.timestamp_millis(column) if kind is not None and kind.typeName() == "long" else column


def _aggregate(text: str) -> Column:
    from pyspark.sql import functions as F

    match = AGGREGATE.fullmatch(text.strip())
    assert match is not None, "checked with the options"
    column = F.col(match[2]) if match[2] else F.lit(1)
    match match[1]:
        case "count":
            return F.count(column)
        case "sum":
            return F.sum(column)
        case "avg":
            return F.avg(column)
        case "min":
            return F.min(column)
        case "max":
            return F.max(column)
        case _:
            return F.approx_count_distinct(column)


def plain(name: str) -> Column:
    """A column by its name, whatever is in it."""
    from pyspark.sql import functions as F

    return F.col("`" + name.replace("`", "``") + "`")


def alias_of(path: str) -> str:
    return path.rpartition(".")[2].strip("`")


def type_of(path: str, columns: StructType) -> DataType | None:
    """None: there is no such column."""
    from pyspark.sql.types import StructType

    kind: DataType = columns
    for part in path.split("."):
        name = part.strip("`")
        if not isinstance(kind, StructType) or name not in kind.names:
            return None
        kind = kind[name].dataType
    return kind
