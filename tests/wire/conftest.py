"""What the wire tests share: every message class, and random instances of it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tidelog.wire.plan import FieldPlan, StructPlan, plan_message

_INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_UNSIGNED = {"uint16": 16, "uint32": 32}


def build(cls: type[Any], version: int, rng: Random) -> Any:
    """An instance with every field of the version set at random; tagged fields keep their default half of the time."""
    return _struct(plan_message(cls, version), rng)


def _struct(plan: StructPlan, rng: Random) -> Any:
    values = {field.name: _field(field, rng) for field in plan.fields}
    for field in plan.tagged:
        if rng.random() < 0.5:
            values[field.name] = _field(field, rng)
    return plan.cls(**values)


def _field(field: FieldPlan, rng: Random) -> Any:
    if field.nullable and rng.random() < 0.3:
        return None
    if field.array:
        # Now and then long enough for a length of two bytes.
        count = 130 if field.struct is None and rng.random() < 0.05 else rng.choice((0, 1, 1, 2, 3))
        return [_value(field, rng) for _ in range(count)]
    return _value(field, rng)


def _value(field: FieldPlan, rng: Random) -> Any:
    kind = field.kind
    if field.struct is not None:
        return _struct(field.struct, rng)
    if kind in _INTEGERS:
        bits = _INTEGERS[kind]
        return rng.choice((0, -1, rng.randrange(100), rng.randrange(-(1 << bits), 1 << bits)))
    if kind in _UNSIGNED:
        return rng.randrange(1 << _UNSIGNED[kind])
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.uniform(-1e9, 1e9)
    if kind == "uuid":
        return rng.randbytes(16)
    size = rng.choice((0, 1, 5, 20, 127, 128, 300))
    if kind == "string":
        return "".join(rng.choice("abcXYZ-._ 09äß漢😀") for _ in range(size // 2))
    return rng.randbytes(size)


@pytest.fixture(scope="session")
def build_message() -> Callable[[type[Any], int, Random], Any]:
    return build
