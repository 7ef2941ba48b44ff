"""What decides in decoding and in tables, without Spark: how schemas grow, why a record is wrong, what a registry says, what options can work."""

from __future__ import annotations

import datetime as dt
import io
import json
import urllib.error
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from tidelog.pipeline.ddl import parse_columns
from tidelog.pipeline.decoding import DecodingError, KeptSchema
from tidelog.pipeline.decoding_avro import Schemas, decode_batches, decoder_for, load_avsc
from tidelog.pipeline.decoding_avro_schema import misread, plain, spark_schema
from tidelog.pipeline.decoding_json import why_not_json
from tidelog.pipeline.decoding_registry import SchemaRegistry
from tidelog.pipeline.decoding_schemas import FIELDS_MAX, from_variant, grow, judged
from tidelog.pipeline.jobs.ingest import Options
from tidelog.pipeline.options import OptionsError, read_options
from tidelog.pipeline.tables import SchemaChangeError
from tidelog.pipeline.tables.delta import delta_stats
from tidelog.pipeline.tables.files import ColumnStats, DataFile, column_stats, partition_values
from tidelog.pipeline.tables.schemas import check_partition_column, is_wider, plan


def ddl(text: str) -> t.StructType:
    return parse_columns(text)


# -- how a schema grows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "columns"),
    [
        ("OBJECT<a: BIGINT, b: STRING>", "a bigint, b string"),
        ("OBJECT<a: DECIMAL(3,1), b: BOOLEAN, c: DOUBLE>", "a double, b boolean, c double"),
        ("OBJECT<`odd, key: <`: BIGINT, o: OBJECT<x: ARRAY<OBJECT<y: STRING>>>>", "`odd, key: <` bigint, o struct<x:array<struct<y:string>>>"),
        ("OBJECT<mixed: VARIANT>", "mixed string"),
        ("OBJECT<a: VOID, b: OBJECT<>, c: ARRAY<VOID>, d: BIGINT>", "d bigint"),
    ],
)  # fmt: skip
def test_what_spark_says_of_json_as_a_schema(said: str, columns: str) -> None:
    assert from_variant(said) == ddl(columns)


def test_what_is_no_object_has_no_schema() -> None:
    assert from_variant("ARRAY<BIGINT>") is from_variant("VOID") is from_variant("") is None
    assert from_variant("OBJECT<>") == t.StructType([])


def test_new_fields_are_found_wherever_they_are() -> None:
    known = ddl(
        "id bigint, at struct<x:int>, lines array<struct<sku:string>>, tags map<string,struct<n:int>>, any string"
    )
    seen = ddl(
        "id bigint, at struct<y:int>, lines array<struct<n:bigint>>, tags struct<red:struct<m:int>>, any struct<z:int>, new boolean"
    )
    growth = grow(known, seen, widen=False)
    assert growth.added == ["at.y", "lines.element.n", "tags.value.m", "new"]
    assert growth.schema == ddl(
        "id bigint, at struct<x:int,y:int>, lines array<struct<sku:string,n:bigint>>, tags map<string,struct<n:int,m:int>>, any string, new boolean"
    )
    again = grow(growth.schema, seen, widen=False)
    assert not again.is_any and again.schema == growth.schema


def test_numbers_widen_where_asked_for_only() -> None:
    known, seen = ddl("a int, b float, c bigint"), ddl("a bigint, b double, c int")
    assert not grow(known, seen, widen=False).is_any
    growth = grow(known, seen, widen=True)
    assert (growth.widened, growth.schema) == (["a", "b"], ddl("a bigint, b double, c bigint"))


def test_policies_judge_growth() -> None:
    growth = grow(ddl("a int"), ddl("a int, b int"), widen=True)
    assert judged(growth, "add", "f") == ddl("a int, b int")
    with pytest.raises(
        SchemaChangeError, match='flow f: records have a new field b: add with schema_changes = "add"'
    ):
        judged(growth, "fail", "f")
    many = t.StructType([t.StructField(f"k{n}", t.LongType()) for n in range(FIELDS_MAX + 1)])
    with pytest.raises(SchemaChangeError, match="are keys of an object data"):
        judged(grow(t.StructType([]), many, widen=False), "add", "f")


def test_a_kept_schema_counts_as_long_as_the_given_one_is_the_same(tmp_path: Path) -> None:
    KeptSchema(str(tmp_path), "a int").save(ddl("a int, b int"))
    assert KeptSchema(str(tmp_path), "a int").load() == ddl("a int, b int")
    assert KeptSchema(str(tmp_path), "a bigint").load() is None
    (tmp_path / "schema.json").write_text("{")
    with pytest.raises(DecodingError, match=r"schema\.json cannot be read .* remove it"):
        KeptSchema(str(tmp_path), "a int").load()


# -- why JSON is wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"{", "not JSON: Expecting property name"),
        (b'{"id": 1} {}', "not JSON: Extra data"),
        (b" ", "an empty text is no JSON object"),
        (b"\x80", "not UTF-8: invalid start byte at byte 0"),
        (b"[1]", "a JSON array, not an object"),
        (b"null", "a JSON null, not an object"),
        (b'{"id": 1.5}', "id: 1.5 is number, not a int"),
        (b'{"id": 3000000000}', "id: 3000000000 does not fit into int"),
        (b'{"id": true}', "id: true is boolean, not a int"),
        (b'{"at": {"x": [1, "a"]}}', 'at.x[1]: "a" is string, not a double'),
        (b'{"at": 5}', "at: 5 is number, not an object"),
        (b'{"m": {"k": "v"}}', 'm.k: "v" is string, not a boolean'),
        (b'{"id": 1}', "the value does not fit the schema"),
        (b"[" * 100_000, "not JSON: maximum recursion depth"),
    ],
)
def test_the_reason_says_where_and_what(value: bytes, why: str) -> None:
    assert why_not_json(value, ddl("id int, at struct<x:array<double>>, m map<string,boolean>")).startswith(
        why
    )


@given(st.binary(max_size=40))
def test_there_is_a_reason_for_anything(value: bytes) -> None:
    assert why_not_json(value, ddl("id int, d decimal(9,2), b boolean, t timestamp"))


# -- Avro ----------------------------------------------------------------------------------------------------------

LINE: dict[str, Any] = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": ["null", "Kind"], "default": None},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "first", "type": ["null", "shop.Line"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "number", "type": ["null", "int", "double"]},
        {"name": "more", "type": {"type": "map", "values": "float"}},
    ],
}  # fmt: skip


def test_avro_schemas_as_columns() -> None:
    assert spark_schema(ORDER) == ddl(
        "id bigint, kind string, again string, lines array<struct<sku:string>>, first struct<sku:string>, price decimal(9,2), day date, clock bigint, uuid string, number double, more map<string,float>"
    )
    assert spark_schema("string") == ddl("value string")


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (["string", "long"], "field f is a union of string and long"),
        (["null", {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}], r"field f\.next contains itself"),
        ("Nowhere", "field f is of an unknown type 'Nowhere'"),
    ],
)  # fmt: skip
def test_what_no_column_can_be_is_named(field: Any, why: str) -> None:
    with pytest.raises(DecodingError, match=why):
        spark_schema({"type": "record", "name": "X", "fields": [{"name": "f", "type": field}]})


def avro(schema: Any, row: Any, number: int | None = None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + out.getvalue()


def test_avro_values_become_arrow_and_wrong_ones_are_marked() -> None:
    old = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}]}
    odd = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "string"}]}
    schemas = Schemas(
        ddl("id int, tip double").json(), None, {1: json.dumps(old), 2: json.dumps(odd), 3: None}, True
    )
    values = [
        avro(old, {"id": 7}, 1),
        None,
        avro(odd, {"id": "x"}, 2),
        b"\0\0\0\0\x03zz",
        b"\0\0\0\0\x04zz",
        b"no",
        avro(old, {"id": 8}, 1)[:-1],
        avro(old, {"id": 9}, 1),
    ]
    (batch,) = decode_batches(schemas, iter([pa.record_batch({"value": pa.array(values, pa.binary())})]))
    rows = batch.to_pylist()
    assert [row["tidelog_data"] for row in rows] == [
        {"id": 7, "tip": None},
        *[None] * 6,
        {"id": 9, "tip": None},
    ]
    problems = [row["tidelog_problem"] for row in rows]
    assert problems[0] is problems[1] is problems[7] is None
    for problem, words in zip(
        problems[2:7],
        (
            "does not fit the flow's columns",
            "no schema 3",
            "not known yet",
            "no frame",
            "EOFError|left over|not Avro",
        ),
        strict=True,
    ):
        assert any(word in problem for word in words.split("|")), problem


def test_a_given_schema_resolves_defaults_and_columns_are_added_beside_it() -> None:
    reader = {
        "type": "record",
        "name": "O",
        "fields": [{"name": "id", "type": "long"}, {"name": "state", "type": "string", "default": "new"}],
    }
    writer = {
        "type": "record",
        "name": "O",
        "fields": [{"name": "id", "type": "int"}, {"name": "tip", "type": "double"}],
    }
    for columns, expected in (
        ("id bigint, state string", {"id": 1, "state": "new"}),
        ("id bigint, state string, tip double", {"id": 1, "state": "new", "tip": 0.5}),
    ):
        decode = decoder_for(Schemas(ddl(columns).json(), json.dumps(reader), {5: json.dumps(writer)}, True))
        assert decode(avro(writer, {"id": 1, "tip": 0.5}, 5)) == (expected, None)


def test_where_columns_are_settled_executors_ask_the_registry_themselves(tmp_path: Path) -> None:
    record = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}, {"name": "x", "type": "string"}]}  # fmt: skip
    for number, schema in ((1, record), (2, "int"), (3, {"type": "map", "values": ["int", "string"]})):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
    schemas = Schemas(ddl("id bigint").json(), None, {}, True, registry=str(tmp_path), root="id")
    values = [avro(record, {"id": 7, "x": ""}, 1), avro("int", 8, 2), avro("int", 8, 9)]
    (batch,) = decode_batches(schemas, iter([pa.record_batch({"value": pa.array(values, pa.binary())})]))
    rows = batch.to_pylist()
    assert [row["tidelog_data"] for row in rows] == [{"id": 7}, {"id": 8}, None]
    assert rows[2]["tidelog_problem"] == "the registry has no schema 9"
    with pytest.raises(DecodingError, match=r"schema 3: .* is a union of int and string"):
        decoder_for(schemas)(avro({"type": "map", "values": "int"}, {}, 3))


@pytest.mark.parametrize(
    ("kind", "columns", "why"),
    [
        ("long", "f timestamp", "f is bigint, not timestamp"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "f timestamp", None),
        ({"type": "long", "logicalType": "timestamp-millis"}, "f bigint", "f is timestamp, not bigint"),
        ({"type": "int", "logicalType": "date"}, "f timestamp", "f is date, not timestamp"),
        ({"type": "array", "items": "int"}, "f array<date>", "f.element is int, not date"),
        ({"type": "map", "values": "long"}, "f map<string,timestamp>", "f.value is bigint, not timestamp"),
        ("long", "g timestamp", None),
        ("int", "f bigint", None),
    ],
)
def test_a_number_is_never_taken_for_a_time(kind: Any, columns: str, why: str | None) -> None:
    record = {"type": "record", "name": "X", "fields": [{"name": "f", "type": kind}]}
    assert misread(record, ddl(columns)) == why
    if why is not None:
        text = json.dumps(record)
        decode = decoder_for(Schemas(ddl(columns).json(), None, {1: text}, True))
        assert decode(b"\0\0\0\0\1") == (None, f"the value does not fit the flow's columns: {why}")


def test_a_schema_that_is_none_is_refused() -> None:
    for text in ("{", '{"type": "record"}', '"nothing"'):
        with pytest.raises(DecodingError, match="is no Avro schema"):
            load_avsc(text)
    assert plain(load_avsc(json.dumps(ORDER)))["fields"][7]["type"] == {"type": "long"}


# -- registries ----------------------------------------------------------------------------------------------------


def test_a_directory_is_a_registry(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text('"string"')
    (tmp_path / "8.avsc").write_text("oops")
    registry = SchemaRegistry(str(tmp_path), str(tmp_path / "cache"))
    assert (registry.schema(7), registry.schema(1)) == ("string", None)
    with pytest.raises(DecodingError, match=r"8\.avsc is no Avro schema"):
        registry.schema(8)


class Answers(SchemaRegistry):
    def __init__(self, cache: Path, *answers: bytes | Exception) -> None:
        self.slept: list[float] = []
        self.answers = list(answers)
        super().__init__("http://registry", str(cache), self.slept.append)

    def _get(self, url: str) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def refusal(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://registry", code, "no", None, None)  # type: ignore[arg-type]


def test_a_registry_is_asked_again_when_it_stumbles_and_once_when_it_answers(tmp_path: Path) -> None:
    good = json.dumps({"schema": '"long"'}).encode()
    registry = Answers(tmp_path, OSError("gone"), refusal(503), good)
    assert registry.schema(1) == registry.schema(1) == "long"
    assert registry.slept == [0.5, 1.0]
    assert Answers(tmp_path).schema(1) == "long", "kept over restarts"
    missing = Answers(tmp_path, refusal(404), good)
    assert (missing.schema(2), missing.schema(2)) == (None, "long")


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([OSError("gone")] * 4, "does not answer: gone; schema 9 is needed"),
        ([refusal(401)], "schema 9: 401"),
        ([b'{"schema": "x", "schemaType": "PROTOBUF"}'], "is PROTOBUF, not AVRO"),
        ([b'{"schema": "{}", "references": [{"name": "a"}]}'], "refers to other schemas"),
        ([b"<html>"], "is no schema"),
        ([b"[]"], "is no schema"),
    ],
)
def test_a_registry_that_cannot_help_says_why(answers: list[Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(DecodingError, match=why):
        Answers(tmp_path, *answers).schema(9)


# -- tables --------------------------------------------------------------------------------------------------------


def test_a_type_is_wider_only_if_it_holds_every_value() -> None:
    int_, long, float_, double = t.IntegerType(), t.LongType(), t.FloatType(), t.DoubleType()
    assert is_wider(int_, long) and is_wider(float_, double) and is_wider(int_, double)
    assert not is_wider(long, double) and not is_wider(long, int_) and not is_wider(int_, int_)
    assert not is_wider(int_, float_) and not is_wider(int_, t.StringType())
    assert is_wider(t.DecimalType(9, 2), t.DecimalType(11, 3))
    assert not is_wider(t.DecimalType(9, 2), t.DecimalType(9, 3))


def test_a_plan_names_every_column_that_cannot_be() -> None:
    def planned(table: str, frame: str, policy: Any, widens: bool = False) -> Any:
        return plan(ddl(table), ddl(frame), policy=policy, widens=lambda of, to: widens, table="t")

    assert planned("a int", "a int, b int", "add").added == ("b",)
    assert planned("a int", "a int, b int", "ignore").schema == ddl("a int")
    assert planned("a int", "a bigint", "add", widens=True).widened == ("a",)
    assert planned("a bigint", "a int", "fail").schema == ddl("a bigint")
    with pytest.raises(
        SchemaChangeError, match=r"column a is int .* cannot widen it; .*; column b is string"
    ):
        planned("a int, b string", "a bigint, b int", "add")
    with pytest.raises(SchemaChangeError, match='widened with schema_changes = "add" only'):
        planned("a int", "a bigint", "ignore", widens=True)
    for odd in ("a=b", "a b", "x;y"):
        with pytest.raises(SchemaChangeError, match="cannot be the name of a column"):
            planned("a int", f"`{odd}` int", "add")
    with pytest.raises(SchemaChangeError, match="cannot be partitioned by d, which is double"):
        check_partition_column(ddl("d double"), "d", table="t")
    with pytest.raises(SchemaChangeError, match="no such column; there are d"):
        check_partition_column(ddl("d double"), "e", table="t")


def test_partition_values_are_read_from_paths() -> None:
    path = "batch-1/city=K%C3%B6ln/__by_day=__HIVE_DEFAULT_PARTITION__/x=a%2Fb/part-0.parquet"
    assert partition_values(path) == {"city": "Köln", "day": None, "x": "a/b"}


def test_statistics_never_exclude_a_row(tmp_path: Path) -> None:
    at = dt.datetime(2026, 1, 1, 0, 0, 0, 1_500, tzinfo=dt.UTC)
    table = pa.table(
        {
            "n": [3, None, -7, 5],
            "s": ["b", "a", None, "x" * 100],
            "f": [1.0, float("inf"), 2.0, 3.0],
            "at": pa.array([at, at, None, at], pa.timestamp("us", "UTC")),
            "none": pa.array([None] * 4, pa.int32()),
            "day": pa.array([dt.date(2026, 1, 1)] * 4),
            "list": [[1]] * 4,
        }
    )
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=2)
    stats = column_stats(pq.read_metadata(tmp_path / "f.parquet"))
    assert stats["n"] == ColumnStats(1, -7, 5)
    assert stats["s"] == ColumnStats(1), "a long text: no bounds rather than a cut one"
    assert stats["f"] == ColumnStats(0)
    assert stats["none"] == ColumnStats(4)
    assert not any(name.startswith("list") for name in stats)
    said = json.loads(delta_stats(DataFile("p", 1, 4, {}, stats)))
    assert said["numRecords"] == 4 and said["nullCount"]["none"] == 4
    assert (said["minValues"]["at"], said["maxValues"]["at"]) == (
        "2026-01-01T00:00:00.001Z",
        "2026-01-01T00:00:00.002Z",
    )
    assert said["minValues"]["day"] == "2026-01-01" and "s" not in said["minValues"]


# -- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"format": "avro"}, "schema or schema_file is missing"),
        ({"format": "avro", "framing": "registry"}, "registry is missing"),
        ({"format": "raw", "schema": "a int"}, "schema: raw values have none"),
        ({"format": "raw", "framing": "registry"}, "framing: raw values are taken as they are"),
        ({"registry": "http://x"}, "registry: is for format"),
        ({"schema": "a int", "schema_file": "f"}, "schema_file: there is a schema, too"),
        ({"schema": "a itn"}, "schema: there is no type itn"),
        ({"format": "avro", "schema": "{}"}, "schema: {} is no Avro schema"),
        (
            {"format": "avro", "framing": "registry", "registry": "r", "schema": "a int"},
            "schema: of Avro is Avro's JSON here",
        ),
        ({"format": "debezium"}, "format: must be one of json, avro, raw"),
        ({"metadata": ["offest"]}, "metadata: there is no 'offest'"),
        ({"table": "s3://b/t"}, "table: must be a directory"),
        ({"on_undecodable": "skip", "dead_letter_topic": "d"}, "dead_letter_topic: nothing is sent there"),
        ({"compact_every_batches": -1}, "compact_every_batches: must not be negative"),
        ({"table_format": "hudi"}, "table_format: must be one of delta, parquet, iceberg"),
        ({"pattern": "x"}, "topics: say what to read by either"),
    ],
)
def test_options_that_cannot_work_are_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionsError, match=why):
        read_options(Options, {"topics": ["orders"], "table": "t", **more})


def test_options_say_what_a_flow_writes() -> None:
    options = read_options(Options, {"topics": "orders", "table": "t", "dead_letter_topic": "d"})
    assert (tuple(options.topics_written()), tuple(options.places_written())) == (("d",), ("t",))
