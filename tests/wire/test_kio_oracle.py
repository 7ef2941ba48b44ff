"""Every message in every version against kio, which reads and writes them independently of our compiler.

A random instance of kio's class is written by kio and read by us: all values must agree. Written again by us, the bytes
must be kio's. Also checks that the generated modules are what the generator makes of kio.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import importlib.util
import io
import sys
import types
import typing
import uuid
from pathlib import Path
from pkgutil import resolve_name
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.wire.codec import decode, encode

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer

ROOT = Path(__file__).parent.parent.parent
SKIPPED = {"request_header", "response_header", "control_record_type_schema"}
CODES = list(KioErrorCode)
INTEGERS = {"int8": (-128, 127), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1),
            "int64": (-(2**63), 2**63 - 1), "uint16": (0, 2**16 - 1)}  # fmt: skip


def random_kio(cls: type[Any], rng: Random) -> Any:
    values = {}
    for field in dataclasses.fields(cls):
        if "tag" in field.metadata and rng.random() < 0.5 and field.default is not dataclasses.MISSING:
            continue
        values[field.name] = _value_of(field, rng)
    return cls(**values)


def _value_of(field: dataclasses.Field[Any], rng: Random) -> Any:
    kind = field.metadata.get("kafka_type", "")
    inner, nullable = _without_none(field.type)
    if nullable and "tag" not in field.metadata and rng.random() < 0.3:
        return None
    if typing.get_origin(inner) is not tuple:
        return _one(kind, inner, rng)
    element, _ = _without_none(typing.get_args(inner)[0])
    is_struct = dataclasses.is_dataclass(element)
    count = 130 if not is_struct and rng.random() < 0.05 else rng.choice((0, 1, 2, 3))
    return tuple(_one(kind, element, rng) for _ in range(count))


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation, False
    rest = [argument for argument in typing.get_args(annotation) if argument is not types.NoneType]
    return rest[0], True


def _one(kind: str, inner: Any, rng: Random) -> Any:
    if dataclasses.is_dataclass(inner):
        return random_kio(typing.cast("type[Any]", inner), rng)
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        return rng.choice((0, 1, low, high, rng.randint(low, high)))
    if kind == "error_code":
        return rng.choice(CODES)
    if kind == "timedelta_i32":
        return datetime.timedelta(milliseconds=rng.randint(-(2**31), 2**31 - 1))
    if kind == "timedelta_i64":
        return datetime.timedelta(milliseconds=rng.randint(-(10**12), 10**12))
    if kind == "datetime_i64":
        return datetime.datetime.fromtimestamp(rng.randint(0, 4 * 10**9), tz=datetime.UTC)
    if kind == "uuid":
        return uuid.UUID(bytes=rng.randbytes(16))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.uniform(-1e9, 1e9)
    size = rng.choice((0, 1, 5, 20, 126, 127, 128, 300))
    return (
        "".join(rng.choice("aZ-._ 9ä漢😀") for _ in range(size // 2))
        if kind == "string"
        else rng.randbytes(size)
    )


def assert_same(theirs: Any, ours: Any, path: str) -> None:
    """Every field of kio's instance, in our types."""
    if dataclasses.is_dataclass(theirs):
        for field in dataclasses.fields(theirs):
            times = {"timedelta_i32", "timedelta_i64", "datetime_i64"}
            name = field.name.rstrip("_") + ("_ms" if field.metadata.get("kafka_type") in times else "")
            value = getattr(theirs, field.name)
            if value is None and field.metadata.get("kafka_type") == "datetime_i64":
                value = -1
            if (
                value is None
                and field.metadata.get("kafka_type") == "uuid"
                and uuid.UUID in typing.get_args(field.type)
            ):
                value = uuid.UUID(int=0)
            assert_same(value, getattr(ours, name), f"{path}.{name}")
    elif isinstance(theirs, tuple):
        assert isinstance(ours, list) and len(ours) == len(theirs), path
        for index, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            assert_same(one, other, f"{path}[{index}]")
    else:
        assert _plain(theirs) == ours, path


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return value.bytes if isinstance(value, uuid.UUID) else value


def _kio_bytes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize("name", [name for name in schema_name_map if name not in SKIPPED])
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_bytes_and_values_agree_with_kio(name: str, seed: int) -> None:
    rng = Random(seed)
    module = importlib.import_module(f"tidelog.wire.messages.{name}")
    for version, kinds in schema_name_map[name].items():
        for path in kinds.values():
            theirs = random_kio(resolve_name(path), rng)
            encoded = _kio_bytes(theirs)
            ours = decode(getattr(module, type(theirs).__name__), version, memoryview(bytearray(encoded)))
            assert_same(theirs, ours, f"{type(theirs).__name__} v{version}")
            again = encode(ours, version)
            assert again == encoded, f"{type(theirs).__name__} v{version}"
            assert entity_reader(type(theirs))(again, 0) == (theirs, len(again))


def test_generated_modules_are_what_the_generator_makes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate_messages", ROOT / "tools/generate_messages.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool
    spec.loader.exec_module(tool)
    tool.generate(tmp_path)
    committed = {path.name: path.read_text() for path in tool.TARGET.glob("*.py")}
    generated = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    assert generated.keys() == committed.keys()
    for name, text in generated.items():
        assert text == committed[name], f"{name} was edited by hand; run tools/generate_messages.py"
