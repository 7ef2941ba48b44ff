"""The columns of segments as a table, as Spark has them: those of the source, and behind them where each record stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tidelog.spark.options import OptionError
from tidelog.spark.schema import TYPES, check_schema, spark_schema
from tidelog.spark.segments.options import SegmentOptions

SEGMENT_TYPES: Final[dict[str, DataType]] = {
    "segment": StringType(),
    "position": LongType(),
    "batch_base_offset": LongType(),
    "batch_last_offset": LongType(),
    "partition_leader_epoch": IntegerType(),
    "producer_id": LongType(),
    "producer_epoch": IntegerType(),
    "is_transactional": BooleanType(),
    "is_control": BooleanType(),
    "compression": StringType(),
}


def segments_schema(given: Mapping[str, str]) -> StructType:
    options = SegmentOptions.parse(given)
    source = spark_schema(options.source.columns)
    if not options.has_segment_columns:
        return source
    return StructType(source.fields + [StructField(name, kind) for name, kind in SEGMENT_TYPES.items()])


def columns_of_schema(schema: StructType) -> tuple[str, ...]:
    """The columns that a schema asks for, by our names for them."""
    names: list[str] = []
    for each in schema.fields:
        kind = SEGMENT_TYPES.get(each.name.lower())
        if kind is None:
            if each.name.lower() not in {name.lower() for name in TYPES}:
                raise OptionError(
                    f"the schema has a column {each.name!r}; there are {', '.join([*TYPES, *SEGMENT_TYPES])}"
                )
            names += check_schema(StructType([each]))
        elif each.dataType != kind:
            raise OptionError(
                f"the schema has column {each.name!r} as {each.dataType.simpleString()}; it is {kind.simpleString()}: cast it after loading"
            )
        else:
            names.append(each.name.lower())
    return tuple(names)
