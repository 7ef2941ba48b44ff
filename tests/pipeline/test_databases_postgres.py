"""Tables of state in a real PostgreSQL server: the same promises as in SQLite, and two runners at once."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.pipeline import postgres
from tidelog.client.blocking import Producer
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.databases import StateDatabase, open_state
from tidelog.pipeline.databases_ledger import Batch, FencedError, Kept
from tidelog.pipeline.databases_postgres import PostgresState
from tidelog.pipeline.databases_sql import DatabaseError
from tidelog.pipeline.jobs import materialize
from tidelog.pipeline.latest import DELETED
from tidelog.testing import Cluster

pytestmark = pytest.mark.interop

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres.server() as address:
        yield address


def rows(*changes: tuple[int, str | None]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([key for key, _ in changes], pa.int64()),
            "name": pa.array([name for _, name in changes], pa.string()),
            DELETED: pa.array([name is None for _, name in changes], pa.bool_()),
        }
    )


def state(url: str, table: str) -> StateDatabase:
    database = open_state(url, table, SCHEMA, ["id"])
    database.prepare()
    return database


def content(url: str, table: str) -> dict[int, str]:
    with psycopg.connect(url) as connection:
        return dict(connection.execute(f'SELECT id, name FROM "{table}"').fetchall())  # type: ignore[call-overload]


def test_rows_change_and_go_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = state(url, "once")
    assert database.apply(Batch("f", "c1", 0), rows((1, "a"), (2, "b\t\\N\n"), (3, "ü")))
    assert database.apply(Batch("f", "c1", 1), rows((1, "A"), (3, None), (9, None)))
    assert not database.apply(Batch("f", "c1", 1), rows((1, "twice")))
    assert content(url, "once") == {1: "A", 2: "b\t\\N\n"}
    with pytest.raises(FencedError):
        database.apply(Batch("f", "c1", 3), rows((1, "x")))
    note = PostgresState._note

    def crash(*arguments: Any) -> None:
        note(*arguments)
        raise ZeroDivisionError

    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(PostgresState, "_note", crash)
        database.apply(Batch("f", "c1", 2), rows((5, "x")))
    assert content(url, "once") == {1: "A", 2: "b\t\\N\n"}
    assert database.kept() == Kept("f", "c1", 1, "", False)


def test_of_two_runners_one_writes_each_batch(url: str) -> None:
    """Both try every batch at the same time; the second waits for the first and finds it done, or is told that it is behind."""
    database = state(url, "raced")
    wrote: list[int] = []
    fenced: list[int] = []

    def runner() -> None:
        mine = open_state(url, "raced", SCHEMA, ["id"])
        mine.prepare()
        for number in range(20):
            try:
                if mine.apply(Batch("f", "c1", number), rows((number + 1, "x"), (0, str(number)))):
                    wrote.append(number)
            except FencedError:
                fenced.append(number)
                return

    threads = [threading.Thread(target=runner) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wrote) == list(range(20))
    assert len(fenced) <= 1
    assert content(url, "raced") == {**dict.fromkeys(range(1, 21), "x"), 0: "19"}
    assert database.kept() == Kept("f", "c1", 19, "", False)


def test_a_rebuild_keeps_the_table_with_its_views(url: str) -> None:
    database = state(url, "rebuilt")
    database.apply(Batch("f", "c1", 0), rows((1, "stale")))
    with psycopg.connect(url) as connection:
        connection.execute("CREATE VIEW seen AS SELECT name FROM rebuilt")
    database.apply(Batch("f", "c2", 0, is_rebuild=True, is_caught_up=False), rows((2, "b")))
    assert content(url, "rebuilt") == {1: "stale"}
    with pytest.raises(FencedError):
        database.apply(Batch("f", "c1", 1), rows((1, "late")))
    database.apply(Batch("f", "c2", 1, is_rebuild=True), rows((3, "c")))
    assert content(url, "rebuilt") == {2: "b", 3: "c"}
    with psycopg.connect(url) as connection:
        assert len(connection.execute("SELECT * FROM seen").fetchall()) == 2


def test_types_and_schemas(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute('CREATE SCHEMA "my sales"')
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)
    table = pa.table(
        {
            "id": pa.array(["k"]),
            "b": pa.array([True]),
            "i": pa.array([7], pa.int32()),
            "s": pa.array([7], pa.int16()),
            "d": pa.array([Decimal("12.340")], pa.decimal128(10, 3)),
            "t": pa.array([moment], pa.timestamp("us", "UTC")),
            "local": pa.array([moment.replace(tzinfo=None)], pa.timestamp("us")),
            "day": pa.array([moment.date()]),
            "f": pa.array([1.5], pa.float32()),
            "g": pa.array([1.5]),
            "raw": pa.array([b"\0\xff"]),
            "nothing": pa.array([None], pa.string()),
        }
    )
    database = open_state(url, "my sales.t", table.schema, ["id"])
    database.prepare()
    database.prepare()
    database.apply(Batch("f", "c1", 0), table.append_column(DELETED, pa.array([False])))
    with psycopg.connect(url) as connection:
        assert connection.execute('SELECT * FROM "my sales".t').fetchall() == [
            tuple(table.to_pylist()[0].values())
        ]


def test_what_the_server_refuses_is_told(url: str) -> None:
    database = state(url, "refused")
    with pytest.raises(DatabaseError, match="NUL"):
        database.apply(Batch("f", "c1", 0), rows((1, "a\0b")))
    assert database.kept() is None
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE other (id bigint PRIMARY KEY, name integer)")
    with pytest.raises(DatabaseError, match="column name is INTEGER, not TEXT"):
        open_state(url, "other", SCHEMA, ["id"]).prepare()
    with pytest.raises(DatabaseError, match=r"127\.0\.0\.1:1/"):
        open_state("postgresql://u:secret@127.0.0.1:1/d", "t", SCHEMA, ["id"]).prepare()


@pytest.mark.timeout(600)
def test_a_topic_is_kept_in_it_also_when_the_flow_dies_after_a_commit(
    spark: Any, cluster: Cluster, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.create_topic("people", 2)
    expected: dict[int, str] = {}
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(300):
            key, name = number * 7 % 40, f"name {number}"
            gone = number % 5 == 0
            value = None if gone else json.dumps({"id": key, "name": name}).encode()
            producer.send(topic, value, key=b"%d" % key)
            expected.pop(key, None)
            if not gone:
                expected[key] = name
    options = materialize.Options(
        topics=(topic,),
        schema="id BIGINT, name STRING",
        key=("id",),
        database=url,
        database_table="people",
        max_offsets_per_batch=100,
    )

    def start() -> Any:
        context = JobContext(
            spark=spark,
            name="people",
            brokers=cluster.bootstrap_servers,
            state=str(tmp_path),
            trigger={"availableNow": True},
        )
        return materialize.start(context, options)

    apply = PostgresState.apply

    def dying(self: Any, batch: Batch, rows: pa.Table) -> bool:
        done = apply(self, batch, rows)
        if batch.number == 1:
            raise ZeroDivisionError("after the commit")
        return done

    with monkeypatch.context() as patched, pytest.raises(Exception, match="after the commit"):
        patched.setattr(PostgresState, "apply", dying)
        start().awaitTermination()
    start().awaitTermination()
    assert content(url, "people") == expected
