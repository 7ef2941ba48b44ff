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
from typing import TYPE_CHECKING, Final, Literal

from tidelog.pipeline.context import JobContext
from tidelog.pipeline.dead_letters import open_dead_letters
from tidelog.pipeline.decoding import DATA, PASSES_MAX, PROBLEM, DecodingError
from tidelog.pipeline.decoding_options import FromValues, ready
from tidelog.pipeline.microbatches import query_id
from tidelog.pipeline.options import PathText, Problem
from tidelog.pipeline.tables.table import SchemaChanges, Staged, TableFormat, TableSettings, open_table
from tidelog.pipeline.undecodable import first_of, refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

METADATA: Final = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "headers")
COMPACT_DELTA_BATCHES: Final = 100
_BAD: Final = "tidelog_bad"
_READ: Final = "tidelog_read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(FromValues):
    table: PathText
    """A directory. Driver and executors must see it under the same name."""
    table_format: TableFormat = "delta"
    """How the table is kept. Delta and Iceberg have transactions; parquet is a directory of files that any reader can list."""
    format: Literal["json", "avro", "raw"] = "json"
    """Of the values: json, avro, or raw (columns key and value as they are)."""
    schema: str | None = None
    """Of the values: columns as in SQL for json, Avro's JSON for avro. Without one, json's is found out from the first batch and kept, and framed Avro's is that of the registry."""
    metadata: tuple[str, ...] = ("topic", "partition", "offset", "timestamp")
    """What else of a record becomes a column, with an underscore before its name: topic, partition, offset, timestamp, timestampType, key, headers."""
    partition_by: tuple[str, ...] = ()
    """Columns by whose values files are kept apart: texts, whole numbers, dates or booleans with few values. Cannot be changed once the table is there."""
    schema_changes: SchemaChanges = "add"
    """When records have new fields: add columns, fail, or ignore them (which is the fastest: nothing is looked for)."""
    compact_every_batches: int | None = None
    """How often small files are made one: 100 for Delta, never for others, unless said otherwise. 0: never."""
    compact_every_minutes: float | None = None
    """The same by the clock; counts from the start of the flow, and is looked at after each batch."""
    retention_hours: float = 168.0
    """How long files that compaction has replaced stay, for readers that began before it."""
    table_options: Mapping[str, str] = field(default_factory=dict)
    """Iceberg: properties of the catalog (SQLite beside the table by default), `catalog` and `identifier`. Delta: configuration of a new table."""

    def check(self) -> Iterator[Problem]:
        yield from FromValues.check(self)
        if self.is_avro and self.schema is not None and not self.is_by_avsc:
            yield Problem(
                "schema", "of Avro is Avro's JSON here: columns that are added later keep their types"
            )
        for name in self.metadata:
            if name not in METADATA:
                yield Problem("metadata", f"there is no {name!r}; there are {', '.join(METADATA)}")
        if "://" in self.table and not self.table.startswith("file://"):
            yield Problem("table", f"must be a directory, not {self.table}: mount the storage")
        for name in ("compact_every_batches", "compact_every_minutes", "retention_hours"):
            if (value := getattr(self, name)) is not None and value < 0:
                yield Problem(name, f"must not be negative, and is {value}")

    def places_written(self) -> Iterable[str]:
        return (self.table,)


def start(context: JobContext, options: Options) -> StreamingQuery:
    """Begin, or go on where the checkpoint says."""
    ingest = Ingest(context, ready(options))
    return context.start(options.stream(context), ingest.write)


class Ingest:
    """What happens with each batch. Lives on the driver, and holds nothing that a restart would need."""

    def __init__(self, context: JobContext, options: Options) -> None:
        self.context = context
        self.options = options
        self.table = open_table(options.table_format, _table_settings(options))
        self.decoder = options.decoder(context, schema_changes=options.schema_changes)
        self.dead_letters = None if options.format == "raw" else open_dead_letters(context, options)
        self._batches = 0
        self._compacted_at = time.monotonic()

    def write(self, frame: DataFrame, batch: int) -> None:
        query = f"{self.context.name}/{query_id(frame.sparkSession)}"
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
                self.context.name, bad, staged.batch, first_of(marked, self.decoder.explain),
            )  # fmt: skip
            counters.add("skipped", bad)
        else:
            self.table.discard(staged)
            raise refusal(self.context.name, bad, staged.batch, first_of(marked, self.decoder.explain))

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


def _table_settings(options: Options) -> TableSettings:
    return TableSettings(
        path=options.table,
        partition_by=options.partition_by,
        schema_changes=options.schema_changes,
        retention_hours=options.retention_hours,
        options=options.table_options,
    )
