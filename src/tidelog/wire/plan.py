"""What a message looks like in one version: the step between the declared facts and the compilers.

Owns the reading of version ranges and the table of fixed-width types. Produces values only; emits no code.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tidelog.wire.schema import Field, Schema, Versions, default_of

#: Types of fixed width, as `struct` spells them.
FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_WIDTH: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
_VARIABLE: Final = frozenset({"string", "bytes", "records"})


class FieldPlan(NamedTuple):
    """A field that this version has. `kind` is a type name or "struct"; of the elements, if it is an array."""

    owner: str
    name: str
    kind: str
    array: bool
    nullable: bool
    struct: StructPlan | None
    tag: int | None
    """None where this version has the field without a tag."""
    default: Any

    @property
    def is_tagged(self) -> bool:
        return self.tag is not None

    @property
    def label(self) -> str:
        return f"{self.owner}.{self.name}"

    @property
    def element_size(self) -> int:
        """The least bytes that one element of this array takes: bounds a claimed length before anything is allocated."""
        return max(1, _least(self.kind, self.struct))


class StructPlan(NamedTuple):
    cls: type[Any]
    flexible: bool
    fields: tuple[FieldPlan, ...]
    tagged: tuple[FieldPlan, ...]
    absent: tuple[tuple[str, Any], ...]

    @property
    def least_size(self) -> int:
        size = 1 if self.flexible else 0
        for field in self.fields:
            if field.array or field.kind in _VARIABLE or (field.kind == "struct" and field.nullable):
                size += 1
            else:
                size += _least(field.kind, field.struct)
        return size


def _least(kind: str, struct: StructPlan | None) -> int:
    return struct.least_size if struct is not None else _WIDTH.get(kind, 1)


def plan_message(cls: type[Any], version: int) -> StructPlan:
    """The plan of an outermost class. LookupError when the class has no such version."""
    schema = _schema(cls)
    if schema.versions is None:
        raise TypeError(f"{cls.__name__} only occurs inside other messages; its schema has no versions")
    lowest, highest = schema.versions
    if not lowest <= version <= highest:
        raise LookupError(f"{cls.__name__} has versions {lowest} to {highest}, not {version}")
    return _plan_struct(cls, version, schema.flexible is not None and version >= schema.flexible)


def _plan_struct(cls: type[Any], version: int, flexible: bool) -> StructPlan:
    fields: list[FieldPlan] = []
    tagged: list[FieldPlan] = []
    absent: list[tuple[str, Any]] = []
    for field in _schema(cls).fields:
        default = default_of(cls, field)
        if not _within(field.versions, version):
            absent.append((field.name, default))
            continue
        planned = _plan_field(cls, field, version, flexible, default)
        (tagged if planned.is_tagged else fields).append(planned)
    tagged.sort(key=lambda plan: plan.tag or 0)
    return StructPlan(cls, flexible, tuple(fields), tuple(tagged), tuple(absent))


def _plan_field(cls: type[Any], field: Field, version: int, flexible: bool, default: Any) -> FieldPlan:
    array = isinstance(field.type, list)
    element = field.type[0] if isinstance(field.type, list) else field.type
    struct = None
    if isinstance(element, str):
        kind = element
        if kind not in FIXED and kind not in _VARIABLE:
            raise TypeError(
                f"{cls.__name__}.{field.name} has the type {kind!r}, which Kafka's protocol does not know"
            )
    else:
        kind = "struct"
        struct = _plan_struct(element, version, flexible)
    nullable = field.nullable is not None and _within(field.nullable, version)
    has_tag = field.tag is not None and flexible and _within(field.tagged or field.versions, version)
    tag = field.tag if has_tag else None
    return FieldPlan(cls.__name__, field.name, kind, array, nullable, struct, tag, default)


def _within(versions: Versions, version: int) -> bool:
    lowest, highest = versions
    return lowest <= version and (highest is None or version <= highest)


def _schema(cls: type[Any]) -> Schema:
    schema = getattr(cls, "SCHEMA", None)
    if not isinstance(schema, Schema):
        raise TypeError(f"{cls.__name__} is not a message: it has no SCHEMA")
    return schema
