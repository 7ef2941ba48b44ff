"""Delta tables of state, without Spark: what a merge leaves, that a batch goes in once, who is refused, and what a rebuild shows to readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.pipeline.databases_ledger import Batch, FencedError
from tidelog.pipeline.latest import DELETED
from tidelog.pipeline.tables import TableError
from tidelog.pipeline.tables.delta_merge import DeltaState, Upkeep

SCHEMA = pa.schema([("Odd key", pa.int64()), ("name", pa.string())])


def rows(*changes: tuple[int | None, str | None]) -> pa.Table:
    return pa.table(
        {
            "Odd key": pa.array([key for key, _ in changes], pa.int64()),
            "name": pa.array([name for _, name in changes], pa.string()),
            DELETED: pa.array([name is None for _, name in changes], pa.bool_()),
        }
    )


def batch(number: int, checkpoint: str = "c1", **more: Any) -> Batch:
    return Batch("flow", checkpoint, number, **more)


def state(path: Path, **more: Any) -> DeltaState:
    made = DeltaState(str(path / "table"), SCHEMA, ["Odd key"], **more)
    made.prepare()
    return made


def content(path: Path) -> dict[int | None, str]:
    found = DeltaTable(str(path / "table")).to_pyarrow_table().to_pylist()
    assert len({row["Odd key"] for row in found}) == len(found)
    return {row["Odd key"]: row["name"] for row in found}


def test_one_commit_for_each_batch_also_where_nothing_changes(tmp_path: Path) -> None:
    table = state(tmp_path)
    for number, change in enumerate(
        [rows((1, "a"), (2, "b")), rows((1, None), (3, "c")), rows((9, None)), rows()]
    ):
        assert table.apply(batch(number), change)
        assert not table.apply(batch(number), rows((66, "again")))
        assert DeltaTable(table.path).version() == number + 1
        assert DeltaTable(table.path).transaction_version("c1") == number
    assert content(tmp_path) == {2: "b", 3: "c"}


def test_who_does_not_belong_here_is_refused(tmp_path: Path) -> None:
    table = state(tmp_path)
    table.apply(batch(0, offsets="x"), rows((1, "a")))
    write_deltalake(table.path, SCHEMA.empty_table(), mode="append")  # somebody's own commit hides nothing
    for wrong in (batch(2), batch(0, offsets="y"), batch(0, "c2"), batch(1, "c2")):
        with pytest.raises(FencedError):
            table.apply(wrong, rows((1, "wrong")))
        with pytest.raises(FencedError):
            table.holds(wrong)
    assert table.holds(batch(0, offsets="x")) and not table.holds(batch(1))
    assert table.apply(batch(0, "c2", takes_over=True), rows((2, "b")))
    assert content(tmp_path) == {1: "a", 2: "b"}


def test_of_two_commits_at_once_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = state(tmp_path), state(tmp_path)
    merge = DeltaState._merge

    def slow(self: Any, table: Any, given: Any, change: Any) -> None:
        if self is first:
            second.apply(batch(0), rows((1, "second")))
        merge(self, table, given, change)

    monkeypatch.setattr(DeltaState, "_merge", slow)
    with pytest.raises(TableError, match="somebody else wrote to it"):
        first.apply(batch(0), rows((1, "first")))
    assert not first.apply(batch(0), rows((1, "first")))
    assert content(tmp_path) == {1: "second"}


@pytest.mark.parametrize("dies", [False, True])
def test_a_rebuild_shows_old_rows_until_it_has_caught_up(tmp_path: Path, dies: bool) -> None:
    table = state(tmp_path)
    table.apply(batch(0), rows((1, "stale")))
    new = {"is_rebuild": True}
    table.apply(batch(0, "c2", is_caught_up=False, **new), rows((2, "b"), (3, "c")))
    assert content(tmp_path) == {1: "stale"}
    if dies:  # a rebuild that is given up; the next one finds nothing of it
        table.apply(batch(0, "c2", is_caught_up=False, **new), rows((2, "b"), (3, "c")))
        table.apply(batch(0, "c3", is_caught_up=False, **new), rows((4, "d")))
        assert table.apply(batch(1, "c3", **new), rows((5, "e")))
        assert content(tmp_path) == {4: "d", 5: "e"}
        return
    assert table.apply(batch(1, "c2", **new), rows((3, None)))
    assert content(tmp_path) == {2: "b"}
    assert not table.apply(batch(1, "c2", **new), rows((7, "again")))
    with pytest.raises(FencedError):
        table.apply(batch(1), rows((1, "late")))
    assert table.apply(batch(2, "c2"), rows((4, "d")))
    assert content(tmp_path) == {2: "b", 4: "d"}


def test_a_table_with_other_columns_is_refused_unless_it_is_rebuilt(tmp_path: Path) -> None:
    state(tmp_path).apply(batch(0), rows((1, "a")))
    wider = pa.schema([("Odd key", pa.int32()), ("city", pa.string())])
    table = DeltaState(str(tmp_path / "table"), wider, ["Odd key"])
    with pytest.raises(TableError, match=r"no column city.*Odd key is int64, not int32.*a column name"):
        table.prepare()
    table.prepare(is_rebuild=True)
    change = pa.table({"Odd key": pa.array([1], pa.int32()), "city": ["Rome"], DELETED: [False]})
    table.apply(batch(0, "c2", is_rebuild=True), change)
    assert DeltaTable(table.path).to_pyarrow_table().to_pylist() == [{"Odd key": 1, "city": "Rome"}]


def test_null_may_be_a_key_and_old_files_go(tmp_path: Path) -> None:
    table = state(tmp_path, nullable=["Odd key"], upkeep=Upkeep(every_batches=4, retention_hours=0))
    for number in range(8):
        table.apply(batch(number), rows((None, f"{number}"), (number, "x")))
    assert content(tmp_path) == {None: "7", **dict.fromkeys(range(8), "x")}
    assert len([*Path(table.path).glob("*.parquet")]) == 1


def test_a_key_may_have_several_columns_in_which_null_is_a_value(tmp_path: Path) -> None:
    names = ("at", "shop", "event", "n")
    schema = pa.schema([("at", pa.int64()), ("shop", pa.string()), ("event", pa.string()), ("n", pa.int64())])
    table = DeltaState(str(tmp_path / "table"), schema, names[:3], nullable=names[1:3])
    table.prepare()
    expected: dict[tuple[Any, ...], int] = {}
    keys = [(at, shop, event) for at in (1, 2) for shop in ("a", None) for event in ("x", None)]
    for number, part in enumerate((keys, keys[1:4], keys[3:])):
        found = [dict(zip(names, (*key, number), strict=True)) for key in part]
        changed = pa.Table.from_pylist(found, schema=schema)
        table.apply(batch(number), changed.append_column(DELETED, pa.array([False] * len(part))))
        expected |= dict.fromkeys(part, number)
    stored = DeltaTable(table.path).to_pyarrow_table().to_pylist()
    assert {tuple(row[name] for name in names[:3]): row["n"] for row in stored} == expected
    assert len(stored) == len(expected)


CHANGES = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.none() | st.text(max_size=3)), max_size=6), max_size=4
)


@settings(max_examples=15)
@given(changes=CHANGES)
def test_any_history_is_the_last_value_of_each_key(
    tmp_path_factory: pytest.TempPathFactory, changes: list[list[tuple[int, str | None]]]
) -> None:
    where = tmp_path_factory.mktemp("history")
    table = state(where)
    expected: dict[int | None, str] = {}
    for number, change in enumerate(changes):
        latest = dict(change)
        table.apply(batch(number), rows(*latest.items()))
        for key, name in latest.items():
            expected.pop(key, None)
            if name is not None:
                expected[key] = name
    assert content(where) == expected
