"""What happens when records have other columns than the table: a plan, or an error that names the column.

New columns are added, refused or left out, by policy; a narrower number is cast to the table's type; a wider one widens the table where its format can and
the policy is to add. Anything else is refused: no value is ever changed to fit. Columns that records lack are null. Types are Spark's; no session is needed but for `fit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as t

from tidelog.pipeline.tables.table import SchemaChangeError, SchemaChanges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_WHOLE: Final[tuple[type[t.DataType], ...]] = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_PARTITIONABLE: Final = (*_WHOLE, t.StringType, t.DateType, t.BooleanType)
_EXACT_IN_DOUBLE: Final = (t.ByteType, t.ShortType, t.IntegerType, t.FloatType)

Widens = Callable[[t.DataType, t.DataType], bool]


@dataclass(frozen=True, slots=True)
class Plan:
    schema: t.StructType
    """Of the table, as it is to be."""
    is_new: bool = False
    added: tuple[str, ...] = ()
    """Columns that the table gets, dotted where they are in a struct."""
    widened: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def changes_table(self) -> bool:
        return bool(self.added or self.widened)


def plan(
    table_schema: t.StructType | None,
    frame_schema: t.StructType,
    *,
    policy: SchemaChanges,
    widens: Widens,
    table: str,
) -> Plan:
    _check_names(frame_schema, table)
    wanted = nullable(frame_schema)
    if table_schema is None:
        return Plan(wanted, is_new=True)
    merge = _Merge(policy, widens)
    merged = merge.structs(nullable(table_schema), wanted, "")
    if merge.refused:
        raise SchemaChangeError(f"table {table}: " + "; ".join(merge.refused))
    return Plan(merged, False, tuple(merge.added), tuple(merge.widened), tuple(merge.ignored))


class _Merge:
    def __init__(self, policy: SchemaChanges, widens: Widens) -> None:
        self._policy = policy
        self._widens = widens
        self.added: list[str] = []
        self.widened: list[str] = []
        self.ignored: list[str] = []
        self.refused: list[str] = []

    def structs(self, table: t.StructType, frame: t.StructType, prefix: str) -> t.StructType:
        given = {field.name: field for field in frame.fields}
        by_lower = {name.lower(): name for name in table.fieldNames()}
        fields: list[t.StructField] = []
        for field in table.fields:
            other = given.pop(field.name, None)
            kind = field.dataType
            if other is not None:
                kind = self.types(kind, other.dataType, prefix + field.name)
            fields.append(t.StructField(field.name, kind, True, field.metadata))
        for name, field in given.items():
            path = prefix + name
            if name.lower() in by_lower:
                self.refused.append(
                    f"column {path} of the records and {prefix}{by_lower[name.lower()]} of the table differ only in case"
                )
            elif self._policy == "add":
                self.added.append(path)
                fields.append(field)
            elif self._policy == "ignore":
                self.ignored.append(path)
            else:
                self.refused.append(
                    f'records have a new column {path} ({field.dataType.simpleString()}): add it with schema_changes = "add", leave it out with "ignore", or take it out of the records'
                )
        return t.StructType(fields)

    def types(self, table: t.DataType, frame: t.DataType, path: str) -> t.DataType:
        if isinstance(table, t.StructType) and isinstance(frame, t.StructType):
            return self.structs(table, frame, f"{path}.")
        if isinstance(table, t.ArrayType) and isinstance(frame, t.ArrayType):
            return t.ArrayType(self.types(table.elementType, frame.elementType, f"{path}.element"))
        if isinstance(table, t.MapType) and isinstance(frame, t.MapType):
            value = self.types(table.valueType, frame.valueType, f"{path}.value")
            if table.keyType != frame.keyType:
                self._refuse_type(path, table, frame)
            return t.MapType(table.keyType, value)
        if table == frame or is_wider(frame, table):
            return table
        if is_wider(table, frame) and self._policy == "add" and self._widens(table, frame):
            self.widened.append(path)
            return frame
        self._refuse_type(path, table, frame)
        return table

    def _refuse_type(self, path: str, table: t.DataType, frame: t.DataType) -> None:
        says = (
            f"column {path} is {table.simpleString()} in the table and {frame.simpleString()} in the records"
        )
        if is_wider(table, frame):
            why = (
                'it is widened with schema_changes = "add" only'
                if self._policy != "add"
                else "this format of table cannot widen it"
            )
            self.refused.append(f"{says}, and {why}; write to a new table, or keep the type")
        else:
            self.refused.append(f"{says}; write to a new table, or keep the type")


def is_wider(of: t.DataType, to: t.DataType) -> bool:
    """Whether every value of the one is a value of the other, which is another type."""
    if of == to:
        return False
    if type(of) in _WHOLE and type(to) in _WHOLE:
        return _WHOLE.index(type(of)) < _WHOLE.index(type(to))
    if isinstance(to, t.DoubleType):
        return isinstance(of, _EXACT_IN_DOUBLE)
    if isinstance(of, t.DecimalType) and isinstance(to, t.DecimalType):
        return to.scale >= of.scale and to.precision - to.scale >= of.precision - of.scale
    return False


def nullable(schema: t.StructType) -> t.StructType:
    """All of it, whatever it said: a later record may lack what this one has."""
    made = _nullable(schema)
    assert isinstance(made, t.StructType)
    return made


def _nullable(kind: t.DataType) -> t.DataType:
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(field.name, _nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(kind.keyType, _nullable(kind.valueType))
    return kind


def check_partition_column(schema: t.StructType, name: str, *, table: str) -> None:
    if name not in schema.fieldNames():
        raise SchemaChangeError(
            f"table {table} is to be partitioned by {name}, and there is no such column; there are {', '.join(schema.fieldNames())}"
        )
    kind = schema[name].dataType
    if not isinstance(kind, _PARTITIONABLE):
        raise SchemaChangeError(
            f"table {table} cannot be partitioned by {name}, which is {kind.simpleString()}: only by texts, whole numbers, dates and booleans"
        )


def _check_names(schema: t.StructType, table: str) -> None:
    seen: dict[str, str] = {}
    for name in schema.fieldNames():
        if any(character in " ,;{}()\n\t=" for character in name) or not name:
            raise SchemaChangeError(
                f'table {table}: {name!r} cannot be the name of a column (no blanks, and none of ,;{{}}()=); with schema_changes = "ignore" it is left out'
            )
        if seen.setdefault(name.lower(), name) != name:
            raise SchemaChangeError(
                f"table {table}: columns {seen[name.lower()]} and {name} differ only in case"
            )
    if len(set(schema.fieldNames())) != len(schema.fieldNames()):
        twice = sorted(name for name in set(schema.fieldNames()) if schema.fieldNames().count(name) > 1)
        raise SchemaChangeError(f"table {table}: column {', '.join(twice)} is there twice")


def fit(frame: DataFrame, schema: t.StructType) -> DataFrame:
    """The frame with exactly these columns; what it lacks is null."""
    from pyspark.sql import functions as f

    have = {field.name: field.dataType for field in frame.schema.fields}
    return frame.select(
        *(
            _fitted(f.col(f"`{field.name}`"), have[field.name], field.dataType).alias(field.name)
            if field.name in have
            else f.lit(None).cast(field.dataType).alias(field.name)
            for field in schema.fields
        )
    )


def _fitted(column: Column, of: t.DataType, to: t.DataType) -> Column:
    from pyspark.sql import functions as f

    if _nullable(of) == _nullable(to):
        return column
    if isinstance(of, t.StructType) and isinstance(to, t.StructType):
        have = {field.name: field.dataType for field in of.fields}
        parts = [
            (
                _fitted(column.getField(field.name), have[field.name], field.dataType)
                if field.name in have
                else f.lit(None).cast(field.dataType)
            ).alias(field.name)
            for field in to.fields
        ]
        return f.when(column.isNotNull(), f.struct(*parts))
    if isinstance(of, t.ArrayType) and isinstance(to, t.ArrayType):
        inner, outer = of.elementType, to.elementType
        return f.transform(column, lambda each: _fitted(each, inner, outer))
    if isinstance(of, t.MapType) and isinstance(to, t.MapType):
        inside, outside = of.valueType, to.valueType

        def value(_: Any, each: Column) -> Column:
            return _fitted(each, inside, outside)

        return f.transform_values(column, value)
    return column.cast(to)
