"""How the schema of a stream's values grows: fields that are new, and numbers that need more room. Pure but for Spark's types, which need no Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import types as t

from tidelog.pipeline.tables.schemas import is_wider
from tidelog.pipeline.tables.table import SchemaChangeError, SchemaChanges

FIELDS_MAX: Final = 2_000
"""Objects whose keys are data would make a column of each key."""


@dataclass(slots=True)
class Growth:
    """What a schema becomes, and what is new in it."""

    schema: t.StructType
    added: list[str] = field(default_factory=list)
    widened: list[str] = field(default_factory=list)

    @property
    def is_any(self) -> bool:
        return bool(self.added or self.widened)


def grow(known: t.StructType, seen: t.StructType, *, widen: bool) -> Growth:
    growth = Growth(known)
    growth.schema = _structs(known, seen, "", growth, widen=widen)
    return growth


def judged(growth: Growth, policy: SchemaChanges, flow: str, where: str = "records") -> t.StructType:
    """The schema to go on with, by policy; SchemaChangeError names what is new."""
    if policy == "fail" and growth.is_any:
        news = [f"a new field {path}" for path in growth.added]
        news += [f"a wider type in field {path}" for path in growth.widened]
        raise SchemaChangeError(
            f'flow {flow}: {where} have {", ".join(news)}: add with schema_changes = "add", leave out with "ignore", or give a schema that has it'
        )
    if _count(growth.schema) > FIELDS_MAX:
        raise SchemaChangeError(
            f"flow {flow}: {where} have more than {FIELDS_MAX} fields, the last new ones {', '.join(growth.added[-3:])}: "
            'are keys of an object data? Give a schema with map<string, …> for it, or use schema_changes = "ignore"'
        )
    return growth.schema


def _count(kind: t.DataType) -> int:
    if isinstance(kind, t.StructType):
        return sum(1 + _count(each.dataType) for each in kind.fields)
    if isinstance(kind, t.ArrayType):
        return _count(kind.elementType)
    return _count(kind.valueType) if isinstance(kind, t.MapType) else 0


def _structs(
    known: t.StructType, seen: t.StructType, prefix: str, growth: Growth, *, widen: bool
) -> t.StructType:
    news = {each.name: each.dataType for each in seen.fields}
    fields = []
    for each in known.fields:
        kind = each.dataType
        if each.name in news:
            kind = _types(kind, news.pop(each.name), prefix + each.name, growth, widen=widen)
        fields.append(t.StructField(each.name, kind))
    for name, kind in news.items():
        growth.added.append(prefix + name)
        fields.append(t.StructField(name, kind))
    return t.StructType(fields)


def _types(known: t.DataType, seen: t.DataType, path: str, growth: Growth, *, widen: bool) -> t.DataType:
    if isinstance(known, t.StructType) and isinstance(seen, t.StructType):
        return _structs(known, seen, f"{path}.", growth, widen=widen)
    if isinstance(known, t.ArrayType) and isinstance(seen, t.ArrayType):
        return t.ArrayType(
            _types(known.elementType, seen.elementType, f"{path}.element", growth, widen=widen)
        )
    if isinstance(known, t.MapType):
        kind = known.valueType
        values = (
            [seen.valueType]
            if isinstance(seen, t.MapType)
            else [each.dataType for each in seen.fields]
            if isinstance(seen, t.StructType)
            else []
        )
        for each in values:
            kind = _types(kind, each, f"{path}.value", growth, widen=widen)
        return t.MapType(known.keyType, kind)
    if widen and is_wider(known, seen):
        growth.widened.append(path)
        return seen
    return known


_TOKEN: Final = re.compile(r"`((?:[^`]|``)*)`|DECIMAL\(\d+,\s*\d+\)|[^\s<>,:`]+|[<>,:]")
_SIMPLE: Final[dict[str, t.DataType]] = {
    "BIGINT": t.LongType(),
    "DOUBLE": t.DoubleType(),
    "FLOAT": t.DoubleType(),
    "BOOLEAN": t.BooleanType(),
    "STRING": t.StringType(),
    "VARIANT": t.StringType(),  # of several types: kept as the text that it is in the record
}


def from_variant(text: str) -> t.StructType | None:
    """Spark's description of JSON values (`OBJECT<id: BIGINT, tags: ARRAY<STRING>>`) as a schema. None if they are no objects.

    Numbers with a fraction are doubles. What was always null, or an empty object or array, has no type yet and is left out.
    """
    tokens = [match[0] for match in _TOKEN.finditer(text)]
    if not tokens or tokens[0] != "OBJECT":
        return None
    kind, rest = _parsed(tokens, 0)
    if rest != len(tokens):
        raise ValueError(f"{text!r} goes on after {' '.join(tokens[:rest])}")
    return kind if isinstance(kind, t.StructType) else t.StructType([])


def _parsed(tokens: list[str], at: int) -> tuple[t.DataType | None, int]:
    word = tokens[at]
    if word == "OBJECT":
        return _object(tokens, at + 2)
    if word == "ARRAY":
        inner, after = _parsed(tokens, at + 2)
        return None if inner is None else t.ArrayType(inner), after + 1
    if word.startswith("DECIMAL("):
        return t.DoubleType(), at + 1
    return _SIMPLE.get(word), at + 1


def _object(tokens: list[str], at: int) -> tuple[t.DataType | None, int]:
    fields = []
    while tokens[at] != ">":
        name = tokens[at]
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        kind, at = _parsed(tokens, at + 2)
        if kind is not None:
            fields.append(t.StructField(name, kind))
        if tokens[at] == ",":
            at += 1
    return (t.StructType(fields) if fields else None), at + 1
