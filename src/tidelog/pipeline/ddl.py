"""Columns as one writes them in SQL, `id BIGINT, items ARRAY<STRUCT<name: STRING, price: DECIMAL(10,2)>>`, as Spark's types. Needs no running Spark, so that a
specification can be refused before one is started; types and names mean what they mean to Spark.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][\w]*)|(\d+)|([<>(),:]))")
_SIMPLE: Final = {
    "boolean": "BooleanType",
    "byte": "ByteType",
    "tinyint": "ByteType",
    "short": "ShortType",
    "smallint": "ShortType",
    "int": "IntegerType",
    "integer": "IntegerType",
    "bigint": "LongType",
    "long": "LongType",
    "float": "FloatType",
    "real": "FloatType",
    "double": "DoubleType",
    "date": "DateType",
    "timestamp": "TimestampType",
    "timestamp_ltz": "TimestampType",
    "timestamp_ntz": "TimestampNTZType",
    "string": "StringType",
    "binary": "BinaryType",
}


class DdlError(ValueError):
    """Says what is wrong, and where."""


def parse_columns(text: str) -> StructType:
    if not text.strip():
        raise DdlError("no column is named")
    return _Reader(text).fields(end=None)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise DdlError(
                    f"{text[at:].strip()[:20]!r} cannot be read; it should look like id BIGINT, name STRING"
                )
            self._tokens.append((match[0].strip(), match.start()))
            at = match.end()
        self._at = 0

    def fields(self, *, end: str | None) -> StructType:
        from pyspark.sql.types import StructField, StructType

        found: list[StructField] = []
        while self._peek() != end:
            if found:
                self._expect(",")
            name = self._name()
            if self._peek() == ":":
                self._take()
            kind = self._type()
            is_nullable = True
            if self._peek().upper() == "NOT":
                self._take()
                if self._take().upper() != "NULL":
                    raise DdlError(f"column {name}: NOT stands without NULL")
                is_nullable = False
            if any(each.name.lower() == name.lower() for each in found):
                raise DdlError(f"column {name} is named twice")
            found.append(StructField(name, kind, is_nullable))
            if end is None and self._peek() == "":
                break
        return StructType(found)

    def _type(self) -> DataType:
        from pyspark.sql import types

        word = self._take()
        kind = word.lower()
        if kind in _SIMPLE:
            made: DataType = getattr(types, _SIMPLE[kind])()
            return made
        if kind in ("decimal", "dec", "numeric"):
            precision, scale = 10, 0
            if self._peek() == "(":
                self._take()
                precision = self._number()
                if self._peek() == ",":
                    self._take()
                    scale = self._number()
                self._expect(")")
            if not (0 < precision <= 38 and scale <= precision):
                raise DdlError(
                    f"there is no DECIMAL({precision},{scale}): up to 38 digits, of them the scale's"
                )
            return types.DecimalType(precision, scale)
        if kind in ("array", "map", "struct"):
            self._expect("<")
            if kind == "array":
                nested: DataType = types.ArrayType(self._type())
            elif kind == "map":
                key = self._type()
                self._expect(",")
                nested = types.MapType(key, self._type())
            else:
                nested = self.fields(end=">")
            self._expect(">")
            return nested
        raise DdlError(
            f"there is no type {word or 'at the end'}; there are {', '.join(sorted({*_SIMPLE, 'decimal', 'array', 'map', 'struct'}))}"
        )

    def _name(self) -> str:
        token = self._take()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.match(r"[A-Za-z_]", token):
            raise DdlError(f"a column's name should stand where {token or 'the text ends'!r} is")
        return token

    def _number(self) -> int:
        token = self._take()
        if not token.isdecimal():
            raise DdlError(f"a number should stand where {token!r} is")
        return int(token)

    def _peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, what: str) -> None:
        if (token := self._take()) != what:
            after = (
                self._text[: self._tokens[self._at - 1][1]][-20:]
                if self._at <= len(self._tokens)
                else self._text[-20:]
            )
            raise DdlError(f"{what!r} is missing after {after.strip()!r}, where {token or 'the end'!r} is")
