"""Avro's schemas as Spark's types. Logical types that a column can have are kept (decimal, date, timestamps); of others the plain value is. Pure."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import types as t

from tidelog.pipeline.decoding import DecodingError

ROOT: Final = "value"
"""The column of values that are no records."""
_SIMPLE: Final[dict[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
    "fixed": t.BinaryType(),
    "enum": t.StringType(),
}
_LOGICAL: Final[dict[tuple[str, str], t.DataType]] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
}
_NUMBERS: Final = ("int", "long", "float", "double")
_DECIMAL_DIGITS_MAX: Final = 38


def plain(schema: Any) -> Any:
    """The schema without logical types that no column has, so that their plain values are decoded."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if "logicalType" in made and not _is_column_type(made):
        del made["logicalType"]
    for key in ("items", "values"):
        if key in made:
            made[key] = plain(made[key])
    if isinstance(made.get("type"), (dict, list)):
        made["type"] = plain(made["type"])
    if "fields" in made:
        made["fields"] = [{**each, "type": plain(each["type"])} for each in made["fields"]]
    return made


def _is_column_type(schema: dict[str, Any]) -> bool:
    kind, logical = schema.get("type"), schema.get("logicalType")
    if logical == "decimal":
        return kind in ("bytes", "fixed") and schema.get("precision", 99) <= _DECIMAL_DIGITS_MAX
    return (kind, logical) in _LOGICAL


def is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "record"


def spark_schema(schema: Any) -> t.StructType:
    """Of the columns. DecodingError names a field that cannot be one."""
    kind = _Reading().kind(plain(schema), "")
    return kind if isinstance(kind, t.StructType) else t.StructType([t.StructField(ROOT, kind)])


_TIMES: Final = (t.TimestampType, t.TimestampNTZType, t.DateType)


def misread(schema: Any, columns: t.StructType) -> str | None:
    """Where a number would be taken for a time, which nobody would notice. None: nowhere. DecodingError as from `spark_schema`."""
    kind = spark_schema(schema)
    if not is_record(schema) and len(columns) == 1:
        kind = t.StructType([t.StructField(columns.names[0], kind[ROOT].dataType)])
    return _misread(kind, columns, "")


def _misread(of: t.DataType, to: t.DataType, path: str) -> str | None:
    if isinstance(of, t.StructType) and isinstance(to, t.StructType):
        kinds = {each.name: each.dataType for each in of.fields}
        found = (
            _misread(kinds[each.name], each.dataType, f"{path}.{each.name}".lstrip("."))
            for each in to.fields
            if each.name in kinds
        )
        return next(filter(None, found), None)
    if isinstance(of, t.ArrayType) and isinstance(to, t.ArrayType):
        return _misread(of.elementType, to.elementType, f"{path}.element")
    if isinstance(of, t.MapType) and isinstance(to, t.MapType):
        return _misread(of.valueType, to.valueType, f"{path}.value")
    if of != to and (isinstance(of, _TIMES) or isinstance(to, _TIMES)):
        return f"{path} is {of.simpleString()}, not {to.simpleString()}"
    return None


class _Reading:
    """Names count within the namespace of the record around them, unless they say their own."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._namespace = ""
        self._inside: list[str] = []

    def kind(self, schema: Any, path: str) -> t.DataType:
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            return self._by_name(schema, path)
        name = schema.get("type")
        if isinstance(name, (dict, list)):
            return self.kind(name, path)
        if name in ("record", "enum", "fixed"):
            self._named[self._full_name(schema)] = schema
        if "logicalType" in schema:
            if schema["logicalType"] == "decimal":
                return t.DecimalType(schema["precision"], schema.get("scale", 0))
            return _LOGICAL[(name, schema["logicalType"])]
        if name == "record":
            return self._record(schema, path)
        if name == "array":
            return t.ArrayType(self.kind(schema["items"], f"{path}.element"))
        if name == "map":
            return t.MapType(t.StringType(), self.kind(schema["values"], f"{path}.value"))
        return self._by_name(name, path)

    def _by_name(self, name: str, path: str) -> t.DataType:
        if name in _SIMPLE:
            return _SIMPLE[name]
        found = self._named.get(f"{self._namespace}.{name}" if self._namespace else name) or self._named.get(
            name
        )
        if found is None:
            raise DecodingError(
                f"the Avro schema's field {path or 'at its root'} is of an unknown type {name!r}"
            )
        return self.kind(found, path)

    def _full_name(self, schema: dict[str, Any]) -> str:
        name = str(schema["name"])
        namespace = schema.get("namespace", self._namespace)
        return name if "." in name or not namespace else f"{namespace}.{name}"

    def _record(self, schema: dict[str, Any], path: str) -> t.StructType:
        name = self._full_name(schema)
        if name in self._inside:
            raise DecodingError(
                f"the Avro schema's field {path} contains itself ({schema['name']}), which no column can"
            )
        around, self._namespace = self._namespace, name.rpartition(".")[0]
        self._inside.append(name)
        fields = [
            t.StructField(each["name"], self.kind(each["type"], f"{path}.{each['name']}".lstrip(".")))
            for each in schema["fields"]
        ]
        self._inside.pop()
        self._namespace = around
        return t.StructType(fields)

    def _union(self, members: list[Any], path: str) -> t.DataType:
        others = [each for each in members if each != "null"]
        if len(others) == 1:
            return self.kind(others[0], path)
        if others and all(each in _NUMBERS for each in others):
            has_fraction = any(each in ("float", "double") for each in others)
            return t.DoubleType() if has_fraction else t.LongType()
        raise DecodingError(
            f"the Avro schema's field {path or 'at its root'} is a union of {' and '.join(_named(each) for each in others) or 'nothing'}, which no column can be"
        )


def _named(schema: Any) -> str:
    return str(schema.get("name") or schema.get("type")) if isinstance(schema, dict) else str(schema)
