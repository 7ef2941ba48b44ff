"""Compiles the encoder of one message in one version.

The code it emits is straight-line: a run of fixed-width fields, with the length prefix of whatever follows and the zero byte of
an empty tag section, is one `pack`; arrays of structs are loops in place. Small pieces are joined at the end; records that are
large, or that are a range of a file, stay parts of their own and are never copied.

A value that does not fit its field is our own mistake, never the peer's: it leaves as `ValueError`.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from tidelog.wire.plan import FIXED, FieldPlan, StructPlan
from tidelog.wire.schema import Fresh
from tidelog.wire.source import Source
from tidelog.wire.types import Part
from tidelog.wire.varint import write_uvarint

#: Records up to this size are copied into their neighbours: one buffer less to send is worth more than the copy.
JOINED_RECORDS_BYTES: Final = 16384
_CACHED_ARRAY_LENGTHS: Final = 64
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))
_BYTES_TYPES: Final = frozenset({bytes, bytearray, memoryview})
_UNFIT: Final = (struct.error, AttributeError, TypeError, UnicodeEncodeError)


def compile_encoder(plan: StructPlan, version: int) -> Callable[[Any, list[Part]], None]:
    return _EncoderCompiler(plan, version).compile()


class _EncoderCompiler:
    def __init__(self, plan: StructPlan, version: int) -> None:
        self._plan = plan
        self._title = f"{plan.cls.__name__} version {version}"
        self._scope: dict[str, Any] = {
            "ONE_BYTE": _ONE_BYTE,
            "BYTES_TYPES": _BYTES_TYPES,
            "UNFIT": _UNFIT,
            "uvarint": write_uvarint,
            "join": b"".join,
            "unfit": self._unfit,
        }
        self._source = Source(self._scope)
        # The fixed-width run collected so far: a layout and the expression of each value ("x" has none).
        self._layout = ""
        self._values: list[str] = []

    def compile(self) -> Callable[[Any, list[Part]], None]:
        source = self._source
        with source.block("def encode(message, out):"):
            source.line("pieces = []")
            source.line("write = pieces.append")
            with source.block("try:"):
                self._struct(self._plan, "message")
                with source.block("if pieces:"):
                    source.line("out.append(join(pieces))")
            with source.block("except UNFIT as error:"):
                source.line("unfit(error)")
        encode: Callable[[Any, list[Part]], None] = source.function("encode", f"<encoder of {self._title}>")
        return encode

    def _unfit(self, error: Exception) -> NoReturn:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip() if trace else ""
        raise ValueError(f"{self._title} cannot be encoded: {error} in `{line}`") from error

    # Structs

    def _struct(self, plan: StructPlan, value: str) -> None:
        for field in plan.fields:
            self._field(field, f"{value}.{field.name}")
        if plan.tagged:
            source = self._source
            layout, values = self._layout, self._values
            unset = " and ".join(_is_default(field, f"{value}.{field.name}", source) for field in plan.tagged)
            with source.block(f"if {unset}:"):
                self._constant_zero()
                self._flush()
            with source.block("else:"):
                self._layout, self._values = layout, values
                self._flush()
                source.line(f"write({self._tag_function(plan)}({value}))")
            return
        if plan.flexible:
            self._constant_zero()
        self._flush()

    def _constant_zero(self) -> None:
        self._layout += "x"

    def _flush(self) -> None:
        layout, values = self._layout, self._values
        self._layout, self._values = "", []
        if not layout:
            return
        if not layout.strip("x"):
            self._source.line(f"write({bytes(len(layout))!r})")
        else:
            self._source.line(f"write({self._source.method(layout, 'pack')}({', '.join(values)}))")

    def _fixed(self, code: str, value: str) -> None:
        self._layout += code
        self._values = [*self._values, value]

    # Fields

    def _field(self, field: FieldPlan, value: str) -> None:
        if field.array:
            self._array(field, value)
        elif field.kind in FIXED:
            self._fixed(FIXED[field.kind], value)
        elif field.kind == "struct":
            self._nested(field, value)
        else:
            self._bytes(field, value, field.nullable)

    def _nested(self, field: FieldPlan, value: str) -> None:
        assert field.struct is not None
        source = self._source
        local = source.name("m")
        source.line(f"{local} = {value}")
        if not field.nullable:
            self._struct(field.struct, local)
            return
        # KIP-893: a nullable struct begins with a byte, negative for null. One with a tag begins with a varint, which is 0 for null.
        layout, values = self._layout, self._values
        with source.block(f"if {local} is None:"):
            self._fixed("b", "0" if field.is_tagged else "-1")
            self._flush()
        with source.block("else:"):
            self._layout, self._values = layout, values
            self._fixed("b", "1")
            self._struct(field.struct, local)

    def _length(self, legacy: str, length: str) -> None:
        """Ends the run with a length prefix. `n` holds the length as it is stored: plus one, if flexible."""
        source = self._source
        if not self._plan.flexible:
            self._fixed(legacy, length)
            self._flush()
            return
        if not self._layout:
            source.line("write(ONE_BYTE[n] if n < 128 else uvarint(n))")
            return
        layout, values = self._layout, self._values
        with source.block("if n < 128:"):
            self._fixed("B", "n")
            self._flush()
        with source.block("else:"):
            self._layout, self._values = layout, values
            self._flush()
            source.line("write(uvarint(n))")

    def _bytes(self, field: FieldPlan, value: str, nullable: bool) -> None:
        source = self._source
        null, more = ("0", " + 1") if self._plan.flexible else ("-1", "")
        encode = ".encode()" if field.kind == "string" else ""
        if nullable:
            source.line(f"s = {value}")
            with source.block("if s is None:"):
                source.line(f"n = {null}")
                source.line("s = b''")
            with source.block("else:"):
                if encode:
                    source.line(f"s = s{encode}")
                source.line(f"n = len(s){more}")
        else:
            source.line(f"s = {value}{encode}")
            source.line(f"n = len(s){more}")
        self._length("h" if field.kind == "string" else "i", "n")
        if field.kind != "records":
            source.line("write(s)")
            return
        with source.block(f"if type(s) in BYTES_TYPES and n <= {JOINED_RECORDS_BYTES}:"):
            source.line("write(s)")
        with source.block("else:"):
            source.line("out.append(join(pieces))")
            source.line("pieces.clear()")
            source.line("out.append(s)")

    def _array(self, field: FieldPlan, value: str) -> None:
        source = self._source
        elements = source.name("a")
        source.line(f"{elements} = {value}")
        if field.kind in FIXED:
            self._fixed_elements(field, elements)
            return
        null, more = ("0", " + 1") if self._plan.flexible else ("-1", "")
        if field.nullable:
            with source.block(f"if {elements} is None:"):
                source.line(f"n = {null}")
                source.line(f"{elements} = ()")
            with source.block("else:"):
                source.line(f"n = len({elements}){more}")
        else:
            source.line(f"n = len({elements}){more}")
        self._length("i", "n")
        local = source.name("m")
        with source.block(f"for {local} in {elements}:"):
            if field.struct is None:
                self._bytes(field, local, nullable=False)
            elif field.struct.least_size:
                self._struct(field.struct, local)
            else:
                source.line("pass")

    def _fixed_elements(self, field: FieldPlan, elements: str) -> None:
        """The run, the length and all elements are one call."""
        source = self._source
        flexible = self._plan.flexible
        layout, values = self._layout, self._values
        packers = source.constant(_ArrayPackers(layout, FIXED[field.kind], flexible), f"{field.kind}s")
        length = f"len({elements}) + 1" if flexible else f"len({elements})"
        pack = f"write({packers}[len({elements})]({', '.join([*values, length])}, *{elements}))"
        if not field.nullable:
            source.line(pack)
        else:
            with source.block(f"if {elements} is None:"):
                if flexible:
                    self._constant_zero()
                else:
                    self._fixed("i", "-1")
                self._flush()
            with source.block("else:"):
                source.line(pack)
        self._layout, self._values = "", []

    # Tagged fields

    def _tag_function(self, plan: StructPlan) -> str:
        """A function of its own, called only when a tagged field differs from its default."""
        outer, self._source = self._source, Source(self._scope)
        source = self._source
        name = source.global_name(f"tags_of_{plan.cls.__name__}")
        with source.block(f"def {name}(message):"):
            source.line("fields = []")
            for field in plan.tagged:
                assert field.tag is not None
                value = f"message.{field.name}"
                with source.block(
                    f"if not ({_is_default(field, value, source)} or {value} == {self._default(field)}):"
                ):
                    source.line("pieces = []")
                    source.line("write = pieces.append")
                    self._field(field, value)
                    self._flush()
                    source.line("encoded = join(pieces)")
                    source.line(
                        f"fields.append({write_uvarint(field.tag)!r} + uvarint(len(encoded)) + encoded)"
                    )
            source.line("return uvarint(len(fields)) + join(fields)")
        source.function(name, f"<encoder of {self._title}, tags of {plan.cls.__name__}>")
        self._source = outer
        return name

    def _default(self, field: FieldPlan) -> str:
        default = field.default.make() if isinstance(field.default, Fresh) else field.default
        return self._source.constant(default, "default")


def _is_default(field: FieldPlan, value: str, source: Source) -> str:
    """A cheap test that is never true by mistake; the tag function looks twice."""
    default = field.default
    if isinstance(default, Fresh):
        return f"not {value}" if default.make is list and not field.nullable else "False"
    if default is None or field.kind == "struct":
        return f"{value} is {source.constant(default, 'default')}"
    return f"{value} == {source.constant(default, 'default')}"


class _ArrayPackers(dict[int, Callable[..., bytes]]):
    """`pack` of a run, a length and n values of one type; the usual lengths are kept."""

    def __init__(self, run: str, code: str, flexible: bool) -> None:
        self._run = run
        self._code = code
        self._flexible = flexible

    def __missing__(self, count: int) -> Callable[..., bytes]:
        body = f"{count}{self._code}" if len(self._code) == 1 else self._code * count
        if self._flexible and count > 126:
            return self._long(body)
        pack = struct.Struct(f">{self._run}{'B' if self._flexible else 'i'}{body}").pack
        if count < _CACHED_ARRAY_LENGTHS:
            self[count] = pack
        return pack

    def _long(self, body: str) -> Callable[..., bytes]:
        run, elements = struct.Struct(">" + self._run), struct.Struct(">" + body)
        fixed = len(run.unpack(bytes(run.size)))

        def pack(*values: Any) -> bytes:
            head = run.pack(*values[:fixed]) + write_uvarint(values[fixed])
            return head + elements.pack(*values[fixed + 1 :])

        return pack
