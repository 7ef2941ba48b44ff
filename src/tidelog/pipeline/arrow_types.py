"""Spark's types as Arrow's, as `DataFrame.toArrow` gives them. Times are UTC's whatever the session's zone is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


def arrow_schema(columns: StructType) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(each.name, arrow_type(each.dataType)) for each in columns])


def arrow_type(kind: DataType) -> pa.DataType:
    import pyarrow as pa
    from pyspark.sql import types as t

    match kind:
        case t.StructType():
            return pa.struct([pa.field(each.name, arrow_type(each.dataType)) for each in kind])
        case t.ArrayType():
            return pa.list_(pa.field("element", arrow_type(kind.elementType)))
        case t.MapType():
            return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
        case t.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case t.TimestampType():
            return pa.timestamp("us", "UTC")
        case t.TimestampNTZType():
            return pa.timestamp("us")
    plain: dict[type[DataType], pa.DataType] = {
        t.BooleanType: pa.bool_(),
        t.ByteType: pa.int8(),
        t.ShortType: pa.int16(),
        t.IntegerType: pa.int32(),
        t.LongType: pa.int64(),
        t.FloatType: pa.float32(),
        t.DoubleType: pa.float64(),
        t.StringType: pa.string(),
        t.BinaryType: pa.binary(),
        t.DateType: pa.date32(),
    }
    return plain[type(kind)]


def with_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of the schema in its types; others as they are, behind them."""
    others = [name for name in rows.schema.names if name not in schema.names]
    made = rows.select(schema.names).cast(schema)
    for name in others:
        made = made.append_column(rows.schema.field(name), rows[name])
    return made
