"""Records of a compacted or change topic as changes of rows: for each key its latest row, or that it is gone. With Spark's own functions; only Avro passes through Python.

What cannot be understood is kept apart with the reason and the record's bytes, never dropped. The last step, between partitions, is `latest`'s, on the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tidelog.pipeline.ddl import parse_columns
from tidelog.pipeline.decoding import DATA, PROBLEM, Decoder, Place
from tidelog.pipeline.decoding_options import ValueFormat
from tidelog.pipeline.latest import DELETED, OFFSET, PARTITION, TIMESTAMP, TOPIC
from tidelog.pipeline.undecodable import REASON, RECORD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from tidelog.pipeline.decoding_avro import AvroDecoder

KeyFormat = Literal["json", "avro", "text", "raw", "value"]
_PERMISSIVE: Final = {"mode": "PERMISSIVE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How records are read, and what the rows look like."""

    format: ValueFormat
    key_format: KeyFormat
    key: tuple[str, ...]
    columns: StructType
    """Those of the value, the key's among them."""
    positions: bool = False
    """Rows say which record they are from."""
    nested_as_json: bool = False

    def row_type(self) -> StructType:
        """The columns of the table."""
        from pyspark.sql.types import StringType, StructField, StructType

        fields = [
            StructField(each.name, StringType())
            if self.nested_as_json and _is_nested(each.dataType)
            else StructField(each.name, each.dataType)
            for each in self.columns
        ]
        extra = parse_columns(POSITION_DDL).fields if self.positions else []
        return StructType(fields + extra)

    def key_type(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType([each for each in self.columns if each.name in self.key])

    def value_type(self) -> StructType:
        """What values are decoded into: the row, or the envelope around it, by itself or with its schema around that."""
        from pyspark.sql.types import StringType, StructField, StructType

        if not self.format.startswith("debezium"):
            return self.columns
        row = self.columns
        envelope = [StructField("op", StringType()), StructField("before", row), StructField("after", row)]
        if self.format == "debezium-avro":
            return StructType(envelope)
        return StructType([*envelope, StructField("payload", StructType(envelope))])


class Decoders(NamedTuple):
    value: Decoder | None
    """None: values are taken as they are."""
    key: AvroDecoder | None
    """None: Spark's own functions read keys."""


AVRO_KEY: Final = Place("key", "__key", "__key_problem")
POSITION_DDL: Final = "_topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP"


def changes(records: DataFrame, shape: Shape, decoders: Decoders) -> DataFrame:
    """For each key and partition the latest change; and every record that was not understood."""
    from pyspark.sql import functions as F

    rows = _decoded(records, shape, decoders)
    names = [each.name for each in shape.row_type()]
    others = [name for name in names if name not in shape.key]
    apart = F.when(F.col(REASON).isNotNull(), F.col(OFFSET)).alias("__apart")
    groups = [_col(name) for name in shape.key]
    carried = [_col(name) for name in others] + [
        F.col(each) for each in (DELETED, OFFSET, TIMESTAMP, REASON, RECORD)
    ]
    latest = rows.groupBy(*groups, TOPIC, PARTITION, apart).agg(
        F.max_by(F.struct(*carried), F.col(OFFSET)).alias("__latest")
    )
    picked = [
        _col(name) if name in shape.key else F.col("__latest")[name].alias(name)  # in the table's order
        for name in names
    ]
    return latest.select(
        *picked, TOPIC, PARTITION, *(F.col("__latest")[each].alias(each) for each in (DELETED, OFFSET, TIMESTAMP, REASON, RECORD))
    )  # fmt: skip


def _decoded(records: DataFrame, shape: Shape, decoders: Decoders) -> DataFrame:
    from pyspark.sql import functions as F

    parsed = records if decoders.value is None else decoders.value.decode(records)
    match shape.format:
        case "raw":
            read, body, deleted, reason = parsed, None, F.col("value").isNull(), F.lit(None).cast("string")
        case "json" | "avro":
            read, body, deleted, reason = parsed, F.col(DATA), F.col("value").isNull(), F.col(PROBLEM)
        case "debezium" | "debezium-avro":
            read, body, deleted, reason = _debezium(parsed, shape.value_type().names)
    read, keys, key_reason = _keys(read, shape, body, decoders.key)
    reason = F.coalesce(reason, key_reason)
    columns = []
    for each in shape.columns:
        if each.name in shape.key:
            value = F.when(reason.isNull(), keys[each.name])
        elif body is None:
            value = F.col(each.name)
        else:
            value = body[each.name]
        if shape.nested_as_json and _is_nested(each.dataType):
            value = F.to_json(value)
        columns.append(value.alias(each.name))
    if shape.positions:
        columns += [F.col(name).alias(f"_{name}") for name in ("topic", "partition", "offset", "timestamp")]
    bytes_of = F.struct(*(F.col(name) for name in ("key", "value", "headers") if name in records.columns))
    return read.select(
        *columns,
        F.coalesce(deleted, F.lit(False)).alias(DELETED),
        F.col("topic").alias(TOPIC),
        F.col("partition").alias(PARTITION),
        F.col("offset").alias(OFFSET),
        F.col("timestamp").alias(TIMESTAMP),
        reason.alias(REASON),
        F.when(reason.isNotNull(), bytes_of).alias(RECORD),
    )


Parts = tuple["DataFrame", "Column", "Column", "Column"]
"""Records with what was parsed, the row in it, whether it is a deletion, and why it was not understood."""


def _debezium(parsed: DataFrame, names: Sequence[str]) -> Parts:
    from pyspark.sql import functions as F

    envelope = F.struct(*(F.col(f"{DATA}.{name}") for name in names if name != "payload"))
    if "payload" in names:
        envelope = F.coalesce(F.col(f"{DATA}.payload"), envelope)
    read = parsed.withColumn("__envelope", envelope)
    op = F.col("__envelope.op")
    is_deletion = F.col("value").isNull() | (op == "d")
    body = F.when(op == "d", F.col("__envelope.before")).otherwise(F.col("__envelope.after"))
    reason = (
        F.when(F.col("value").isNull(), None)
        .when(F.col(PROBLEM).isNotNull(), F.col(PROBLEM))
        .when(op.isNull(), F.lit("the value is no Debezium envelope: it has no op"))
        .when(~op.isin("c", "u", "r", "d"), F.concat(F.lit("there is no way to apply op "), op))
        .when(
            (op != "d") & F.col("__envelope.after").isNull(),
            F.concat(F.lit("op "), op, F.lit(" without after")),
        )
    )
    return read.withColumn("__body", body), F.col("__body"), is_deletion, reason


def _keys(
    records: DataFrame, shape: Shape, body: Column | None, decoder: AvroDecoder | None
) -> tuple[DataFrame, dict[str, Column], Column]:
    """The key's columns, and why there are none."""
    from pyspark.sql import functions as F

    types = {each.name: each.dataType for each in shape.key_type()}
    key = F.col("key")
    text = key.cast("string")
    read = records
    problem: Column = F.lit(None).cast("string")
    match shape.key_format:
        case "value":
            assert body is not None
            found = {name: body[name] for name in shape.key}
        case "raw":
            found = {shape.key[0]: key}
        case "text":
            only = shape.key[0]
            found = {only: F.when(F.is_valid_utf8(text), text.try_cast(types[only]))}
        case "json":
            read, found = _json_keys(records, types, text)
        case "avro":
            assert decoder is not None
            read = decoder.decode_at(records, AVRO_KEY)
            found = {name: F.col(AVRO_KEY.data)[name] for name in types}
            problem = F.concat(F.lit("the key: "), F.col(AVRO_KEY.problem))
    for name, value in found.items():
        said = f"there is no {name} in the {'value' if shape.key_format == 'value' else 'key'}"
        problem = F.coalesce(problem, F.when(value.isNull(), F.lit(said)))
    return read, found, problem


def _json_keys(
    records: DataFrame, types: dict[str, DataType], text: Column
) -> tuple[DataFrame, dict[str, Column]]:
    """`{"id": 7}`, the same as payload of a schema, or, of a single column, 7."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    fields = StructType([StructField(name, kind) for name, kind in types.items()])
    whole = fields if "payload" in types else StructType([*fields.fields, StructField("payload", fields)])
    read = records.withColumn("__key", F.from_json(text, whole, _PERMISSIVE))
    found = {
        name: F.col("__key")[name]
        if "payload" in types
        else F.coalesce(F.col("__key.payload")[name], F.col("__key")[name])
        for name in types
    }
    if len(types) == 1:
        only, kind = next(iter(types.items()))
        alone = StructType([StructField("v", kind)])
        read = read.withColumn(
            "__alone", F.from_json(F.concat(F.lit('{"v":'), text, F.lit("}")), alone, _PERMISSIVE)
        )
        found = {only: F.when(text.startswith("{"), found[only]).otherwise(F.col("__alone.v"))}
    return read, found


def _is_nested(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    return isinstance(kind, (ArrayType, MapType, StructType, VariantType))


def _col(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col("`" + name.replace("`", "``") + "`")
