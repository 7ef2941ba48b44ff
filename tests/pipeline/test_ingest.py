"""Topics into tables, with a real broker and a real Spark: what is in the table afterwards is what plain Python says of the same records."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import json
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest
from deltalake import DeltaTable

from tidelog.client.blocking import Producer
from tidelog.client.dead_letter_topic import DeadLetter, read_dead_letters
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.jobs import ingest
from tidelog.pipeline.progress import QueryTracker
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow

Row = dict[str, Any]
POISON = (b"{", b'{"id": "seven"}', b"[1]", b"\xff{}", b'{"id": 1} {"id": 2}', b"")
BEGAN_MS = int(time.time()) * 1000
"""Of the first record. A time long ago would be past the topics' retention, and the broker would delete the records at its leisure."""
STEPS = ("start", "staged", "dead letters sent", "committed", "end")


class World:
    """A flow from a topic of its own, run until it has caught up, as often as asked for."""

    def __init__(self, spark: Any, cluster: Cluster, tmp_path: Path, topic: str, partitions: int = 2) -> None:
        self.spark, self.cluster, self.topic = spark, cluster, topic
        self.servers = cluster.bootstrap_servers
        self.state, self.table = tmp_path / "state", tmp_path / "table"
        self.records_read = 0
        """In the last run, as `tidelog pipeline status` has it."""
        cluster.create_topic(topic, partitions)

    def send(self, values: Sequence[bytes | None], partition: int = 0, **more: Any) -> None:
        with Producer(self.servers) as producer:
            deliveries = [
                producer.send(self.topic, value, partition=partition, timestamp_ms=BEGAN_MS + number, **more)
                for number, value in enumerate(values)
            ]
            for each in deliveries:
                each.result(60)

    def run(self, **options: Any) -> dict[str, int]:
        context = JobContext(
            spark=self.spark, name=self.topic, brokers=self.servers, state=str(self.state), trigger={"availableNow": True}
        )  # fmt: skip
        query = ingest.start(context, ingest.Options(topics=(self.topic,), table=str(self.table), **options))
        query.awaitTermination()
        tracker = QueryTracker(self.topic, context.batch_rows.of)
        tracker.feed(query.recentProgress, 0.0)
        self.records_read = tracker.now.rows
        return context.counters.now()

    def rows(self, *columns: str) -> list[Row]:
        table = DeltaTable(str(self.table)).to_pyarrow_table()
        table = table.select(list(columns)) if columns else table
        return sorted(table.to_pylist(), key=lambda row: json.dumps(row, default=str))

    def letters(self) -> list[DeadLetter]:
        return asyncio.run(read_dead_letters(self.servers, f"{self.topic}.dlq")).letters


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps at which the next batches fail, the first one first."""
    wanted: list[str] = []

    def reached(step: str) -> None:
        if wanted and wanted[0] == step:
            wanted.pop(0)
            raise RuntimeError(f"crashed at {step}")

    monkeypatch.setattr(ingest, "reached", reached)
    return wanted


def places(rows: list[Row]) -> list[tuple[int, int]]:
    return sorted((row["_partition"], row["_offset"]) for row in rows)


@pytest.mark.long
def test_json_with_poison_survives_a_crash_at_every_step(
    spark: Any, cluster: Cluster, tmp_path: Path, crash_at: list[str]
) -> None:
    world = World(spark, cluster, tmp_path, "orders")
    expected: dict[tuple[int, int], Row] = {}
    poison: dict[tuple[int, int], bytes] = {}
    for partition in range(2):
        values: list[bytes | None] = []
        for n in range(60):
            if n % 10 == 9:
                values.append(POISON[n // 10])
                poison[partition, n] = POISON[n // 10]
            elif n == 5:
                values.append(None)
                expected[partition, n] = {"id": None, "total": None, "tags": None}
            else:
                row = {"id": n, "total": n / 4, "tags": [f"t{n}"] if n % 2 else None}
                values.append(json.dumps(row).encode())
                expected[partition, n] = row
        world.send(values, partition, key=b"k", headers=[("trace", b"1")])
    options: dict[str, Any] = {
        "schema": "id bigint, total double, tags array<string>",
        "max_offsets_per_batch": 30,
        "compact_every_batches": 2,
    }
    for step in STEPS:
        crash_at[:] = [step]
        with pytest.raises(Exception, match=f"crashed at {step}"):
            world.run(**options)
    crash_at[:] = []
    world.run(**options)
    found = {
        (row["_partition"], row["_offset"]): {name: row[name] for name in ("id", "total", "tags")}
        for row in world.rows()
    }
    assert found == expected
    assert len(world.rows()) == len(expected)
    assert {row["_topic"] for row in world.rows()} == {"orders"}
    at = dt.datetime.fromtimestamp(BEGAN_MS / 1000, dt.UTC)
    assert min(row["_timestamp"] for row in world.rows()) == at

    letters = world.letters()
    by_place = {(each.origin.partition, each.origin.offset): each for each in letters}
    assert {place: each.value for place, each in by_place.items()} == poison
    assert len(letters) == len(poison), "a batch that is done again sends nothing twice"
    one = by_place[1, 19]
    assert (one.key, one.headers, one.origin.group) == (b"k", (("trace", b"1"),), "orders")
    reasons = [by_place[0, n].origin.reason for n in range(9, 60, 10)]
    for reason, words in zip(
        reasons,
        ("not JSON", 'id: "seven" is string, not a bigint', "array, not an object", "not UTF-8: invalid start byte at byte 0", "not JSON: Extra data", "empty"),
        strict=True,
    ):  # fmt: skip
        assert words in reason

    assert world.run(**options) == {}
    world.send([b'{"id": 1000}', b"poison"])
    assert world.run(**options) == {"rows": 1, "files": 1, "dead_lettered": 1}
    assert len(world.rows()) == len(expected) + 1


def test_fields_of_json_are_found_out_and_change_by_policy(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    world = World(spark, cluster, tmp_path, "events", 1)
    world.send([b'{"id": 1, "at": {"x": 1}, "n": null}', b'{"id": 2, "price": 1.5, "odd key": 1}'])
    with pytest.raises(Exception, match="'odd key' cannot be the name of a column"):
        world.run()
    cluster.delete_topic("events")
    world = World(spark, cluster, tmp_path / "2", "events2", 1)
    world.send([b'{"id": 1, "at": {"x": 1}, "n": null}', b'{"id": 2, "price": 1.5}'])
    world.run(metadata=("offset",))
    first = [
        {"_offset": 0, "id": 1, "at": {"x": 1}, "price": None},
        {"_offset": 1, "id": 2, "at": None, "price": 1.5},
    ]
    assert world.rows() == first
    world.send([b'{"id": 3, "n": "now a text", "at": {"x": 2, "y": [{"z": true}]}}'])
    with pytest.raises(Exception, match=r"flow events2: records have a new field at\.y, a new field n"):
        world.run(metadata=("offset",), schema_changes="fail")
    assert world.run(metadata=("offset",))["rows"] == 1
    assert world.rows("id", "at", "n") == [
        {"id": 1, "at": {"x": 1, "y": None}, "n": None},
        {"id": 2, "at": None, "n": None},
        {"id": 3, "at": {"x": 2, "y": [{"z": True}]}, "n": "now a text"},
    ]
    world.send([b'{"id": 4, "more": 1}', b'{"id": 1.5}'])
    with pytest.raises(
        Exception, match=r"1 records of batch 2 .* events2-0 at offset 4: id: 1\.5 is number, not a bigint"
    ):
        world.run(metadata=("offset",), schema_changes="ignore", on_undecodable="fail")
    assert world.run(metadata=("offset",), schema_changes="ignore", on_undecodable="skip") == {
        "rows": 1, "files": 1, "skipped": 1,
    }  # fmt: skip
    assert [row["id"] for row in world.rows("id")] == [1, 2, 3, 4]
    assert world.letters() == [], "nothing was sent there"


ORDER: Row = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "long"}]}}},
    ],
}  # fmt: skip


def avro(schema: Row, row: Row, number: int | None = None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + out.getvalue()


def order(n: int, **more: Any) -> Row:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=n)
    return {"id": n, "at": at, "note": None if n % 2 else f"n{n}", "lines": [{"sku": "a", "n": n}], **more}


@pytest.fixture
def registry() -> Iterator[tuple[str, dict[int, Row], list[str]]]:
    """Its address, its schemas by number, and what it was asked for."""
    schemas: dict[int, Row] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found = schemas.get(int(self.path.rpartition("/")[2]))
            body = json.dumps({"schema": json.dumps(found)} if found else {"error_code": 40403}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", schemas, asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.long
def test_avro_plain_and_framed(
    spark: Any, cluster: Cluster, tmp_path: Path, registry: tuple[str, dict[int, Row], list[str]]
) -> None:
    plain = World(spark, cluster, tmp_path / "plain", "plain", 1)
    good = [order(n) for n in range(5)]
    plain.send([avro(ORDER, row) for row in good] + [avro(ORDER, good[0])[:-1], avro(ORDER, good[0]) + b"x"])
    assert plain.run(format="avro", schema=json.dumps(ORDER), metadata=()) == {
        "rows": 5, "files": 1, "dead_lettered": 2,
    }  # fmt: skip
    assert plain.rows() == sorted(good, key=lambda row: json.dumps(row, default=str))
    assert ["bytes are left over" in each.origin.reason for each in plain.letters()] == [False, True]

    address, schemas, asked = registry
    framed = World(spark, cluster, tmp_path / "framed", "framed", 1)
    schemas[1] = ORDER
    options: dict[str, Any] = {"format": "avro", "framing": "registry", "registry": address, "metadata": ()}
    framed.send([avro(ORDER, order(1), 1), b"\x01bad!!", avro(ORDER, order(2), 9)])
    assert framed.run(**options) == {"rows": 1, "files": 1, "dead_lettered": 2}
    assert [each.origin.reason.split(":")[0] for each in framed.letters()] == [
        "the value has no frame of a schema registry",
        "the registry has no schema 9",
    ]
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "tip", "type": "float", "default": 0.0}]}
    schemas[70_000] = newer
    framed.send([avro(newer, order(2, tip=0.5), 70_000), avro(ORDER, order(3), 1)])
    with pytest.raises(Exception, match="values of schema 70000 have a new field tip"):
        framed.run(**options, schema_changes="fail")
    assert framed.run(**options)["rows"] == 2
    expected = [order(1, tip=None), order(2, tip=0.5), order(3, tip=None)]
    assert framed.rows() == sorted(expected, key=lambda row: json.dumps(row, default=str))
    assert asked.count("/schemas/ids/1") == 1, "a schema never changes under its number"
    wider = {**ORDER, "fields": [{"name": "id", "type": "long"}, *ORDER["fields"][1:]]}
    schemas[3] = wider
    framed.send([avro(wider, {**order(7), "id": 2**40}, 3)])
    with pytest.raises(Exception, match="column id is int in the table and bigint in the records"):
        framed.run(**options)


def test_raw_and_framed_json_into_parquet(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    raw = World(spark, cluster, tmp_path, "raw", 1)
    raw.send([b"\xff\0", None], key=b"\x01")
    counts = raw.run(format="raw", table_format="parquet", metadata=("offset", "headers"))
    assert counts == {"rows": 2, "files": 1}
    found = ds.dataset(str(raw.table), format="parquet").to_table().to_pylist()
    assert sorted(found, key=lambda row: row["_offset"]) == [
        {"_offset": 0, "_headers": None, "key": b"\x01", "value": b"\xff\0"},
        {"_offset": 1, "_headers": None, "key": b"\x01", "value": None},
    ]
    framed = World(spark, cluster, tmp_path / "framed", "framed-json", 1)
    framed.send([b'\0\0\0\0\x07{"id": 1}', b'{"id": 2}'])
    counts = framed.run(framing="registry", schema="id int", metadata=())
    assert (counts["rows"], counts["dead_lettered"], framed.rows()) == (1, 1, [{"id": 1}])
    assert framed.records_read == 2, "a batch with poison is read twice, and counts once"
