"""Options of jobs that decode values: what the values are, by which schema, and what becomes of those that cannot be decoded. The same for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from tidelog.pipeline.context import FromTopics, JobContext
from tidelog.pipeline.ddl import DdlError, parse_columns
from tidelog.pipeline.decoding import Decoder, DecoderSettings, DecodingError, Format, Framing, open_decoder
from tidelog.pipeline.options import OptionsError, PathText, Problem

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tidelog.pipeline.tables.table import SchemaChanges

ValueFormat = Literal["json", "avro", "raw", "debezium", "debezium-avro"]
OnUndecodable = Literal["dead-letter", "fail", "skip"]
RAW_COLUMNS: Final = "key BINARY, value BINARY"
_ENCODINGS: Final[Mapping[ValueFormat, Format]] = {
    "json": "json",
    "avro": "avro",
    "raw": "raw",
    "debezium": "json",
    "debezium-avro": "avro",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FromValues(FromTopics):
    format: ValueFormat = "json"
    """Of the values: json, avro, or raw (columns key and value as they are); of changes, for materialize, debezium and debezium-avro."""
    schema: str | None = None
    """Of the values: columns as in SQL (`id BIGINT, items ARRAY<STRING>`) for json, Avro's JSON for avro."""
    schema_file: PathText | None = None
    """A file with the schema instead."""
    framing: Framing = "none"
    """registry: values begin with a zero byte and the four-byte number of their schema."""
    registry: PathText | None = None
    """Where framed Avro's schemas are: the URL of a registry, or a directory with `<number>.avsc` files."""
    on_undecodable: OnUndecodable = "dead-letter"
    """What becomes of a record that cannot be decoded: dead-letter (sent to a topic with its bytes, its place and the reason), fail (the flow stops at it), skip (counted, and told in the log)."""
    dead_letter_topic: str | None = None
    """The flow's name with `.dlq` behind it, unless said otherwise. Made if there is none."""

    @property
    def is_avro(self) -> bool:
        return _ENCODINGS[self.format] == "avro"

    @property
    def has_schema(self) -> bool:
        return self.schema is not None or self.schema_file is not None

    def check(self) -> Iterator[Problem]:
        # Not `super()`: a slotted dataclass is another class than the one that the compiler saw.
        yield from FromTopics.check(self)
        yield from self._check_values()
        if self.dead_letter_topic is not None and self.on_undecodable != "dead-letter":
            yield Problem(
                "dead_letter_topic", f'nothing is sent there with on_undecodable = "{self.on_undecodable}"'
            )

    def _check_values(self) -> Iterator[Problem]:
        if self.schema is not None and self.schema_file is not None:
            yield Problem("schema_file", "there is a schema, too: give one of them")
        if self.format == "raw":
            if self.has_schema:
                yield Problem("schema", "raw values have none: they are bytes")
            if self.framing != "none":
                yield Problem("framing", "raw values are taken as they are, frame and all")
        elif self.schema is not None:
            try:
                self.columns()
            except (DdlError, DecodingError) as error:
                yield Problem("schema", str(error))
        if self.registry is not None and not (self.is_avro and self.framing == "registry"):
            yield Problem("registry", 'is for format = "avro" with framing = "registry" only')
        if self.is_avro:
            if self.framing == "registry" and self.registry is None:
                yield Problem("", "registry is missing: framed Avro needs the schemas that values name")
            if self.framing == "none" and not self.has_schema:
                yield Problem("", "schema or schema_file is missing: plain Avro does not say its own")

    def check_settled(self) -> Iterator[Problem]:
        """For jobs that must know the columns before the first record."""
        if self.format == "raw" or self.has_schema or (self.is_avro and self.framing == "none"):
            return
        yield Problem("schema", f"{self.format} values need one, as in id BIGINT, status STRING")

    def columns_known(self) -> StructType | None:
        """None: they are in a file, or what was given is none, which `check` tells."""
        try:
            return self.columns() if self.schema is not None or self.format == "raw" else None
        except (DdlError, DecodingError):
            return None

    def columns(self) -> StructType:
        """Of the values, as the schema has them. DdlError or DecodingError: it is none."""
        if self.format == "raw":
            return parse_columns(RAW_COLUMNS)
        if not self.is_by_avsc:
            return parse_columns(self.schema or "")
        from tidelog.pipeline.decoding_avro import load_avsc
        from tidelog.pipeline.decoding_avro_schema import spark_schema

        return spark_schema(load_avsc(self.schema or ""))

    @property
    def is_by_avsc(self) -> bool:
        """Whether the schema is Avro's. Framed values say how they were written, so that columns will do for those."""
        return self.format == "avro" and (
            self.framing == "none" or (self.schema or "").lstrip().startswith(("{", "[", '"'))
        )

    def decoder(
        self,
        context: JobContext,
        *,
        columns: StructType | None = None,
        schema_changes: SchemaChanges = "ignore",
    ) -> Decoder:
        """`columns`: what rows have, if that is settled."""
        is_given = columns is None or self.is_by_avsc
        return open_decoder(
            DecoderSettings(
                flow=context.name,
                format=_ENCODINGS[self.format],
                schema=self.schema if is_given else None,
                framing=self.framing,
                registry=self.registry,
                schema_changes=schema_changes,
                columns=columns,
                state=context.state,
            )
        )

    def topics_written(self) -> Iterable[str]:
        return () if self.dead_letter_topic is None else (self.dead_letter_topic,)


T = TypeVar("T", bound=FromValues)


def ready(options: T) -> T:
    """With its schema read, and checked once more with all that is known. OptionsError, DecodingError."""
    if options.schema_file is not None and options.schema is None:
        options = replace(options, schema=_read(options.schema_file), schema_file=None)
    if problems := list(options.check()):
        raise OptionsError(problems)
    return options


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError as error:
        raise DecodingError(f"the schema {path} cannot be read: {error.strerror}") from None
