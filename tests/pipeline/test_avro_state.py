"""Avro in the jobs that have to know their columns before the first record, with a real Spark: the results are those of plain Python over the same rows."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import json
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

import fastavro
import pytest
from deltalake import DeltaTable

from tidelog.client.blocking import Producer
from tidelog.client.dead_letter_topic import read_dead_letters
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.jobs import aggregate, materialize
from tidelog.pipeline.options import read_options
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow

Row = dict[str, Any]
NOON = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
SALE: Row = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "shop", "type": ["null", "string"], "default": None},
        {"name": "cents", "type": "int"},
    ],
}
WIDER: Row = {**SALE, "fields": [*SALE["fields"][:2], {"name": "cents", "type": "long"}, {"name": "note", "type": "string"}]}  # fmt: skip
UNTIMED: Row = {**SALE, "fields": [{"name": "at", "type": "long"}, *SALE["fields"][1:]]}


def avro(schema: Any, row: Any, number: int | None = None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + out.getvalue()


def registry(directory: Path, schemas: dict[int, Any]) -> str:
    directory.mkdir(exist_ok=True)
    for number, schema in schemas.items():
        (directory / f"{number}.avsc").write_text(json.dumps(schema))
    return str(directory)


def send(cluster: Cluster, topic: str, records: list[tuple[bytes | None, bytes | None]]) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for key, value in records:
            producer.send(topic, value, key=key, partition=0)


def run(job: Any, spark: Any, cluster: Cluster, state: Path, name: str, table: Row) -> dict[str, int]:
    context = JobContext(
        spark=spark,
        name=name,
        brokers=cluster.bootstrap_servers,
        state=str(state),
        trigger={"availableNow": True},
    )
    query = job.start(context, read_options(job.Options, table))
    assert query.awaitTermination(600), "still running"
    return context.counters.now()


def reasons(cluster: Cluster, topic: str) -> dict[bytes | None, str]:
    letters = asyncio.run(read_dead_letters(cluster.bootstrap_servers, topic)).letters
    return {each.value: each.origin.reason for each in letters}


def sales(count: int) -> list[Row]:
    return [
        {"at": NOON + dt.timedelta(seconds=7 * n), "shop": "a" if n % 3 else None, "cents": n, "note": ""}
        for n in range(count)
    ]


def by_minute(rows: list[Row]) -> dict[tuple[dt.datetime, str | None], tuple[int, int]]:
    found: dict[tuple[dt.datetime, str | None], list[int]] = defaultdict(list)
    for row in rows:
        found[row["at"].replace(second=0), row["shop"]].append(row["cents"])
    return {place: (len(each), sum(each)) for place, each in found.items()}


def stored(path: Path) -> dict[tuple[dt.datetime, str | None], tuple[int, int]]:
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return {(row["window_start"], row["shop"]): (row["n"], row["cents"]) for row in rows}


WINDOWS = {
    "event_time": "at",
    "window": "1 minute",
    "group_by": "shop",
    "aggregates": {"n": "count", "cents": "sum(cents)"},
}


def test_sums_of_framed_avro_by_columns(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("sales", 1)
    schemas = registry(tmp_path / "schemas", {1: SALE, 2: WIDER, 3: UNTIMED})
    rows = sales(40)
    poison = {
        b"no frame": "no frame of a schema registry",
        avro(SALE, rows[0], 9): "the registry has no schema 9",
        avro(SALE, rows[0], 1)[:-1]: "not Avro by its schema",
        avro(UNTIMED, {**rows[0], "at": 1_777_000_000_000}, 3): "at is bigint, not timestamp",
    }
    sent = [avro(WIDER if n % 2 else SALE, row, 2 if n % 2 else 1) for n, row in enumerate(rows)]
    send(cluster, topic, [(None, value) for value in (*sent[:20], *poison, *sent[20:])])
    table = {
        "topics": topic,
        "format": "avro",
        "framing": "registry",
        "registry": schemas,
        "schema": "at TIMESTAMP, shop STRING, cents BIGINT",
        "table": str(tmp_path / "table"),
        **WINDOWS,
    }
    counters = run(aggregate, spark, cluster, tmp_path / "state", "framed-sums", table)
    assert stored(tmp_path / "table") == by_minute(rows)
    assert counters["dead_lettered"] == len(poison)
    found = reasons(cluster, "framed-sums.dlq")
    assert found.keys() == poison.keys()
    for value, says in poison.items():
        assert says in found[value]


@pytest.mark.long
def test_sums_of_plain_avro_by_its_schema(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("plain-sales", 1)
    rows = sales(30)
    send(cluster, topic, [(None, avro(SALE, row)) for row in rows] + [(None, b"\x01")])
    (tmp_path / "sale.avsc").write_text(json.dumps(SALE))
    table = {"topics": topic, "format": "avro", "schema_file": str(tmp_path / "sale.avsc")}
    table |= {"table": str(tmp_path / "table"), **WINDOWS}
    counters = run(aggregate, spark, cluster, tmp_path / "state", "plain-sums", table)
    assert stored(tmp_path / "table") == by_minute(rows)
    assert counters["dead_lettered"] == 1


KEY: Row = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
CITY: Row = {
    "type": "record",
    "name": "City",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
ENVELOPE: Row = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", CITY], "default": None},
        {"name": "after", "type": ["null", "City"], "default": None},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


def city(number: int, name: str) -> Row:
    return {"id": number, "name": name, "tags": [name[0]], "seen": NOON}


@pytest.mark.long
@pytest.mark.parametrize("format", ["avro", "debezium-avro"])
def test_the_latest_rows_of_framed_avro_with_framed_keys(
    spark: Any, cluster: Cluster, tmp_path: Path, format: str
) -> None:
    topic = cluster.create_topic(f"cities-{format}", 1)
    schemas = registry(tmp_path / "schemas", {1: KEY, 2: CITY, 3: ENVELOPE, 4: "long"})

    def value(op: str, row: Row) -> bytes:
        if format == "avro":
            return avro(CITY, row, 2)
        return avro(ENVELOPE, {"op": op, "before" if op == "d" else "after": row}, 3)

    changes: list[tuple[bytes | None, bytes | None]] = [
        (avro(KEY, {"id": 1}, 1), value("c", city(1, "Rome"))),
        (avro("long", 2, 4), value("c", city(2, "Oslo"))),
        (avro(KEY, {"id": 3}, 1), value("r", city(3, "Bern"))),
        (avro("long", 2, 4), value("u", city(2, "Bodø"))),
        (avro(KEY, {"id": 1}, 1), value("d", city(1, "Rome")) if format != "avro" else None),
        (avro(KEY, {"id": 1}, 1), None),
    ]
    poison = {
        b"\0\0\0\0\x02": "not Avro by its schema",
        value("c", city(8, "Bonn")): "the key: the registry has no schema 7",
        value("c", city(9, "Köln")): "there is no id in the key",
    }
    bad_keys = [avro(KEY, {"id": 9}, 1), avro(KEY, {"id": 9}, 7), None]
    send(cluster, topic, [*changes, *zip(bad_keys, poison, strict=True)])
    table = {
        "topics": topic,
        "format": format,
        "framing": "registry",
        "registry": schemas,
        "schema": "id BIGINT, name STRING, tags ARRAY<STRING>, seen TIMESTAMP",
        "key": "id",
        "database": f"sqlite:///{tmp_path}/state.db",
        "database_table": "cities",
    }
    counters = run(materialize, spark, cluster, tmp_path / "state", f"cities-{format}", table)
    with sqlite3.connect(tmp_path / "state.db") as connection:
        found = connection.execute("SELECT id, name, tags, seen FROM cities ORDER BY id").fetchall()
    at = "2026-05-01 12:00:00.000000"
    assert found == [(2, "Bodø", '["B"]', at), (3, "Bern", '["B"]', at)]
    assert counters["dead_lettered"] == len(poison)
    told = reasons(cluster, f"cities-{format}.dlq")
    assert told.keys() == poison.keys()
    for each, says in poison.items():
        assert says in told[each]


@pytest.mark.long
def test_the_latest_rows_of_plain_avro_by_text_keys(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("plain-cities", 1)
    rows = [city(1, "Rome"), city(2, "Oslo"), city(1, "Roma")]
    sent: list[tuple[bytes | None, bytes | None]] = [
        (str(row["id"]).encode(), avro(CITY, row)) for row in rows
    ]
    send(cluster, topic, [*sent, (b"2", None), (b"3", b"?")])
    table = {
        "topics": topic,
        "format": "avro",
        "schema": json.dumps(CITY),
        "key": "id",
        "key_format": "text",
        "table": str(tmp_path / "table"),
        "on_undecodable": "skip",
    }
    counters = run(materialize, spark, cluster, tmp_path / "state", "plain-cities", table)
    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist() == [rows[2]]
    assert counters["skipped"] == 1
