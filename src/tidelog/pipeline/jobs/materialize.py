"""*materialize*: a compacted or change topic as a table of its current state, in Delta or in a relational database.

The latest record of a key is its row; a tombstone, or a Debezium deletion, takes the row away. Every batch goes in exactly once: its rows and its number are one transaction of
the table's own (`tables/delta_merge`, `databases`). Spark finds the latest records where they are; one row per key of a batch comes to the driver, so a batch is bounded by
`max_offsets_per_batch`, and by `max_bytes_per_batch` where records are large.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidelog.pipeline.arrow_types import arrow_schema, with_schema
from tidelog.pipeline.changes import Decoders, KeyFormat, Shape, changes
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.databases import dialect_of, open_state, shown
from tidelog.pipeline.databases_ledger import Batch
from tidelog.pipeline.databases_sql import DatabaseError, quoted_table
from tidelog.pipeline.ddl import parse_columns
from tidelog.pipeline.dead_letters import open_dead_letters
from tidelog.pipeline.decoding import DecoderSettings
from tidelog.pipeline.decoding_options import FromValues, ValueFormat, ready
from tidelog.pipeline.latest import DELETED, latest_of_partitions
from tidelog.pipeline.options import PathText, Problem
from tidelog.pipeline.state_flow import IntoState, StateFlow
from tidelog.pipeline.undecodable import REASON, UndecodableError, as_said, send, told

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import DataType

logger = logging.getLogger(__name__)

OFFSETS_PER_BATCH: Final = 100_000
BYTES_PER_BATCH: Final = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(IntoState):
    table: PathText | None = None
    """Path of a Delta table."""
    database: PathText | None = None
    """`sqlite:///orders.db` or `postgresql://user@host/name`."""
    database_table: str | None = None
    """The table in it, with a schema before a dot if it has one. Made if there is none."""
    format: ValueFormat = "json"
    """Of the values: json; avro; debezium, an envelope of a change in JSON, by itself or with its schema around it; debezium-avro, the same in framed Avro; or raw, columns key and value as they are."""
    schema: str | None = None
    """Columns of the values, as in SQL: `id BIGINT, status STRING, items ARRAY<STRING>`. Of plain Avro, Avro's JSON."""
    key: tuple[str, ...] = ()
    """The columns that tell rows apart."""
    key_format: KeyFormat | None = None
    """Where the key's columns are: in the record's key as a JSON object (or a JSON value, for a single column), in framed Avro, as text, as bytes; or in the value. Else: json, for framed Avro avro, for raw values text."""
    position_columns: bool = False
    """Rows say which record they are from: _topic, _partition, _offset, _timestamp."""
    compact_every_batches: int = 100
    """How often small files of a Delta table are made one, and files that were replaced long ago removed. 0: never."""
    retention_hours: float = 168.0
    """How long replaced files of a Delta table stay, for readers that began before. Every batch replaces the files whose rows it changes: lower it for a large table that changes all the time."""
    max_offsets_per_batch: int | None = OFFSETS_PER_BATCH
    max_bytes_per_batch: int | None = BYTES_PER_BATCH

    @property
    def shape(self) -> Shape:
        is_raw, key_format = self.format == "raw", self.key_format or self._usual_key_format()
        raw = f"key {'BINARY' if key_format == 'raw' else 'STRING'}, value BINARY"
        return Shape(
            format=self.format,
            key_format=key_format,
            key=("key",) if is_raw else self.key,
            columns=parse_columns(raw) if is_raw else self.columns(),
            positions=self.position_columns,
            nested_as_json=self.database is not None,
        )

    def _usual_key_format(self) -> KeyFormat:
        if self.format == "raw":
            return "text"
        return "avro" if self.is_avro and self.framing == "registry" else "json"

    def check(self) -> Iterator[Problem]:
        yield from FromValues.check(self)
        yield from self.check_settled()
        if bool(self.table) == bool(self.database):
            yield Problem("table", "say where the rows go by either table (Delta) or database")
        if self.database:
            yield from self._check_database()
        elif self.database_table:
            yield Problem("database_table", "is the name of a table in a database, and there is no database")
        if self.max_offsets_per_batch is None:
            yield Problem("max_offsets_per_batch", "a batch's rows are in memory, so it needs a limit")
        for name in ("compact_every_batches", "retention_hours"):
            if getattr(self, name) < 0:
                yield Problem(name, f"must not be negative, and is {getattr(self, name)}")
        if self.format == "debezium-avro" and self.framing != "registry":
            yield Problem("framing", 'must be "registry": an envelope in Avro does not say its schema')
        if self.key_format == "avro" and self.registry is None:
            yield Problem("key_format", "avro needs framing and a registry: a key does not say its schema")
        if self.format == "raw":
            yield from self._check_raw()
        elif (columns := self.columns_known()) is not None:
            yield from self._check_columns({each.name: each.dataType for each in columns})

    def _check_database(self) -> Iterator[Problem]:
        try:
            dialect = dialect_of(self.database or "")
        except DatabaseError as error:
            yield Problem("database", str(error))
            return
        if not self.database_table:
            yield Problem("database", "needs database_table, the name of the table in it")
            return
        try:
            quoted_table(f"{self.database_table}__rebuild", dialect)
        except DatabaseError as error:
            yield Problem("database_table", str(error))

    def _check_raw(self) -> Iterator[Problem]:
        if self.schema or self.key:
            yield Problem(
                "format",
                "raw records have the columns key and value, so no schema and no key are given",
            )
        if self.key_format not in (None, "text", "raw"):
            yield Problem("key_format", "of raw records is text or raw")

    def _check_columns(self, columns: Mapping[str, DataType]) -> Iterator[Problem]:
        if reserved := [name for name in columns if name.startswith("__")]:
            yield Problem(
                "schema", f"{', '.join(reserved)}: names that begin with two underscores are kept for the job"
            )
        if not self.key:
            yield Problem("key", "say which columns tell rows apart")
        if missing := [name for name in self.key if name not in columns]:
            yield Problem("key", f"the schema has no {', '.join(missing)}; it has {', '.join(columns)}")
        nested = [
            name
            for name in self.key
            if columns.get(name) is not None and columns[name].typeName() in ("array", "map", "struct")
        ]
        if nested:
            yield Problem("key", f"{', '.join(nested)} cannot be compared: a key has plain columns")
        if self.key_format == "raw" or (self.key_format == "text" and len(self.key) != 1):
            yield Problem(
                "key_format", f"{self.key_format} does not hold {len(self.key)} columns: use json or value"
            )

    def places_written(self) -> Iterable[str]:
        if self.table:
            return (self.table,)
        return (f"{shown(self.database or '')}#{self.database_table}",)


class State(Protocol):
    """A table of state, wherever it is."""

    def prepare(self, *, is_rebuild: bool = False) -> None: ...

    def apply(self, batch: Batch, rows: pa.Table) -> bool: ...


def start(context: JobContext, options: Options) -> StreamingQuery:
    options = ready(options)
    flow = StateFlow(context, options)
    state = open_target(options)
    state.prepare(is_rebuild=flow.is_rebuild)
    return context.start(flow.stream(), _Writer(context, options, flow, state))


def open_target(options: Options) -> State:
    from pyspark.sql.pandas.types import to_arrow_schema

    shape = options.shape
    schema = to_arrow_schema(shape.row_type(), timezone="UTC")
    if options.database:
        return open_state(options.database, options.database_table or "", schema, shape.key)
    from tidelog.pipeline.tables.delta_merge import DeltaState, Upkeep

    upkeep = Upkeep(every_batches=options.compact_every_batches, retention_hours=options.retention_hours)
    return DeltaState(options.table or "", schema, shape.key, upkeep=upkeep)


class _Writer:
    """One batch after the other. What it needs to know of the past is in the table and the checkpoint."""

    def __init__(self, context: JobContext, options: Options, flow: StateFlow, state: State) -> None:
        self._context = context
        self._options = options
        self._flow = flow
        self._state = state
        self._shape = options.shape
        self._schema = arrow_schema(self._shape.row_type())
        self._decoders = open_decoders(context, options, self._shape)
        self._letters = open_dead_letters(context, options)

    def __call__(self, records: DataFrame, number: int) -> None:
        batch = self._flow.batch(number)
        found = changes(records, self._shape, self._decoders).toArrow()
        understood = with_schema(self._understood(found, batch), self._schema)
        rows = latest_of_partitions(understood, self._shape.key)
        if self._state.apply(batch, rows):
            gone = rows[DELETED].to_pylist().count(True)
            self._context.counters.add("rows written", rows.num_rows - gone)
            self._context.counters.add("rows deleted", gone)
        self._flow.is_written(batch)

    def _understood(self, rows: pa.Table, batch: Batch) -> pa.Table:
        import pyarrow.compute as pc

        is_bad = pc.is_valid(rows[REASON])
        bad: list[dict[str, Any]] = rows.filter(is_bad).to_pylist()
        if not bad:
            return rows
        explain = self._decoders.value.explain if self._decoders.value is not None else as_said
        if self._letters is not None:
            send(self._context, self._letters, bad, explain, query=batch.checkpoint, batch=batch.number)
            self._context.counters.add("dead_lettered", len(bad))
        elif self._options.on_undecodable == "skip":
            logger.warning("flow %s: batch %d: %s are skipped", batch.flow, batch.number, told(bad, explain))
            self._context.counters.add("skipped", len(bad))
        else:
            raise UndecodableError(bad, explain)
        return rows.filter(pc.invert(is_bad))


def open_decoders(context: JobContext, options: Options, shape: Shape) -> Decoders:
    value = None if shape.format == "raw" else options.decoder(context, columns=shape.value_type())
    if shape.key_format != "avro":
        return Decoders(value, None)
    from tidelog.pipeline.decoding_avro import AvroDecoder

    settings = DecoderSettings(
        flow=context.name,
        format="avro",
        framing="registry",
        registry=options.registry,
        columns=shape.key_type(),
        state=context.state,
    )
    return Decoders(value, AvroDecoder(settings))
