"""Avro values, decoded with fastavro on the executors into Arrow: plain, all by one schema, or framed, each by the schema whose number it begins with.

Which numbers a batch has is seen when it is decoded: the driver then asks the registry, makes the flow's schema grow by policy, and has the batch decoded again. Where the columns are
settled, nothing can grow, and executors ask the registry themselves. A value with bytes left over is wrong, too: it was written by another schema.
"""

from __future__ import annotations

import functools
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import types as t

from tidelog.pipeline.decoding import (
    FRAME_BYTES,
    NO_FRAME,
    PROBLEM,
    VALUE,
    DecoderSettings,
    DecodingError,
    Place,
    SchemaDecoder,
    has_frame,
)
from tidelog.pipeline.decoding_avro_schema import ROOT, is_record, misread, plain, spark_schema
from tidelog.pipeline.decoding_registry import SchemaRegistry
from tidelog.pipeline.decoding_schemas import grow, judged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

UNKNOWN: Final = "the schema is not known yet"
NUMBERS_MAX: Final = 10_000
"""Schemas of one batch."""
_UNKNOWN_COUNT: Final = "tidelog_unknown"


class Schemas(NamedTuple):
    """What executors need: texts, which are parsed once per process."""

    data: str
    """Spark's, as JSON."""
    reader: str | None
    """Of the values, if one was given: it has defaults and aliases."""
    writers: Mapping[int, str | None]
    """By number; None if the registry has none. Of plain values: number -1."""
    is_framed: bool
    registry: str | None = None
    """Which executors ask for writers that are not known; None: the driver does."""
    root: str = ROOT
    """The column of values that are no records."""


class AvroDecoder(SchemaDecoder):
    def __init__(self, settings: DecoderSettings) -> None:
        super().__init__(settings)
        self._registry = (
            SchemaRegistry(settings.registry, os.path.join(settings.state, "schemas"))
            if settings.registry is not None
            else None
        )
        self._writers: dict[int, str | None] = {} if self._is_framed else {-1: self._given}

    def _read(self, given: str) -> tuple[str, t.StructType]:
        schema = load_avsc(given)
        return json.dumps(plain(schema)), spark_schema(schema)

    @property
    def _is_settled(self) -> bool:
        return self.settings.columns is not None

    def decode(self, frame: DataFrame) -> DataFrame:
        return self.decode_at(frame, VALUE)

    def decode_at(self, frame: DataFrame, place: Place) -> DataFrame:
        schema = self.schema or t.StructType([])
        schemas = Schemas(
            schema.json(),
            self._given,
            dict(self._writers),
            self._is_framed,
            registry=self.settings.registry if self._is_settled else None,
            root=schema.names[0] if self._is_settled and len(schema) == 1 else ROOT,
        )
        added = [t.StructField(place.data, schema), t.StructField(place.problem, t.StringType())]
        made = t.StructType([*frame.schema.fields, *added])
        return frame.mapInArrow(functools.partial(decode_batches, schemas, place=place), made)

    def observed(self) -> dict[str, Column]:
        from pyspark.sql import functions as f

        if self._is_settled or not self._is_framed:
            return {}
        return {_UNKNOWN_COUNT: f.count_if(f.col(PROBLEM) == UNKNOWN)}

    def learn(self, frame: DataFrame, seen: Mapping[str, Any]) -> bool:
        if not seen.get(_UNKNOWN_COUNT):
            return False
        from pyspark.sql import functions as f

        number = f.conv(f.hex(f.substring("value", 2, 4)), 16, 10).cast("long")
        rows = frame.where(has_frame()).select(number.alias("number")).distinct().limit(NUMBERS_MAX).collect()
        assert self._registry is not None
        for found in sorted(row["number"] for row in rows):
            if self._writers.get(found) is None:
                self._add(found, self._registry.schema(found))
        if self.schema is not None:
            self._kept.save(self.schema)
        return True

    def _add(self, number: int, writer: Any | None) -> None:
        if writer is not None:
            try:
                columns = spark_schema(writer)
            except DecodingError as error:
                raise DecodingError(f"flow {self.settings.flow}: schema {number}: {error}") from None
            if self.schema is None:
                self.schema = columns
            elif self.settings.schema_changes != "ignore":
                growth = grow(self.schema, columns, widen=True)
                where = f"values of schema {number}"
                self.schema = judged(growth, self.settings.schema_changes, self.settings.flow, where)
        self._writers[number] = None if writer is None else json.dumps(plain(writer))

    def prepare(self, frame: DataFrame) -> None:
        # A number that the registry did not have may be there by now.
        self._writers = {number: text for number, text in self._writers.items() if text is not None}
        if self.schema is None:
            self.learn(frame, {_UNKNOWN_COUNT: 1})


def load_avsc(given: str) -> Any:
    """DecodingError if it is none."""
    try:
        found = json.loads(given)
        _parsed(json.dumps(plain(found)))
    except Exception as error:
        if not isinstance(error, (ValueError, KeyError, TypeError)) and not _is_avros(error):
            raise
        raise DecodingError(f"{given[:200]} is no Avro schema: {error}") from None
    return found


def _is_avros(error: Exception) -> bool:
    return type(error).__module__.startswith("fastavro")


def decode_batches(
    schemas: Schemas, batches: Iterator[pa.RecordBatch], *, place: Place = VALUE
) -> Iterator[pa.RecordBatch]:
    """On executors: each batch with what was decoded, and why not, beside its columns."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    kind = to_arrow_type(t.StructType.fromJson(json.loads(schemas.data)), timezone="UTC")
    decode = decoder_for(schemas)
    for batch in batches:
        rows: list[Any] = []
        problems: list[str | None] = []
        for value in batch.column(place.encoded).to_pylist():
            row, problem = (None, None) if value is None else decode(value)
            rows.append(row)
            problems.append(problem)
        data = _arrow(rows, problems, kind)
        names = [*batch.schema.names, place.data, place.problem]
        yield pa.RecordBatch.from_arrays([*batch.columns, data, pa.array(problems, pa.string())], names)


def _arrow(rows: list[Any], problems: list[str | None], kind: Any) -> Any:
    """Values that the flow's schema has no room for are found one by one, and marked."""
    import pyarrow as pa

    wrong = (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError)
    try:
        return pa.array(rows, kind)
    except wrong:
        for index, row in enumerate(rows):
            try:
                pa.array([row], kind)
            except wrong as error:
                rows[index], problems[index] = None, f"the value does not fit the flow's columns: {error}"
        return pa.array(rows, kind)


def decoder_for(schemas: Schemas) -> Callable[[bytes], tuple[Any, str | None]]:
    """A function from bytes to (row, None) or (None, what is wrong)."""
    from fastavro import schemaless_reader
    from fastavro.read import SchemaResolutionError

    reader = None if schemas.reader is None else _parsed(schemas.reader)
    columns = t.StructType.fromJson(json.loads(schemas.data))
    names = set(columns.fieldNames())
    writer_of = _Writers(schemas, columns).writer
    wrong = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, SchemaResolutionError)

    def decode(value: bytes) -> tuple[Any, str | None]:
        number, body = -1, value
        if schemas.is_framed:
            if len(value) < FRAME_BYTES or value[0] != 0:
                return None, NO_FRAME
            number, body = int.from_bytes(value[1:FRAME_BYTES], "big"), value[FRAME_BYTES:]
        writer, problem = writer_of(number)
        if problem is not None:
            return None, problem
        stream = io.BytesIO(body)
        try:
            row: Any = schemaless_reader(stream, writer, None if writer is reader else reader)
            if stream.tell() != len(body):
                return None, f"{len(body) - stream.tell()} bytes are left over: not written by this schema"
            if not is_record(writer):
                return {schemas.root: row}, None
            if reader is not None and writer is not reader and not names <= row.keys():
                # Columns that the given schema does not have, added by the policy.
                whole: Any = schemaless_reader(io.BytesIO(body), writer, None)
                row = {**whole, **row}
        except wrong as error:
            return None, f"not Avro by its schema: {type(error).__name__}: {error}"
        return row, None

    return decode


class _Writers:
    """By number, each looked at once: the schema that values were written with, or why none of them can be read."""

    def __init__(self, schemas: Schemas, columns: t.StructType) -> None:
        self._schemas = schemas
        self._columns = columns
        self._found: dict[int, tuple[Any, str | None]] = {}

    def writer(self, number: int) -> tuple[Any, str | None]:
        if number not in self._found:
            self._found[number] = self._look(number)
        return self._found[number]

    def _look(self, number: int) -> tuple[Any, str | None]:
        schemas = self._schemas
        if number in schemas.writers:
            text = schemas.writers[number]
        elif schemas.registry is None:
            return None, UNKNOWN
        else:
            asked = _registry(schemas.registry).schema(number)
            text = None if asked is None else json.dumps(plain(asked))
        if text is None:
            return None, f"the registry has no schema {number}"
        writer = _parsed(text)
        if text == schemas.reader:
            return writer, None
        try:
            where = misread(json.loads(text), self._columns)
        except DecodingError as error:
            raise DecodingError(f"schema {number}: {error}") from None
        return writer, None if where is None else f"the value does not fit the flow's columns: {where}"


@functools.lru_cache(maxsize=8)
def _registry(where: str) -> SchemaRegistry:
    """Of this process: what it was told once, it knows."""
    return SchemaRegistry(where, None)


@functools.lru_cache(maxsize=1_000)
def _parsed(text: str) -> Any:
    from fastavro import parse_schema

    return parse_schema(json.loads(text))
