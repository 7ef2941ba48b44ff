"""Messages written field by field from their plan, with a note of where everything landed.

Owns a second writer of Kafka's encoding beside the product's: it also writes what the product's refuses to, and its marks tell
a mutator which bytes are a length, a tag section, a number or a string. Chance and contents come from a `Values`.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, Protocol

from tidelog.wire.plan import FIXED, FieldPlan, StructPlan, plan_message


class Mark(NamedTuple):
    """`data[start:end]` is of this kind: a type's name, or length16, length32, uvarint, tags, element, body."""

    kind: str
    start: int
    end: int
    label: str = ""
    nullable: bool = False


class Shape(NamedTuple):
    data: bytes
    marks: tuple[Mark, ...]


class Values(Protocol):
    def value(self, field: FieldPlan) -> Any:
        """One value of the field's kind: an element, if the field is an array."""
        ...

    def count(self, field: FieldPlan) -> int:
        """How many elements."""
        ...

    def chance(self, share: float) -> bool: ...


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def write(cls: type[Any], version: int, values: Values) -> Shape:
    """A valid message with contents from `values`."""
    writer = _Writer(values)
    writer.struct(plan_message(cls, version))
    return Shape(bytes(writer.out), tuple(writer.marks))


class _Writer:
    def __init__(self, values: Values) -> None:
        self.out = bytearray()
        self.marks: list[Mark] = []
        self._values = values

    def _mark(self, kind: str, start: int, field: FieldPlan | None = None) -> None:
        label, nullable = ("", False) if field is None else (field.label, field.nullable)
        self.marks.append(Mark(kind, start, len(self.out), label, nullable))

    def struct(self, plan: StructPlan) -> None:
        for field in plan.fields:
            self._field(field, plan.flexible)
        if plan.flexible:
            self._tags(plan)

    def _tags(self, plan: StructPlan) -> None:
        given = [field for field in plan.tagged if self._values.chance(0.5)]
        start = len(self.out)
        self.out += uvarint(len(given))
        for field in given:
            inner = _Writer(self._values)
            inner._field(field, flexible=True)
            self.out += uvarint(field.tag) + uvarint(len(inner.out))
            at = len(self.out)
            self.out += inner.out
            self.marks += [mark._replace(start=mark.start + at, end=mark.end + at) for mark in inner.marks]
        self._mark("tags", start)

    def _field(self, field: FieldPlan, flexible: bool) -> None:
        if field.nullable and self._values.chance(0.1):
            self._null(field, flexible)
        elif field.array:
            count = self._values.count(field)
            self._length(count, flexible, "length32", field)
            for _ in range(count):
                start = len(self.out)
                self._value(field, flexible)
                self._mark("element", start, field)
        else:
            if field.kind == "struct" and field.nullable:
                self.out += b"\x01"
            self._value(field, flexible)

    def _null(self, field: FieldPlan, flexible: bool) -> None:
        if field.kind == "struct" and not field.array:
            self.out += b"\xff"
        else:
            self._length(-1, flexible, "length16" if _is_short(field) else "length32", field)

    def _length(self, length: int, flexible: bool, legacy: str, field: FieldPlan) -> None:
        start = len(self.out)
        if flexible:
            self.out += uvarint(length + 1)
            self._mark("uvarint", start, field)
        else:
            self.out += struct.pack(">h" if legacy == "length16" else ">i", length)
            self._mark(legacy, start, field)

    def _value(self, field: FieldPlan, flexible: bool) -> None:
        if field.struct is not None:
            self.struct(field.struct)
            return
        value = self._values.value(field)
        if field.kind in FIXED:
            start = len(self.out)
            self.out += struct.pack(">" + FIXED[field.kind], value)
            self._mark(field.kind, start, field)
            return
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._length(len(data), flexible, "length16" if field.kind == "string" else "length32", field)
        start = len(self.out)
        self.out += data
        self._mark(field.kind, start, field)


def _is_short(field: FieldPlan) -> bool:
    return field.kind == "string" and not field.array
