"""Tables with a real Spark: batches once and only once, whatever an attempt left behind; columns that change; small files made one. Read back by readers that are not ours."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.dataset as ds
import pytest

from tidelog.pipeline.tables import (
    FORMATS,
    SchemaChangeError,
    Table,
    TableError,
    TableFormat,
    TableSettings,
    open_table,
)

pytestmark = pytest.mark.slow

Row = dict[str, Any]


def rows_of(kind: TableFormat, path: Path) -> list[Row]:
    """By a reader that knows nothing of the writer."""
    if kind == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    elif kind == "parquet":
        found = ds.dataset(str(path), format="parquet", partitioning="hive").to_table().to_pylist()
        found = [
            {name: value for name, value in row.items() if not name.startswith("tidelog_")} for row in found
        ]
    else:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("tidelog", type="sql", uri=f"sqlite:///{path.parent}/iceberg.db")
        found = catalog.load_table(f"default.{path.name}").scan().to_arrow().to_pylist()
        for row in found:  # pyiceberg's reader takes a list that is null in the file for an empty one
            if row.get("items") == []:
                row["items"] = None
    return sorted(found, key=lambda row: str(row["id"]).rjust(9))


def frame(spark: Any, rows: list[tuple[Any, ...]], schema: str) -> Any:
    return spark.createDataFrame(rows, schema).repartition(2)


def opened(kind: TableFormat, path: Path, **more: Any) -> Table:
    return open_table(kind, TableSettings(path=str(path), **more))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "delta" else pytest.mark.long) for kind in FORMATS]
)
def test_batches_go_in_once_and_leave_nothing_behind(kind: TableFormat, spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "orders"
    table = opened(kind, path, partition_by=("city",))
    schema = "id int, city string, at timestamp, items array<struct<sku:string,n:int>>"
    noon = dt.datetime(2026, 5, 1, 12, 0, 0, 123_456, tzinfo=dt.UTC)
    cities = ["Köln", "a:b/c d", None]

    def batch(number: int) -> list[tuple[Any, ...]]:
        return [(number * 10 + n, cities[n % 3], noon, [(f"s{n}", n)] if n % 2 else None) for n in range(6)]

    expected: list[Row] = []
    for number in range(3):
        wrote = table.append(frame(spark, batch(number), schema), query="q/1", batch=number)
        assert (wrote.rows, wrote.is_repeat) == (6, False)
        expected += [
            {
                "id": each[0],
                "city": each[1],
                "at": noon,
                "items": None if each[3] is None else [{"sku": sku, "n": n} for sku, n in each[3]],
            }
            for each in batch(number)
        ]
    assert rows_of(kind, path) == expected

    # The process dies after the files are written, and the next one does the batch again; then once more, as if it had died right after the commit.
    table.stage(frame(spark, batch(3), schema), query="q/1", batch=3)
    again = opened(kind, path, partition_by=("city",))
    assert rows_of(kind, path) == expected
    assert not again.append(frame(spark, batch(3), schema), query="q/1", batch=3).is_repeat
    again.stage(frame(spark, batch(3), schema), query="q/1", batch=3)
    assert (
        opened(kind, path, partition_by=("city",))
        .append(frame(spark, batch(3), schema), query="q/1", batch=3)
        .is_repeat
    )
    for number in range(3):
        assert again.append(frame(spark, batch(number), schema), query="q/1", batch=number).is_repeat
    found = rows_of(kind, path)
    assert [row["id"] for row in found] == [10 * n + k for n in range(4) for k in range(6)]

    # A driver that was thought dead commits what another has committed meanwhile.
    late = again.stage(frame(spark, batch(4), schema), query="q/1", batch=4)
    other = opened(kind, path, partition_by=("city",))
    assert not other.append(frame(spark, batch(4), schema), query="q/1", batch=4).is_repeat
    assert again.commit(late).is_repeat
    assert other.append(frame(spark, [], schema), query="q/1", batch=5).rows == 0
    assert other.append(frame(spark, batch(9), schema), query="q/2", batch=0).rows == 6
    ids = [10 * n + k for n in (*range(5), 9) for k in range(6)]
    assert [row["id"] for row in rows_of(kind, path)] == ids
    if kind != "iceberg":
        attempts = [
            name for root in (path, tmp_path / "_tidelog-orders") if root.exists()
            for folder, names, _ in os.walk(root) for name in names if name.startswith("batch-")
        ]  # fmt: skip
        assert len(attempts) == (0 if kind == "parquet" else 6)

    with pytest.raises(TableError, match="partitioned by city, not by nothing"):
        opened(kind, path).append(frame(spark, batch(6), schema), query="q/1", batch=6)

    # Nothing changes for readers when small files become one, and the table still knows its batches.
    before = rows_of(kind, path)
    counts = other.compact()
    if kind != "iceberg":
        assert counts.files_before > counts.files_after > 0
    assert rows_of(kind, path) == before
    assert other.append(frame(spark, batch(2), schema), query="q/1", batch=2).is_repeat
    assert other.append(frame(spark, batch(6), schema), query="q/1", batch=6).rows == 6
    other.compact()
    assert opened(kind, path, partition_by=("city",)).last_batch("q/1") == 6
    assert [row["id"] for row in rows_of(kind, path)] == sorted([*ids, *(60 + k for k in range(6))])
    if kind == "delta":
        polars = pl.read_delta(str(path)).filter(pl.col("id") >= 60)
        assert sorted(polars["id"].to_list()) == sorted([*(60 + k for k in range(6)), *range(90, 96)])
    elif kind == "parquet":
        assert len(pl.read_parquet(f"{path}/**/*.parquet")) == 42
        assert spark.read.parquet(str(path)).count() == 42


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_change_by_policy(kind: TableFormat, spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    first, wider = "id int, who struct<name:string>", "id int, who struct<name:string,age:int>, tip double"
    opened(kind, path).append(frame(spark, [(1, ("a",))], first), query="q", batch=0)
    with pytest.raises(SchemaChangeError, match=r"new column who\.age .* new column tip \(double\)"):
        opened(kind, path, schema_changes="fail").append(
            frame(spark, [(2, ("b", 7), 0.5)], wider), query="q", batch=1
        )
    left_out = opened(kind, path, schema_changes="ignore")
    left_out.append(frame(spark, [(2, ("b", 7), 0.5)], wider), query="q", batch=1)
    adds = opened(kind, path, schema_changes="add")
    adds.append(frame(spark, [(3, ("c", 8), 0.25), (4, None, None)], wider), query="q", batch=2)
    adds.append(frame(spark, [(("d",), 5)], "who struct<name:string>, id smallint"), query="q", batch=3)
    with pytest.raises(SchemaChangeError, match="column id is int in the table and string in the records"):
        adds.append(frame(spark, [("x",)], "id string"), query="q", batch=4)
    with pytest.raises(SchemaChangeError, match="ID of the records and id of the table differ only in case"):
        adds.append(frame(spark, [(1,)], "ID int"), query="q", batch=4)
    expected: list[Row] = [
        {"id": 1, "who": {"name": "a", "age": None}, "tip": None},
        {"id": 2, "who": {"name": "b", "age": None}, "tip": None},
        {"id": 3, "who": {"name": "c", "age": 8}, "tip": 0.25},
        {"id": 4, "who": None, "tip": None},
        {"id": 5, "who": {"name": "d", "age": None}, "tip": None},
    ]
    if kind == "iceberg":
        adds.append(frame(spark, [(2**40,)], "id bigint"), query="q", batch=4)
        expected.append({"id": 2**40, "who": None, "tip": None})
    else:
        with pytest.raises(
            SchemaChangeError, match="bigint in the records, and this format of table cannot widen"
        ):
            adds.append(frame(spark, [(2**40,)], "id bigint"), query="q", batch=4)
    if kind == "parquet":  # one schema for all files, which a reader of plain files takes from the first one
        adds.compact()
    assert rows_of(kind, path) == expected
