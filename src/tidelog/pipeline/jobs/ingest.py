"""Topics into a table: each record one row, decoded, exactly once; what cannot be decoded goes to a dead-letter topic.

    ingest.start(JobContext(spark=spark, name="orders", brokers="localhost:9092", state="state/orders"),
                 ingest.Options(topics=("orders",), table="tables/orders", schema="id bigint, total double"))

The order within a batch: files are written, which nobody sees; dead letters are sent; the table's commit makes the rows visible and says that the batch is done. A crash anywhere before the commit
has the batch done again from the same offsets, after it the batch is recognised and passed over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from tidelog.pipeline.context import FromTopics, JobContext
from tidelog.pipeline.ddl import DdlError, parse_columns
from tidelog.pipeline.decoding import (
    DATA,
    PASSES_MAX,
    PROBLEM,
    Decoder,
    DecoderSettings,
    DecodingError,
    Format,
    Framing,
    open_decoder,
)
from tidelog.pipeline.options import OptionsError, PathText, Problem
from tidelog.pipeline.tables.table import SchemaChanges, Staged, TableFormat, TableSettings, open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from tidelog.pipeline.dead_letters import DeadLetters

logger = logging.getLogger(__name__)

OnUndecodable = Literal["dead-letter", "fail", "skip"]
METADATA: Final = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "headers")
COMPACT_DELTA_BATCHES: Final = 100
QUERY_ID: Final = "sql.streaming.queryId"
_BAD: Final = "tidelog_bad"
_READ: Final = "tidelog_read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(FromTopics):
    table: PathText
    """A directory. Driver and executors must see it under the same name."""
    table_format: TableFormat = "delta"
    """How the table is kept. Delta and Iceberg have transactions; parquet is a directory of files that any reader can list."""
    """What the table is kept as."""
    format: Format = "json"
    """Of the values: json, avro, or raw (columns key and value as they are)."""
    schema: str | None = None
    """Of the values: columns as Spark writes them (`id bigint, total double`) for json, Avro's JSON for avro. Without one, json's is found out from the first batch and kept."""
    schema_file: PathText | None = None
    """A file with the schema instead."""
    framing: Framing = "none"
    """registry: values begin with a zero byte and the four-byte number of their schema."""
    registry: PathText | None = None
    """Where framed Avro's schemas are: the URL of a registry, or a directory with `<number>.avsc` files."""
    metadata: tuple[str, ...] = ("topic", "partition", "offset", "timestamp")
    """What else of a record becomes a column, with an underscore before its name: topic, partition, offset, timestamp, timestampType, key, headers."""
    partition_by: tuple[str, ...] = ()
    """Columns by whose values files are kept apart: texts, whole numbers, dates or booleans with few values. Cannot be changed once the table is there."""
    """Columns whose values become directories of the table."""
    schema_changes: SchemaChanges = "add"
    """When records have new fields: add columns, fail, or ignore them (which is the fastest: nothing is looked for)."""
    on_undecodable: OnUndecodable = "dead-letter"
    """What becomes of a record that cannot be decoded: dead-letter (sent to a topic with its bytes, its place and the reason), fail (the flow stops at it), skip (counted, and told in the log)."""
    """What happens to a record that cannot be decoded: sent to the dead-letter topic, the flow fails, or it is left out and counted."""
    dead_letter_topic: str | None = None
    """The flow's name with `.dlq` behind it, unless said otherwise. Made if there is none."""
    compact_every_batches: int | None = None
    """How often small files are made one: 100 for Delta, never for others, unless said otherwise. 0: never."""
    compact_every_minutes: float | None = None
    """The same by the clock; counts from the start of the flow, and is looked at after each batch."""
    """The same by time; whichever comes first."""
    retention_hours: float = 168.0
    """How long files that compaction has replaced stay, for readers that began before it."""
    table_options: Mapping[str, str] = field(default_factory=dict)
    """Iceberg: properties of the catalog (SQLite beside the table by default), `catalog` and `identifier`. Delta: configuration of a new table."""

    def check(self) -> Iterator[Problem]:
        # Not `super()`: a slotted dataclass is another class than the one that the compiler saw.
        yield from FromTopics.check(self)
        yield from self._check_decoding()
        for name in self.metadata:
            if name not in METADATA:
                yield Problem("metadata", f"there is no {name!r}; there are {', '.join(METADATA)}")
        if "://" in self.table and not self.table.startswith("file://"):
            yield Problem("table", f"must be a directory, not {self.table}: mount the storage")
        if self.dead_letter_topic is not None and self.on_undecodable != "dead-letter":
            yield Problem(
                "dead_letter_topic", f'nothing is sent there with on_undecodable = "{self.on_undecodable}"'
            )
        for name in ("compact_every_batches", "compact_every_minutes", "retention_hours"):
            if (value := getattr(self, name)) is not None and value < 0:
                yield Problem(name, f"must not be negative, and is {value}")

    def _check_decoding(self) -> Iterator[Problem]:
        if self.schema is not None and self.schema_file is not None:
            yield Problem("schema_file", "there is a schema, too: give one of them")
        has_schema = self.schema is not None or self.schema_file is not None
        if self.format == "raw":
            if has_schema:
                yield Problem("schema", "raw values have none: they are bytes")
            if self.framing != "none":
                yield Problem("framing", "raw values are taken as they are, frame and all")
        if self.format == "json" and self.schema is not None:
            try:
                parse_columns(self.schema)
            except DdlError as error:
                yield Problem("schema", str(error))
        if self.registry is not None and (self.format != "avro" or self.framing != "registry"):
            yield Problem("registry", 'is for format = "avro" with framing = "registry" only')
        if self.format == "avro":
            if self.framing == "registry" and self.registry is None:
                yield Problem("", "registry is missing: framed Avro needs the schemas that values name")
            if self.framing == "none" and not has_schema:
                yield Problem("", "schema or schema_file is missing: plain Avro does not say its own")

    def topics_written(self) -> Iterable[str]:
        return () if self.dead_letter_topic is None else (self.dead_letter_topic,)

    def places_written(self) -> Iterable[str]:
        return (self.table,)


def start(context: JobContext, options: Options) -> StreamingQuery:
    """Begin, or go on where the checkpoint says."""
    if problems := list(options.check()):
        raise OptionsError(problems)
    ingest = Ingest(context, options)
    ingest.prepare()
    writer = options.stream(context).writeStream.queryName(context.name).foreachBatch(ingest.write)
    return writer.option("checkpointLocation", context.checkpoint).trigger(**context.trigger).start()


class Ingest:
    """What happens with each batch. Lives on the driver, and holds nothing that a restart would need."""

    def __init__(self, context: JobContext, options: Options) -> None:
        self.context = context
        self.options = options
        self.table = open_table(options.table_format, _table_settings(options))
        self.decoder = open_decoder(_decoder_settings(context, options))
        self.dead_letters = self._dead_letters()
        self._batches = 0
        self._compacted_at = time.monotonic()

    def _dead_letters(self) -> DeadLetters | None:
        if self.options.on_undecodable != "dead-letter" or self.options.format == "raw":
            return None
        from tidelog.pipeline.dead_letters import DeadLetters

        topic = self.options.dead_letter_topic or f"{self.context.name}.dlq"
        if self.options.reads_topic(topic):
            raise OptionsError(
                [Problem("dead_letter_topic", f"the flow reads {topic}, too: name another one")]
            )
        return DeadLetters(self.context, topic)

    def prepare(self) -> None:
        if self.dead_letters is not None:
            self.dead_letters.create_topic()

    def write(self, frame: DataFrame, batch: int) -> None:
        query = f"{self.context.name}/{_query_id(frame)}"
        if self.table.holds(query=query, batch=batch):
            logger.info("flow %s: batch %d is in the table already", self.context.name, batch)
            return
        reached("start")
        marked, staged, bad = self._stage(frame, query, batch)
        reached("staged")
        if bad:
            self._undecodable(marked, bad, staged)
        reached("dead letters sent")
        written = self.table.commit(staged)
        reached("committed")
        self.context.counters.add("rows", written.rows)
        self.context.counters.add("files", written.files)
        self._compact_if_due()
        reached("end")

    def _stage(self, frame: DataFrame, query: str, batch: int) -> tuple[DataFrame, Staged, int]:
        """Decode and write. Whether records were wrong, or had something new, is seen on the way, so that most batches are read once."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        self.decoder.prepare(frame)
        for _ in range(PASSES_MAX):
            seen = Observation()
            marked = self.decoder.decode(frame)
            bad = f.count_if(f.col(PROBLEM).isNotNull())
            watched = {_BAD: bad, _READ: f.count(f.lit(1)), **self.decoder.observed()}
            observed = marked.observe(seen, *(each.alias(name) for name, each in watched.items()))
            good = observed.where(f.col(PROBLEM).isNull())
            staged = self.table.stage(self._columns(good), query=query, batch=batch)
            try:
                is_known = not self.decoder.learn(frame, seen.get)
            except BaseException:
                self.table.discard(staged)
                raise
            if is_known:
                self.context.batch_rows.note(batch, seen.get[_READ])
                return marked, staged, seen.get[_BAD]
            self.table.discard(staged)
        raise DecodingError(
            f"flow {self.context.name}: the schema of batch {batch} was not found out in {PASSES_MAX} passes"
        )

    def _columns(self, decoded: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        data = decoded.schema[DATA].dataType
        names = data.fieldNames() if hasattr(data, "fieldNames") else []
        metadata = self.options.metadata or (() if names else ("offset",))  # a table has at least one column
        return decoded.select(
            *(f.col(name).alias(f"_{name}") for name in metadata),
            *(f.col(DATA).getField(name).alias(name) for name in names),
        )

    def _undecodable(self, marked: DataFrame, bad: int, staged: Staged) -> None:
        counters = self.context.counters
        if self.dead_letters is not None:
            self.dead_letters.send(marked, self.decoder.explain, query=staged.query, batch=staged.batch)
            counters.add("dead_lettered", bad)
        elif self.options.on_undecodable == "skip":
            logger.warning(
                "flow %s: %d records of batch %d cannot be decoded and are skipped: %s",
                self.context.name, bad, staged.batch, _first(marked, self.decoder),
            )  # fmt: skip
            counters.add("skipped", bad)
        else:
            self.table.discard(staged)
            raise DecodingError(
                f"flow {self.context.name}: {bad} records of batch {staged.batch} cannot be decoded, such as {_first(marked, self.decoder)}; "
                'mend them, or have them sent to a topic with on_undecodable = "dead-letter"'
            )

    def _compact_if_due(self) -> None:
        self._batches += 1
        every = self.options.compact_every_batches
        if every is None and self.options.compact_every_minutes is None:
            every = COMPACT_DELTA_BATCHES if self.options.table_format == "delta" else 0
        minutes = self.options.compact_every_minutes
        is_late = bool(minutes) and time.monotonic() - self._compacted_at >= 60 * (minutes or 0)
        if not is_late and not (every and self._batches % every == 0):
            return
        self.table.compact()
        self._compacted_at = time.monotonic()
        self.context.counters.add("compactions")


def reached(step: str) -> None:
    """Where a batch is; tests stop it here."""


def _query_id(frame: DataFrame) -> str:
    """Of the checkpoint: it stays the same over restarts, and a new checkpoint has a new one, whose batches count anew."""
    found = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if found is None:
        raise RuntimeError(f"Spark does not say which query this is ({QUERY_ID})")
    return found


def _first(marked: DataFrame, decoder: Decoder) -> str:
    row: Any = marked.where(marked[PROBLEM].isNotNull()).first()
    if row is None:
        return "none that is still there"
    value = None if row["value"] is None else bytes(row["value"])
    why = decoder.explain(value, row[PROBLEM])
    return f"{row['topic']}-{row['partition']} at offset {row['offset']}: {why}"


def _table_settings(options: Options) -> TableSettings:
    return TableSettings(
        path=options.table,
        partition_by=options.partition_by,
        schema_changes=options.schema_changes,
        retention_hours=options.retention_hours,
        options=options.table_options,
    )


def _decoder_settings(context: JobContext, options: Options) -> DecoderSettings:
    return DecoderSettings(
        flow=context.name,
        format=options.format,
        schema=options.schema if options.schema_file is None else _read(options.schema_file),
        framing=options.framing,
        registry=options.registry,
        schema_changes=options.schema_changes,
        state=context.state,
    )


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError as error:
        raise DecodingError(f"the schema {path} cannot be read: {error.strerror}") from None
