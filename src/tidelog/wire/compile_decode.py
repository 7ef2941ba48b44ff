"""Compiles the decoder of one message in one version.

The code it emits is straight-line: a run of fixed-width fields is one `unpack_from`, into which the length prefix of whatever
follows is folded; arrays of structs are loops in place; instances are made without `__init__`.

Bounds (I53): a slice past the end comes out short, and the position then lies beyond the end, where every further read
fails and the last line of the decoder refuses. So strings need no check of their own. Arrays do: a claimed length is
held against the bytes that are left before a list is made. Whatever goes wrong leaves as `ProtocolError`.

A decoder of requests also counts the entries of all arrays together: three bytes can be an entry, and thirty million of them in
one frame would keep the loop busy for a minute.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from tidelog.errors import ProtocolError
from tidelog.wire.plan import FIXED, FieldPlan, StructPlan
from tidelog.wire.schema import Fresh
from tidelog.wire.source import Source
from tidelog.wire.varint import finish_uvarint, read_tag, skip_tags

_MALFORMED: Final = (struct.error, IndexError, UnicodeDecodeError)
_CACHED_ARRAY_LENGTHS: Final = 64


def compile_decoder(
    plan: StructPlan, version: int, entries_max: int | None = None
) -> Callable[[memoryview, int], tuple[Any, int]]:
    """`entries_max`: more elements in all arrays together are refused."""
    return _DecoderCompiler(plan, version, entries_max).compile()


class _DecoderCompiler:
    def __init__(self, plan: StructPlan, version: int, entries_max: int | None) -> None:
        self._plan = plan
        self._entries_max = entries_max
        self._title = f"{plan.cls.__name__} version {version}"
        self._scope: dict[str, Any] = {
            "new": object.__new__,
            "more": finish_uvarint,
            "skip_tags": skip_tags,
            "read_tag": read_tag,
            "bad_length": _bad_length,
            "bad_tag": _bad_tag,
            "malformed": self._malformed,
            "too_many": self._too_many,
            "MALFORMED": _MALFORMED,
        }
        self._source = Source(self._scope)
        self._run: list[tuple[str, str]] = []

    def compile(self) -> Callable[[memoryview, int], tuple[Any, int]]:
        source = self._source
        with source.block("def decode(view, pos):"):
            source.line("size = len(view)")
            self._begin_counting()
            with source.block("try:"):
                target = self._struct(self._plan)
            with source.block("except MALFORMED as error:"):
                source.line("malformed(error)")
            with source.block("if pos > size:"):
                source.line("malformed(None)")
            source.line(f"return {target}, pos")
        decode: Callable[[memoryview, int], tuple[Any, int]] = source.function(
            "decode", f"<decoder of {self._title}>"
        )
        return decode

    def _malformed(self, error: Exception | None) -> NoReturn:
        if isinstance(error, UnicodeDecodeError):
            raise ProtocolError(f"{self._title} holds a string that is not UTF-8: {error}") from error
        raise ProtocolError(f"{self._title} ends before its last field") from error

    # Entries

    def _begin_counting(self) -> None:
        if self._entries_max is not None:
            self._source.line(f"left = {self._entries_max}")

    def _count(self) -> None:
        if self._entries_max is not None:
            self._source.line("left -= n")
            with self._source.block("if left < 0:"):
                self._source.line("too_many()")

    def _too_many(self) -> NoReturn:
        raise ProtocolError(
            f"{self._title} holds more than {self._entries_max} entries: they belong into several requests"
        )

    # Structs

    def _struct(self, plan: StructPlan) -> str:
        """Emits the decoding of one struct and returns the name of the variable that holds it."""
        source = self._source
        target = source.name("m")
        source.line(f"{target} = new({source.constant(plan.cls, plan.cls.__name__)})")
        for name, default in plan.absent:
            source.line(f"{target}.{name} = {self._default(default)}")
        for field in plan.tagged:
            source.line(f"{target}.{field.name} = {self._default(field.default)}")
        for field in plan.fields:
            self._field(field, f"{target}.{field.name}")
        if plan.flexible:
            self._run.append(("B", "n"))
        self._flush()
        if plan.flexible:
            with source.block("if n:"):
                if plan.tagged:
                    source.line(f"pos = {self._tag_function(plan)}(view, pos, n, {target})")
                else:
                    source.line("pos = skip_tags(view, pos, n)")
        return target

    def _default(self, default: Any) -> str:
        if isinstance(default, Fresh):
            return "[]" if default.make is list else f"{self._source.constant(default.make)}()"
        if default is None or isinstance(default, (bool, int, str)):
            return repr(default)
        return self._source.constant(default, "default")

    def _flush(self) -> None:
        """Emits the reading of the fixed-width run collected so far."""
        run, self._run = self._run, []
        if not run:
            return
        layout = "".join(code for code, _ in run)
        if layout == "B":
            self._source.line(f"{run[0][1]} = view[pos]")
        else:
            targets = ", ".join(target for _, target in run)
            comma = "," if len(run) == 1 else ""
            self._source.line(f"{targets}{comma} = {self._source.method(layout, 'unpack_from')}(view, pos)")
        self._source.line(f"pos += {self._source.struct(layout).size}")

    # Fields

    def _field(self, field: FieldPlan, target: str) -> None:
        if field.array:
            self._array(field, target)
        elif field.kind in FIXED:
            self._run.append((FIXED[field.kind], target))
        elif field.kind == "struct":
            self._nested(field, target)
        else:
            self._read_length("h" if field.kind == "string" else "i")
            self._bytes(field, target, field.nullable)

    def _nested(self, field: FieldPlan, target: str) -> None:
        assert field.struct is not None
        source = self._source
        if not field.nullable:
            source.line(f"{target} = {self._struct(field.struct)}")
            return
        # KIP-893: a nullable struct begins with a byte, negative for null. One with a tag begins with a varint, which is 0 for null.
        self._run.append(("b", "n"))
        self._flush()
        with source.block("if n == 0:" if field.is_tagged else "if n < 0:"):
            source.line(f"{target} = None")
        with source.block("else:"):
            source.line(f"{target} = {self._struct(field.struct)}")

    def _read_length(self, legacy: str) -> None:
        """Reads a length into `n`: -1 is null. Flexible versions store it plus one, as a varint."""
        flexible = self._plan.flexible
        self._run.append(("B" if flexible else legacy, "n"))
        self._flush()
        if flexible:
            with self._source.block("if n > 127:"):
                self._source.line("n, pos = more(view, pos, n)")

    def _bytes(self, field: FieldPlan, target: str, nullable: bool) -> None:
        """A string, bytes or records value whose length is in `n` (plus one, if flexible)."""
        source = self._source
        flexible = self._plan.flexible
        with source.block("if n < 1:" if flexible else "if n < 0:"):
            self._null(field, target, nullable)
        with source.block("else:"):
            source.line("end = pos + n - 1" if flexible else "end = pos + n")
            value = {"string": 'str(view[pos:end], "utf-8")', "bytes": "bytes(view[pos:end])"}
            source.line(f"{target} = {value.get(field.kind, 'view[pos:end]')}")
            source.line("pos = end")

    def _null(self, field: FieldPlan, target: str, nullable: bool) -> None:
        source = self._source
        null = "n" if self._plan.flexible else "n + 1"
        if nullable:
            if not self._plan.flexible:
                with source.block(f"if {null}:"):
                    source.line(f"bad_length({field.label!r}, n, size - pos)")
            source.line(f"{target} = None")
        else:
            source.line(f"bad_length({field.label!r}, {'-1' if self._plan.flexible else 'n'}, size - pos)")

    def _array(self, field: FieldPlan, target: str) -> None:
        source = self._source
        self._read_length("i")
        if self._plan.flexible:
            source.line("n -= 1")
        too_many = f"n * {field.element_size} > size - pos"
        if field.nullable:
            with source.block("if n == -1:"):
                source.line(f"{target} = None")
            head = f"elif n < 0 or {too_many}:"
        else:
            head = f"if n < 0 or {too_many}:"
        with source.block(head):
            source.line(f"bad_length({field.label!r}, n, size - pos)")
        with source.block("else:"):
            self._count()
            self._elements(field, target)

    def _elements(self, field: FieldPlan, target: str) -> None:
        source = self._source
        if field.kind in FIXED:
            unpackers = source.constant(_unpackers(FIXED[field.kind]), f"{field.kind}s")
            source.line(f"{target} = list({unpackers}[n](view, pos))")
            source.line(f"pos += n * {field.element_size}")
            return
        elements = source.name("a")
        source.line(f"{target} = {elements} = []")
        with source.block("for _ in range(n):"):
            if field.struct is not None:
                source.line(f"{elements}.append({self._struct(field.struct)})")
            else:
                self._read_length("h" if field.kind == "string" else "i")
                self._bytes(field, "value", nullable=False)
                source.line(f"{elements}.append(value)")

    # Tagged fields

    def _tag_function(self, plan: StructPlan) -> str:
        """A function of its own, because tagged fields are rare and the common path should not carry them."""
        outer, self._source = self._source, Source(self._scope)
        source = self._source
        name = source.global_name(f"tags_of_{plan.cls.__name__}")
        with source.block(f"def {name}(view, pos, count, target):"):
            source.line("size = len(view)")
            self._begin_counting()
            with source.block("if count > 127:"):
                source.line("count, pos = more(view, pos, count)")
            source.line("tag = -1")
            with source.block("for _ in range(count):"):
                source.line("tag, n, pos = read_tag(view, pos, tag)")
                source.line("stop = pos + n")
                for number, field in enumerate(plan.tagged):
                    with source.block(f"{'el' if number else ''}if tag == {field.tag}:"):
                        self._field(field, f"target.{field.name}")
                        self._flush()
                with source.block("else:"):
                    source.line("pos = stop")
                with source.block("if pos != stop:"):
                    source.line(f"bad_tag({plan.cls.__name__!r}, tag, stop - pos)")
            source.line("return pos")
        source.function(name, f"<decoder of {self._title}, tags of {plan.cls.__name__}>")
        self._source = outer
        return name


class _Unpackers(dict[int, Callable[..., tuple[Any, ...]]]):
    """`unpack_from` of n values of one type; the usual lengths are kept."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __missing__(self, count: int) -> Callable[..., tuple[Any, ...]]:
        layout = f">{count}{self._code}" if len(self._code) == 1 else ">" + self._code * count
        unpack = struct.Struct(layout).unpack_from
        if count < _CACHED_ARRAY_LENGTHS:
            self[count] = unpack
        return unpack


_known_unpackers: dict[str, _Unpackers] = {}


def _unpackers(code: str) -> _Unpackers:
    return _known_unpackers.setdefault(code, _Unpackers(code))


def _bad_length(label: str, length: int, left: int) -> NoReturn:
    if length == -1:
        raise ProtocolError(f"{label} is null, which this version does not allow")
    if length < 0:
        raise ProtocolError(f"{label} has the length {length}")
    raise ProtocolError(f"{label} claims {length} elements, only {max(0, left)} bytes are left")


def _bad_tag(owner: str, tag: int, off: int) -> NoReturn:
    raise ProtocolError(
        f"tagged field {tag} of {owner} does not end where its length says (off by {off} bytes)"
    )
