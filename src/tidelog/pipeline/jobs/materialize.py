"""*materialize*: a compacted or change topic as a table of its current state, in Delta or in a relational database.

The latest record of a key is its row; a tombstone, or a Debezium deletion, takes the row away. Every batch goes in exactly once: its rows and its number are one transaction of
the table's own (`tables/delta_merge`, `databases`). Spark finds the latest records where they are; one row per key of a batch comes to the driver, so a batch is bounded by
`max_offsets_per_batch`, and by `max_bytes_per_batch` where records are large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from tidelog.pipeline import rebuild
from tidelog.pipeline.arrow_types import arrow_schema, with_schema
from tidelog.pipeline.changes import KeyFormat, Shape, ValueFormat, changes, value_decoder
from tidelog.pipeline.context import FromTopics, JobContext
from tidelog.pipeline.databases import dialect_of, open_state, shown
from tidelog.pipeline.databases_ledger import Batch
from tidelog.pipeline.databases_sql import DatabaseError, quoted_table
from tidelog.pipeline.ddl import DdlError, parse_columns
from tidelog.pipeline.decoding import Framing
from tidelog.pipeline.latest import DELETED, latest_of_partitions
from tidelog.pipeline.microbatches import planned, query_id
from tidelog.pipeline.options import OptionsError, PathText, Problem
from tidelog.pipeline.undecodable import REASON, UndecodableError, as_said, send

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from tidelog.pipeline.dead_letters import DeadLetters

OFFSETS_PER_BATCH: Final = 100_000
BYTES_PER_BATCH: Final = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(FromTopics):
    table: PathText | None = None
    """Path of a Delta table."""
    database: PathText | None = None
    """`sqlite:///orders.db` or `postgresql://user@host/name`."""
    database_table: str | None = None
    """The table in it, with a schema before a dot if it has one. Made if there is none."""
    """Of the database. Made if there is none."""
    format: ValueFormat = "json"
    """Of the values: json; debezium, an envelope of a change, by itself or with its schema around it; or raw, columns key and value as they are."""
    framing: Framing = "none"
    """registry: values begin with a zero byte and the four-byte number of their schema."""
    schema: str | None = None
    """Columns of the values, as in SQL: `id BIGINT, status STRING, items ARRAY<STRING>`."""
    key: tuple[str, ...] = ()
    """The columns that tell rows apart."""
    key_format: KeyFormat | None = None
    """Where the key's columns are: in the record's key as a JSON object (or a JSON value, for a single column), as text, as bytes; or in the value. Else: json, for raw values text."""
    position_columns: bool = False
    """Rows say which record they are from: _topic, _partition, _offset, _timestamp."""
    on_undecodable: Literal["dead-letter", "fail"] = "dead-letter"
    """What becomes of records that cannot be understood: they are sent to a topic, or stop the flow."""
    """What happens to a record that cannot be decoded: sent to the dead-letter topic, or the flow fails."""
    dead_letter_topic: str | None = None
    """The flow's name with `.dlq` behind it, unless said otherwise. Made if there is none."""
    rebuild: bool = False
    """Build the table anew from the first offset; the old rows are replaced, all at once, when the new ones have caught up."""
    take_over: bool = False
    """Go on with a table that was written under another checkpoint, from the offsets of this one's."""
    compact_every_batches: int = 100
    """How often small files of a Delta table are made one, and files that were replaced long ago removed. 0: never."""
    retention_hours: float = 168.0
    """How long replaced files of a Delta table stay, for readers that began before. Every batch replaces the files whose rows it changes: lower it for a large table that changes all the time."""
    max_offsets_per_batch: int | None = OFFSETS_PER_BATCH
    max_bytes_per_batch: int | None = BYTES_PER_BATCH

    @property
    def shape(self) -> Shape:
        is_raw = self.format == "raw"
        return Shape(
            format=self.format,
            framing=self.framing,
            key_format=self.key_format or ("text" if is_raw else "json"),
            key=("key",) if is_raw else self.key,
            schema=None if is_raw else self.schema,
            positions=self.position_columns,
            nested_as_json=self.database is not None,
        )

    def check(self) -> Iterator[Problem]:
        yield from FromTopics.check(self)
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
        yield from self._check_raw() if self.format == "raw" else self._check_columns()

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

    def _check_columns(self) -> Iterator[Problem]:
        if not self.schema:
            yield Problem("schema", f"{self.format} values need one, as in id BIGINT, status STRING")
            return
        try:
            columns = {each.name: each.dataType for each in parse_columns(self.schema)}
        except DdlError as error:
            yield Problem("schema", str(error))
            return
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

    def topics_written(self) -> Iterable[str]:
        return () if self.dead_letter_topic is None else (self.dead_letter_topic,)

    def places_written(self) -> Iterable[str]:
        if self.table:
            return (self.table,)
        return (f"{shown(self.database or '')}#{self.database_table}",)


class State(Protocol):
    """A table of state, wherever it is."""

    def prepare(self, *, is_rebuild: bool = False) -> None: ...

    def apply(self, batch: Batch, rows: pa.Table) -> bool: ...


def start(context: JobContext, options: Options) -> StreamingQuery:
    plan = rebuild.begun(context.state, context.checkpoint)
    if options.rebuild and plan is None:
        plan = rebuild.begin_from(context.state, context.checkpoint, options.source_options(context))
    state = open_target(options)
    state.prepare(is_rebuild=plan is not None)
    writer = _Writer(context, options, state, plan)
    if plan is not None:
        options = replace(options, start="earliest")
    return (
        options.stream(context)
        .writeStream.queryName(context.name)
        .foreachBatch(writer)
        .option("checkpointLocation", context.checkpoint)
        .trigger(**context.trigger)
        .start()
    )


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

    def __init__(
        self, context: JobContext, options: Options, state: State, plan: rebuild.Plan | None
    ) -> None:
        self._context = context
        self._options = options
        self._state = state
        self._plan = plan
        self._takes_over = options.take_over
        self._shape = options.shape
        self._schema = arrow_schema(self._shape.row_type())
        self._decoder = value_decoder(self._shape, flow=context.name, state=context.state)
        self._letters = _dead_letters(context, options)

    def __call__(self, records: DataFrame, number: int) -> None:
        where = planned(self._context.checkpoint, number)
        batch = Batch(
            flow=self._context.name,
            checkpoint=query_id(self._context.spark),
            number=number,
            offsets=where.offsets if where else "",
            is_rebuild=self._plan is not None,
            is_caught_up=self._plan is None or self._plan.is_reached(where),
            takes_over=self._takes_over,
        )
        found = changes(records, self._shape, self._decoder).toArrow()
        understood = with_schema(self._understood(found, batch), self._schema)
        rows = latest_of_partitions(understood, self._shape.key)
        if self._state.apply(batch, rows):
            gone = rows[DELETED].to_pylist().count(True)
            self._context.counters.add("rows written", rows.num_rows - gone)
            self._context.counters.add("rows deleted", gone)
        self._takes_over = False
        if self._plan is not None and batch.is_caught_up:
            rebuild.is_done(self._context.state)
            self._plan = None

    def _understood(self, rows: pa.Table, batch: Batch) -> pa.Table:
        import pyarrow.compute as pc

        is_bad = pc.is_valid(rows[REASON])
        bad: list[dict[str, Any]] = rows.filter(is_bad).to_pylist()
        if not bad:
            return rows
        explain = self._decoder.explain if self._decoder is not None else as_said
        if self._letters is None:
            raise UndecodableError(bad, explain)
        send(self._context, self._letters, bad, explain, query=batch.checkpoint, batch=batch.number)
        self._context.counters.add("dead_lettered", len(bad))
        return rows.filter(pc.invert(is_bad))


def _dead_letters(context: JobContext, options: Options) -> DeadLetters | None:
    if options.on_undecodable == "fail":
        return None
    from tidelog.pipeline.dead_letters import DeadLetters

    topic = options.dead_letter_topic or f"{context.name}.dlq"
    if options.reads_topic(topic):
        raise OptionsError([Problem("dead_letter_topic", f"the flow reads {topic}, too: name another one")])
    letters = DeadLetters(context, topic)
    letters.create_topic()
    return letters
