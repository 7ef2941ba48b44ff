"""*materialize* with a real Spark and a real broker, against the plain calculation: the last record of each key, tombstones taken away."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.test_ddl import COLUMNS
from tidelog.client.blocking import Consumer, Producer
from tidelog.client.dead_letters import origin_of
from tidelog.client.metadata import TopicPartition
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.databases_sqlite import SqliteState
from tidelog.pipeline.ddl import parse_columns
from tidelog.pipeline.jobs import materialize
from tidelog.pipeline.options import read_options
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow

SCHEMA = "id BIGINT, name STRING, amount DOUBLE, tags ARRAY<STRING>"
WHALE = 7
Change = tuple[int, dict[str, Any] | None]


def some_changes(seed: int, count: int) -> list[Change]:
    """A third is the whale's; one in eight is a tombstone."""
    chance = random.Random(seed)
    found: list[Change] = []
    for number in range(count):
        key = WHALE if chance.random() < 0.33 else chance.randrange(200)
        row = {"id": key, "name": f"n{seed}-{number}", "amount": number / 4, "tags": ["a", f"{number}"]}
        found.append((key, None if chance.random() < 0.125 else row))
    return found


def produce(cluster: Cluster, topic: str, changes: list[Change]) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for key, row in changes:
            value = None if row is None else json.dumps(row).encode()
            producer.send(topic, value, key=json.dumps({"id": key}).encode())


def expected(changes: list[Change]) -> dict[int, dict[str, Any]]:
    last = dict(changes)
    return {key: row for key, row in last.items() if row is not None}


def context(spark: Any, cluster: Cluster, state: Path, name: str = "orders") -> JobContext:
    return JobContext(
        spark=spark,
        name=name,
        brokers=cluster.bootstrap_servers,
        state=str(state),
        trigger={"availableNow": True},
    )


def run(job: JobContext, **table: Any) -> dict[str, int]:
    query = materialize.start(job, read_options(materialize.Options, table))
    assert query.awaitTermination(600), "still running"
    return job.counters.now()


def delta_rows(path: Path) -> dict[int, dict[str, Any]]:
    from deltalake import DeltaTable

    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), "a key has two rows"
    return {row["id"]: row for row in rows}


def sqlite_rows(path: Path) -> dict[int, dict[str, Any]]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT id, name, amount, tags FROM orders").fetchall()
    return {
        key: {"id": key, "name": name, "amount": amount, "tags": json.loads(tags)}
        for key, name, amount, tags in rows
    }


def test_schemas_mean_what_they_mean_to_spark(spark: Any) -> None:
    from pyspark.sql.types import StructType

    for text in COLUMNS:
        assert parse_columns(text) == StructType.fromDDL(text)


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    return cluster.create_topic(f"t-{abs(hash(request.node.name))}", 3)


@pytest.mark.long
def test_delta_and_sqlite_are_the_latest_rows_also_after_a_restart_and_a_rebuild(
    spark: Any, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    common = {"topics": topic, "schema": SCHEMA, "key": "id", "max_offsets_per_batch": 300}
    database = {"database": f"sqlite:///{tmp_path}/state.db", "database_table": "orders"}
    changes = some_changes(1, 600)
    produce(cluster, topic, changes)
    run(context(spark, cluster, tmp_path / "d"), table=str(tmp_path / "table"), **common)
    counters = run(context(spark, cluster, tmp_path / "s"), **common, **database)
    assert delta_rows(tmp_path / "table") == expected(changes)
    assert sqlite_rows(tmp_path / "state.db") == expected(changes)
    assert counters["rows written"] > 0 and counters["rows deleted"] > 0
    more = some_changes(2, 60)
    produce(cluster, topic, more)
    changes += more
    # What nobody would ever repair by going on: a row too many, a row that is wrong.
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute("INSERT INTO orders VALUES (9999, 'x', 0, '[]')")
    broken = pa.table(
        {"id": [9999], "name": ["x"], "amount": [0.0], "tags": pa.array([[]], pa.list_(pa.string()))}
    )
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "table"), broken, mode="append")
    run(context(spark, cluster, tmp_path / "d"), table=str(tmp_path / "table"), rebuild=True, **common)
    run(context(spark, cluster, tmp_path / "s"), rebuild=True, **common, **database)
    assert delta_rows(tmp_path / "table") == expected(changes)
    assert sqlite_rows(tmp_path / "state.db") == expected(changes)
    produce(cluster, topic, [(WHALE, None)])
    run(context(spark, cluster, tmp_path / "d"), table=str(tmp_path / "table"), **common)
    run(context(spark, cluster, tmp_path / "s"), **common, **database)
    assert delta_rows(tmp_path / "table") == expected([*changes, (WHALE, None)])
    assert sqlite_rows(tmp_path / "state.db") == expected([*changes, (WHALE, None)])


class CrashError(Exception):
    pass


@pytest.fixture(params=["before the commit", "after the commit"])
def crash(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The second batch dies in the database's transaction, or right after it, before Spark notes the batch."""
    note, apply = SqliteState._note, SqliteState.apply

    def dying_note(self: Any, connection: Any, batch: Any, rebuilding: bool) -> None:
        note(self, connection, batch, rebuilding)
        if batch.number == 1:
            raise CrashError("before the commit")

    def dying_apply(self: Any, batch: Any, rows: Any) -> bool:
        done = apply(self, batch, rows)
        if batch.number == 1:
            raise CrashError("after the commit")
        return done

    if request.param == "before the commit":
        monkeypatch.setattr(SqliteState, "_note", dying_note)
    else:
        monkeypatch.setattr(SqliteState, "apply", dying_apply)
    yield monkeypatch


def test_a_crash_on_either_side_of_the_commit_changes_nothing(
    spark: Any, cluster: Cluster, tmp_path: Path, crash: pytest.MonkeyPatch
) -> None:
    topic = cluster.create_topic(f"crash-{tmp_path.name}", 2)
    changes = some_changes(5, 200)
    produce(cluster, topic, changes)
    table = {
        "topics": topic,
        "schema": SCHEMA,
        "key": "id",
        "max_offsets_per_batch": 80,
        "database": f"sqlite:///{tmp_path}/state.db",
        "database_table": "orders",
    }
    with pytest.raises(Exception, match="the commit"):
        run(context(spark, cluster, tmp_path / "s"), **table)
    crash.undo()
    applied: list[tuple[int, bool]] = []
    apply = SqliteState.apply

    def watched(self: Any, batch: Any, rows: Any) -> bool:
        applied.append((batch.number, apply(self, batch, rows)))
        return applied[-1][1]

    crash.setattr(SqliteState, "apply", watched)
    run(context(spark, cluster, tmp_path / "s"), **table)
    assert sqlite_rows(tmp_path / "state.db") == expected(changes)
    assert applied[0][0] == 1, "the batch that died is the first to be run again"
    # A runner with another checkpoint is not let in, and changes nothing.
    with pytest.raises(Exception, match="another runner has taken the flow over"):
        run(context(spark, cluster, tmp_path / "second"), **table)
    assert sqlite_rows(tmp_path / "state.db") == expected(changes)


@pytest.mark.long
def test_debezium_and_records_that_cannot_be_understood(
    spark: Any, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    row = {"id": 1, "city": "Rome"}
    sent: list[tuple[Any, Any]] = [
        ({"id": 1}, {"op": "r", "before": None, "after": row, "source": {"table": "x"}}),
        ({"id": 2}, {"op": "c", "after": {"id": 2, "city": "Oslo"}}),
        ({"schema": {}, "payload": {"id": 3}}, {"schema": {"x": 1}, "payload": {"op": "c", "after": {"id": 3, "city": "Bern"}}}),
        (4, {"op": "c", "after": {"id": 4, "city": None}}),
        ({"id": 2}, {"op": "u", "before": {"id": 2, "city": "Oslo"}, "after": {"id": 2, "city": "Bodø"}}),
        ({"id": 1}, {"op": "d", "before": row, "after": None}),
        ({"id": 1}, None),
    ]  # fmt: skip
    poison = [
        (b'{"id": 5}', b"{broken", "not JSON"),
        (b'{"id": 5}', b'{"id": 5, "city": "flat"}', "no op"),
        (b'{"id": 5}', b'{"op": "t"}', "op t"),
        (b'{"id": 5}', b'{"op": "c"}', "without after"),
        (b'{"id": "x"}', b'{"op": "c", "after": {"id": 5}}', "no id in the key"),
        (None, b'{"op": "c", "after": {"id": 5}}', "no id in the key"),
        (b'{"id": 5}', b'{"op": "c", "after": {"id": "five"}}', 'after.id: "five" is string, not a int'),
    ]
    with Producer(cluster.bootstrap_servers) as producer:
        for key, value in sent:
            raw = None if value is None else json.dumps(value).encode()
            producer.send(topic, raw, key=json.dumps(key).encode(), headers=(("h", b"1"),))
    table = {
        "topics": topic,
        "format": "debezium",
        "schema": "id INT, city STRING",
        "key": "id",
        "table": str(tmp_path / "table"),
        "position_columns": True,
    }
    run(context(spark, cluster, tmp_path / "s", "cities"), **table)
    rows = {key: row["city"] for key, row in delta_rows(tmp_path / "table").items()}
    assert rows == {2: "Bodø", 3: "Bern", 4: None}
    assert all(row["_topic"] == topic for row in delta_rows(tmp_path / "table").values())
    with Producer(cluster.bootstrap_servers) as producer:
        for raw_key, raw, _ in poison:
            producer.send(topic, raw, key=raw_key, headers=(("h", b"1"),))
    with pytest.raises(Exception, match=r"offset \d+: .*Mend the producer or the schema"):
        run(context(spark, cluster, tmp_path / "s", "cities"), **table, on_undecodable="fail")
    counters = run(context(spark, cluster, tmp_path / "s", "cities"), **table)
    dead = "cities.dlq"
    assert counters["dead_lettered"] == len(poison)
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(dead, 0)])
        letters: list[Any] = []
        while len(letters) < len(poison):
            letters += consumer.poll()
    found = sorted((letter.key or b"", letter.value) for letter in letters)
    assert found == sorted((key or b"", value) for key, value, _ in poison)
    reasons = {letter.value: origin_of(letter.headers) for letter in letters if letter.key != b'{"id": "x"}'}
    for _, value, says in poison:
        origin = reasons[value]
        assert origin is not None and origin.topic == topic and says in origin.reason, (value, origin)
    assert all(("h", b"1") in letter.headers for letter in letters)
    assert rows == {key: row["city"] for key, row in delta_rows(tmp_path / "table").items()}


def test_raw_values_by_text_keys(spark: Any, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for key, value in ((b"a", b"\0\xff"), (b"b", b""), (b"a", b"2"), (b"c", b"x"), (b"c", None)):
            producer.send(topic, value, key=key)
    run(
        context(spark, cluster, tmp_path / "s"),
        topics=topic,
        format="raw",
        database=f"sqlite:///{tmp_path}/state.db",
        database_table="kv",
    )
    with sqlite3.connect(tmp_path / "state.db") as connection:
        assert dict(connection.execute("SELECT key, value FROM kv")) == {"a": b"2", "b": b""}
