"""JSON values, by Spark's own parser, with a schema that is given or found out from the first records and kept.

Spark's parser says that a record is wrong and not why, and takes the first of two values for the whole: each value is wrapped in an object, which makes anything behind it an
error. Why a record is wrong is found out in Python, for the few that are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as t

from tidelog.pipeline.ddl import DdlError, parse_columns
from tidelog.pipeline.decoding import (
    DATA,
    FRAME_BYTES,
    NO_FRAME,
    PROBLEM,
    DecodingError,
    SchemaDecoder,
    has_frame,
)
from tidelog.pipeline.decoding_schemas import from_variant, grow, judged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SAMPLE_RECORDS: Final = 10_000
CORRUPT: Final = "tidelog_corrupt"
_TEXT: Final = "tidelog_text"
_PARSED: Final = "tidelog_parsed"
_SEEN: Final = "tidelog_seen"
_RANGES: Final = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


class JsonDecoder(SchemaDecoder):
    def _read(self, given: str) -> tuple[str, t.StructType]:
        try:
            return given, parse_columns(given)
        except DdlError as error:
            raise DecodingError(f"flow {self.settings.flow}: schema: {error}") from None

    def prepare(self, frame: DataFrame) -> None:
        from pyspark.sql import functions as f

        if self.schema is not None:
            return
        variants = frame.limit(SAMPLE_RECORDS).select(f.try_parse_json(self._text()).alias("v"))
        objects = variants.where(f.schema_of_variant("v").startswith("OBJECT"))
        row = objects.agg(f.schema_of_variant_agg("v").alias(_SEEN)).first()
        found = from_variant(row[_SEEN]) if row is not None and row[_SEEN] else None
        if found is not None:
            self.schema = judged(grow(t.StructType([]), found, widen=False), "add", self.settings.flow)
            self._kept.save(self.schema)
        elif self.settings.schema_changes != "add" and not frame.isEmpty():
            raise DecodingError(
                f"flow {self.settings.flow}: there is no JSON object among the first records, so that their schema cannot be found out: give a schema"
            )

    def _text(self) -> Column:
        from pyspark.sql import functions as f

        value = f.col("value")
        if self._is_framed:
            value = f.when(has_frame(), f.substring("value", FRAME_BYTES + 1, 2**31 - 1))
        return value.cast("string")

    def decode(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        fields = [t.StructField("r", self.schema or t.StructType([])), t.StructField(CORRUPT, t.StringType())]
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        wrapped = f.concat(f.lit('{"r":'), f.col(_TEXT), f.lit("}"))
        parsed = frame.withColumn(_TEXT, self._text()).withColumn(
            _PARSED, f.from_json(wrapped, t.StructType(fields), options)
        )
        is_wrong = (
            f.col(f"{_PARSED}.{CORRUPT}").isNotNull()
            | f.col(f"{_PARSED}.r").isNull()
            | ~f.is_valid_utf8(_TEXT)
        )
        problem = f.when(f.col("value").isNull(), None)
        if self._is_framed:
            problem = problem.when(~has_frame(), NO_FRAME)
        decoded = parsed.withColumn(PROBLEM, problem.when(is_wrong, "").cast("string")).withColumn(
            DATA, f.when(f.col(PROBLEM).isNull(), f.col(f"{_PARSED}.r"))
        )
        if self._watches:
            seen = f.when(f.col(DATA).isNotNull(), f.try_parse_json(_TEXT))
            decoded = decoded.withColumn(_SEEN, seen)
        return decoded.drop(_TEXT, _PARSED)

    @property
    def _watches(self) -> bool:
        return self.settings.columns is None and self.settings.schema_changes != "ignore"

    def observed(self) -> dict[str, Column]:
        from pyspark.sql import functions as f

        return {_SEEN: f.schema_of_variant_agg(_SEEN)} if self._watches else {}

    def learn(self, frame: DataFrame, seen: Mapping[str, Any]) -> bool:
        found = from_variant(seen.get(_SEEN) or "")
        if found is None:
            return False
        growth = grow(self.schema or t.StructType([]), found, widen=False)
        if not growth.is_any:
            return False
        self.schema = judged(growth, self.settings.schema_changes, self.settings.flow)
        self._kept.save(self.schema)
        return True

    def explain(self, value: bytes | None, said: str) -> str:
        if said or value is None:
            return said
        at = FRAME_BYTES if self._is_framed else 0
        return why_not_json(value[at:], self.schema or t.StructType([]))


def why_not_json(value: bytes, schema: t.StructType) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    if not text.strip():
        return "an empty text is no JSON object"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if not isinstance(found, dict):
        return f"a JSON {_json_name(found)}, not an object"
    return _mismatch(found, schema, "") or "the value does not fit the schema"


def _mismatch(value: Any, kind: t.DataType, path: str) -> str | None:
    if value is None:
        return None
    if isinstance(kind, t.StructType):
        if not isinstance(value, dict):
            return _wrong(value, "an object", path)
        fields = ((each, f"{path}.{each.name}" if path else each.name) for each in kind.fields)
        return next(
            filter(None, (_mismatch(value.get(each.name), each.dataType, at) for each, at in fields)), None
        )
    if isinstance(kind, t.ArrayType):
        if not isinstance(value, list):
            return _wrong(value, "an array", path)
        inner = kind.elementType
        return next(
            filter(None, (_mismatch(each, inner, f"{path}[{n}]") for n, each in enumerate(value))), None
        )
    if isinstance(kind, t.MapType):
        if not isinstance(value, dict):
            return _wrong(value, "an object", path)
        inner = kind.valueType
        return next(filter(None, (_mismatch(each, inner, f"{path}.{n}") for n, each in value.items())), None)
    return _simple_mismatch(value, kind, path)


def _simple_mismatch(value: Any, kind: t.DataType, path: str) -> str | None:
    name = kind.simpleString()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(kind, t.StringType):
        return None
    if isinstance(kind, t.BooleanType):
        return None if isinstance(value, bool) else _wrong(value, f"a {name}", path)
    if isinstance(kind, t.IntegralType):
        if not is_number or isinstance(value, float):
            return _wrong(value, f"a {name}", path)
        bits = _RANGES.get(name, 63)
        return None if -(2**bits) <= value < 2**bits else f"{path}: {value} does not fit into {name}"
    if isinstance(kind, (t.DoubleType, t.FloatType)):
        if is_number and (not isinstance(value, float) or math.isfinite(value)):
            return None
        return None if value in ("NaN", "Infinity", "-Infinity") else _wrong(value, f"a {name}", path)
    if isinstance(kind, t.DecimalType):
        return None if is_number or isinstance(value, str) else _wrong(value, f"a {name}", path)
    return None if isinstance(value, (str, int)) else _wrong(value, f"a {name}", path)


def _wrong(value: Any, wanted: str, path: str) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return f"{path}: {shown} is {_json_name(value)}, not {wanted}"


def _json_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "number", float: "number", list: "array", dict: "object"}
    return names[type(value)]
