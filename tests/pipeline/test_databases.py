"""Tables of state in SQLite: what is written, what is refused, and that a batch is there once whatever happens around it."""

from __future__ import annotations

import datetime
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.pipeline.databases import StateDatabase, dialect_of, open_state, shown
from tidelog.pipeline.databases_ledger import Batch, FencedError, Kept, is_new
from tidelog.pipeline.databases_sql import (
    Column,
    DatabaseError,
    Found,
    Table,
    differences,
    quoted,
    quoted_table,
    upsert,
)
from tidelog.pipeline.databases_sqlite import SqliteState
from tidelog.pipeline.latest import DELETED

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(*changes: tuple[int, str | None]) -> pa.Table:
    """None: the row goes."""
    return pa.table(
        {
            "id": pa.array([key for key, _ in changes], pa.int64()),
            "name": pa.array([name for _, name in changes], pa.string()),
            DELETED: pa.array([name is None for _, name in changes], pa.bool_()),
        }
    )


def batch(number: int, **more: Any) -> Batch:
    return Batch(flow="orders", checkpoint=more.pop("checkpoint", "c1"), number=number, **more)


def state(tmp_path: Path) -> StateDatabase:
    database = open_state(f"sqlite:///{tmp_path}/state.db", "orders", SCHEMA, ["id"])
    database.prepare()
    return database


def content(tmp_path: Path, table: str = "orders") -> dict[int, str]:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return dict(connection.execute(f'SELECT id, name FROM "{table}"'))


def test_rows_change_and_go(tmp_path: Path) -> None:
    database = state(tmp_path)
    assert database.apply(batch(0), rows((1, "a"), (2, "b"), (3, "c")))
    assert database.apply(batch(1), rows((1, "A"), (2, None), (9, None)))
    assert content(tmp_path) == {1: "A", 3: "c"}


def test_a_repeated_batch_changes_nothing(tmp_path: Path) -> None:
    database = state(tmp_path)
    database.apply(batch(0, offsets="x"), rows((1, "a")))
    assert not database.apply(batch(0, offsets="x"), rows((1, "other")))
    assert content(tmp_path) == {1: "a"}


def test_a_batch_that_fails_before_its_commit_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = state(tmp_path)
    database.apply(batch(0), rows((1, "a")))
    note = SqliteState._note

    def crash(*arguments: Any) -> None:
        note(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(SqliteState, "_note", crash)
        database.apply(batch(1), rows((1, "b"), (2, "c")))
    assert content(tmp_path) == {1: "a"}
    assert database.kept() == Kept("orders", "c1", 0, "", False)
    assert database.apply(batch(1), rows((1, "b"), (2, "c")))
    assert content(tmp_path) == {1: "b", 2: "c"}


@pytest.mark.parametrize(
    ("kept", "given_batch", "says"),
    [
        (None, batch(3), "never heard"),
        (Kept("other", "c1", 3, "", False), batch(4), "kept by flow other"),
        (Kept("orders", "c2", 3, "", False), batch(4), "another runner has taken"),
        (Kept("orders", "c2", 3, "", False), batch(0), "take_over"),
        (Kept("orders", "c1", 3, "a", False), batch(3, offsets="b"), "restored from a copy"),
        (Kept("orders", "c1", 3, "", False), batch(2), "another runner of the flow is ahead"),
        (Kept("orders", "c1", 3, "", False), batch(5), "lacks what came between"),
        (Kept("orders", "c2", 3, "", False), batch(1, is_rebuild=True), "another runner has taken"),
    ],
)
def test_what_does_not_belong_together_is_refused(kept: Kept | None, given_batch: Batch, says: str) -> None:
    with pytest.raises(FencedError, match=says):
        is_new(kept, given_batch, "t")


def test_a_new_checkpoint_is_let_in_when_asked_for() -> None:
    kept = Kept("orders", "c2", 3, "", False)
    assert is_new(kept, batch(0, takes_over=True), "t")
    assert is_new(kept, batch(7, takes_over=True), "t")  # an imported checkpoint does not begin with batch 0
    assert is_new(None, batch(7, takes_over=True), "t")
    assert is_new(kept, batch(0, is_rebuild=True), "t")


def test_a_rebuild_replaces_all_rows_at_once_and_fences_the_old_runner(tmp_path: Path) -> None:
    database = state(tmp_path)
    database.apply(batch(0), rows((1, "stale"), (2, "old")))
    again = {"checkpoint": "c2", "is_rebuild": True}
    database.apply(batch(0, is_caught_up=False, **again), rows((2, "b"), (3, "c")))
    assert content(tmp_path) == {1: "stale", 2: "old"}
    with pytest.raises(FencedError, match="another runner"):
        database.apply(batch(1), rows((7, "late")))
    database.apply(batch(1, is_caught_up=True, **again), rows((3, None), (4, "d")))
    assert content(tmp_path) == {2: "b", 4: "d"}
    database.apply(batch(2, **again), rows((5, "e")))
    assert content(tmp_path) == {2: "b", 4: "d", 5: "e"}
    with pytest.raises(sqlite3.OperationalError):
        content(tmp_path, "orders__rebuild")


def test_a_rebuild_that_was_given_up_leaves_nothing_for_the_next(tmp_path: Path) -> None:
    database = state(tmp_path)
    database.apply(batch(0, checkpoint="c2", is_rebuild=True, is_caught_up=False), rows((66, "x")))
    database.apply(batch(0, checkpoint="c3", is_rebuild=True, is_caught_up=True), rows((1, "a")))
    assert content(tmp_path) == {1: "a"}


def test_a_rebuild_may_have_other_columns(tmp_path: Path) -> None:
    state(tmp_path).apply(batch(0), rows((1, "a")))
    wider = pa.schema([*SCHEMA, ("city", pa.string())])
    database = open_state(f"sqlite:///{tmp_path}/state.db", "orders", wider, ["id"])
    with pytest.raises(DatabaseError, match=r"no column city \(TEXT\)"):
        database.prepare()
    database.prepare(is_rebuild=True)
    more = rows((1, "b")).append_column("city", pa.array(["Rome"]))
    database.apply(batch(0, checkpoint="c2", is_rebuild=True), more)
    with sqlite3.connect(tmp_path / "state.db") as connection:
        assert connection.execute("SELECT * FROM orders").fetchall() == [(1, "b", "Rome")]


def test_all_types_come_back_as_they_went_in(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)
    table = pa.table(
        {
            "id": pa.array(["k"]),
            "b": pa.array([True]),
            "d": pa.array([Decimal("12.340")], pa.decimal128(10, 3)),
            "t": pa.array([moment], pa.timestamp("us", "UTC")),
            "day": pa.array([moment.date()]),
            "f": pa.array([1.5]),
            "raw": pa.array([b"\0\xff"]),
            "nothing": pa.array([None], pa.int32()),
        }
    )
    database = open_state(f"sqlite:///{tmp_path}/state.db", "t", table.schema, ["id"])
    database.prepare()
    database.prepare()  # finds its own table in order
    database.apply(batch(0), table.append_column(DELETED, pa.array([False])))
    with sqlite3.connect(tmp_path / "state.db") as connection:
        assert connection.execute("SELECT * FROM t").fetchall() == [
            ("k", 1, "12.340", "2026-01-02 03:04:05.000006", "2026-01-02", 1.5, b"\0\xff", None)
        ]


def test_names_are_quoted(tmp_path: Path) -> None:
    evil = 'x"; DROP TABLE orders; --'
    schema = pa.schema([(evil, pa.int64()), ("group", pa.string())])
    database = open_state(f"sqlite:///{tmp_path}/state.db", 'a"b.c', schema, [evil])
    database.prepare()
    given_rows = pa.table({evil: [1], "group": ["g"], DELETED: [False]})
    database.apply(batch(0), given_rows)
    with sqlite3.connect(tmp_path / "state.db") as connection:
        assert connection.execute('SELECT * FROM "a""b.c"').fetchall() == [(1, "g")]
    assert quoted_table("sales.orders", "postgresql") == '"sales"."orders"'
    assert quoted_table("sales.orders", "sqlite") == '"sales.orders"'
    for name in ("", "a\0b"):
        with pytest.raises(DatabaseError):
            quoted(name, "sqlite")
    with pytest.raises(DatabaseError, match="63"):
        quoted("x" * 64, "postgresql")


def test_a_table_that_will_not_do_says_why() -> None:
    table = Table("t", (Column("id", "BIGINT"), Column("name", "TEXT")), ("id",), "postgresql")
    found = [
        Found("id", "bigint", False, True),
        Found("name", "integer", False, False),
        Found("x", "text", False, True),
    ]
    assert differences(table, found) == [
        "its column name is integer, not TEXT",
        "its primary key is (nothing), not (id)",
        "its column x must have a value, and the state has none for it",
    ]


def test_a_table_of_nothing_but_its_key() -> None:
    table = Table("t", (Column("id", "BIGINT"),), ("id",), "postgresql")
    assert upsert(table, "SELECT 1").endswith('ON CONFLICT ("id") DO NOTHING')


def test_addresses() -> None:
    assert dialect_of("sqlite:///x.db") == "sqlite"
    assert dialect_of("postgresql://u@h/d") == "postgresql"
    with pytest.raises(DatabaseError, match="mysql"):
        dialect_of("mysql://u:secret@h/d")
    assert shown("postgresql://u:se:cr@t@h/d") == "postgresql://u:…@h/d"


def test_a_directory_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="unable to open"):
        open_state(f"sqlite:///{tmp_path}/no/state.db", "t", SCHEMA, ["id"]).prepare()


CHANGES = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.none() | st.text(max_size=3)), max_size=6), max_size=6
)


@settings(max_examples=25)
@given(changes=CHANGES, repeats=st.lists(st.booleans(), min_size=6, max_size=6))
def test_any_history_with_repeats_is_the_last_value_of_each_key(
    tmp_path_factory: pytest.TempPathFactory, changes: list[list[tuple[int, str | None]]], repeats: list[bool]
) -> None:
    where = tmp_path_factory.mktemp("history")
    database = state(where)
    expected: dict[int, str] = {}
    for number, change in enumerate(changes):
        latest = dict(change)
        for _ in range(1 + repeats[number]):
            database.apply(batch(number), rows(*latest.items()))
        for key, name in latest.items():
            expected.pop(key, None)
            if name is not None:
                expected[key] = name
    assert content(where) == expected
