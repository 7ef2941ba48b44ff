"""Parquet files of one batch: written by Spark's executors, found and read back (footers only) by the driver.

Owns the names of what a writer leaves in a directory. Files are synced before anybody commits them: a commit that survives a power loss must not point to
files that did not.
"""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
COPY: Final = "__by_"
"""Before the name of a column that a file is partitioned by and holds nonetheless."""
TEXT_CHARACTERS_MAX: Final = 64
"""Longer texts have no minimum and maximum in a table's log."""


@dataclass(frozen=True, slots=True)
class ColumnStats:
    nulls: int
    least: Any = None
    most: Any = None


@dataclass(frozen=True, slots=True)
class DataFile:
    path: str
    """Within the table's directory."""
    size_bytes: int
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    columns: Mapping[str, ColumnStats] = field(default_factory=dict)
    """Of top-level columns without structure."""


def write_parquet(
    frame: DataFrame, directory: str, partition_by: tuple[str, ...], *, keep_columns: bool
) -> None:
    """Have Spark write a new directory. Times are written as microseconds, which every reader of Parquet knows."""
    # Spark has this as a setting of the session only; within foreachBatch that is a copy of the query's own.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    by = list(partition_by)
    if keep_columns:
        for name in partition_by:
            frame = frame.withColumn(COPY + name, frame[f"`{name}`"])
        by = [COPY + name for name in partition_by]
    writer = frame.write.mode("errorifexists").option(
        "mapreduce.fileoutputcommitter.marksuccessfuljobs", "false"
    )
    if by:
        writer = writer.partitionBy(*by)
    writer.parquet("file://" + directory)


def data_files(directory: str, table: str) -> tuple[DataFile, ...]:
    """What Spark wrote, without files that have no rows (which are removed, as are checksums)."""
    found: list[DataFile] = []
    for path in _walk(directory):
        each = _data_file(path, directory, table)
        if each.rows == 0:
            os.unlink(path)
            continue
        _sync(path)
        found.append(each)
    return tuple(found)


def _walk(directory: str) -> Iterator[str]:
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.startswith((".", "_")):
                os.unlink(path)
            else:
                yield path
        _sync(folder)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _data_file(path: str, directory: str, table: str) -> DataFile:
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    return DataFile(
        os.path.relpath(path, table),
        os.path.getsize(path),
        footer.num_rows,
        partition_values(os.path.relpath(path, directory)),
        column_stats(footer),
    )


def partition_values(path: str) -> dict[str, str | None]:
    """`city=K%C3%B6ln/hour=7/part-0.parquet` → values as texts, None for null."""
    values: dict[str, str | None] = {}
    for folder in path.split(os.sep)[:-1]:
        name, is_value, value = folder.partition("=")
        if is_value:
            values[unquote(name).removeprefix(COPY)] = None if value == NULL_PARTITION else unquote(value)
    return values


def column_stats(footer: Any) -> dict[str, ColumnStats]:
    """Over all row groups. A column that any of them says nothing of is left out."""
    found: dict[str, ColumnStats] = {}
    unknown: set[str] = set()
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            name = column.path_in_schema
            stats = column.statistics
            if "." in name or stats is None or not stats.has_null_count:
                unknown.add(name)
                continue
            part = ColumnStats(stats.null_count, *_bounds(stats, column.num_values))
            found[name] = _merged(found[name], part) if name in found else part
    return {name: stats for name, stats in found.items() if name not in unknown}


def _bounds(stats: Any, values: int) -> tuple[Any, Any]:
    if stats.null_count == values or not stats.has_min_max:
        return None, None
    least, most = stats.min, stats.max
    return (least, most) if _is_bound(least) and _is_bound(most) else (None, None)


def _is_bound(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= TEXT_CHARACTERS_MAX
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (int, dt.date)) and not isinstance(value, bool)


def _merged(one: ColumnStats, other: ColumnStats) -> ColumnStats:
    nulls = one.nulls + other.nulls
    if one.least is None or other.least is None:
        return ColumnStats(nulls)  # all null, or unknown: no bound is the safe one
    return ColumnStats(nulls, min(one.least, other.least), max(one.most, other.most))
