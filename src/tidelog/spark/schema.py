"""The columns of `format("tidelog")` as Spark has them: those of Spark's Kafka source, in the same order and of the same types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.spark.options import OptionError

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())]), True
)
TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}
_MAY_BE_NULL: Final = frozenset({"key", "value", "headers"})


def spark_schema(columns: Iterable[str]) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in columns])


def check_schema(schema: StructType) -> tuple[str, ...]:
    """The columns that a schema asks for: some of ours in any order, each of its own type."""
    by_name = {name.lower(): name for name in TYPES}
    for each in schema.fields:
        name = by_name.get(each.name.lower())
        if name is None:
            raise OptionError(f"the schema has a column {each.name!r}; there are {', '.join(TYPES)}")
        if each.dataType != TYPES[name] and each.dataType.simpleString() != TYPES[name].simpleString():
            raise OptionError(
                f"the schema has column {each.name!r} as {each.dataType.simpleString()}; it is {TYPES[name].simpleString()}: cast it after loading"
            )
        if not each.nullable and name in _MAY_BE_NULL:
            raise OptionError(
                f"the schema says that column {each.name!r} is never null, and records may lack it"
            )
    return tuple(by_name[each.name.lower()] for each in schema.fields)
