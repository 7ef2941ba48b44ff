"""*aggregate*: numbers of a topic's records by windows of event time and by groups, into a table and back to a topic.

Spark keeps the sums of open windows and closes them by the watermark. Rows that come too late for their windows are left out, and every one of them is counted (`windows`). A table
has each batch exactly once, by the same commit as its rows. A topic gets each result at least once: a batch that is run again after a crash may send its results again, and they are the same.
The results of a batch are in the driver's memory: in mode update at most one for each group and window that a batch touches, in mode append those of the windows that it closes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from tidelog.pipeline import rebuild
from tidelog.pipeline.aggregation import (
    AGGREGATE,
    FUNCTIONS,
    RECORD_TIME,
    SEEN,
    Aggregation,
    aggregated,
    alias_of,
    plain,
    type_of,
)
from tidelog.pipeline.arrow_types import arrow_schema, with_schema
from tidelog.pipeline.context import FromTopics, JobContext
from tidelog.pipeline.databases_ledger import Batch
from tidelog.pipeline.ddl import DdlError, parse_columns
from tidelog.pipeline.decoding import DecodingError, Framing
from tidelog.pipeline.latest import DELETED
from tidelog.pipeline.microbatches import planned, query_id, seen
from tidelog.pipeline.options import PathText, Problem
from tidelog.pipeline.totals import Totals
from tidelog.pipeline.windows import Windows, duration_ms, late

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from tidelog.pipeline.tables.delta_merge import DeltaState

logger = logging.getLogger(__name__)

OFFSETS_PER_BATCH: Final = 200_000
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(FromTopics):
    schema: str
    """Columns of the JSON values, as in SQL: those that are needed here."""
    framing: Framing = "none"
    """registry: values begin with a zero byte and the four-byte number of their schema."""
    event_time: str = RECORD_TIME
    """The column that says when something happened: a TIMESTAMP, or a BIGINT in milliseconds. Otherwise the record's own timestamp."""
    window: str
    """How long a window is: 1 minute, 1 hour."""
    slide: str | None = None
    """How far apart windows begin, if they overlap."""
    watermark: str = "10 minutes"
    """How much later than the latest event so far another one may come."""
    group_by: tuple[str, ...] = ()
    """Columns that results are told apart by, beside their window; null is a group, too."""
    aggregates: Mapping[str, str] = field(default_factory=lambda: {"count": "count"})
    """Columns of the result: `{orders = "count", revenue = "sum(total)", customers = "approx_distinct(customer)"}`."""
    where: str | None = None
    """A condition in SQL that records must meet to count."""
    mode: Literal["update", "append"] = "update"
    """update: results as they change; append: once, when their window is closed."""
    table: PathText | None = None
    """Path of a Delta table."""
    to_topic: str | None = None
    """Results as JSON, with the groups as key; at least once."""
    on_undecodable: Literal["skip", "fail"] = "skip"
    """Records that are no JSON of the schema, or have no event time, are counted and left out, or stop the flow."""
    rebuild: bool = False
    """Compute the table anew from the first offset; the old results are replaced, all at once, when the new ones have caught up."""
    take_over: bool = False
    """Go on with a table that was written under another checkpoint."""
    max_offsets_per_batch: int | None = OFFSETS_PER_BATCH

    @property
    def windows(self) -> Windows:
        size = duration_ms(self.window)
        return Windows(size, duration_ms(self.slide) if self.slide else size)

    @property
    def aggregation(self) -> Aggregation:
        return Aggregation(
            schema=self.schema,
            framing=self.framing,
            event_time=self.event_time,
            window=self.window,
            slide=self.slide,
            windows=self.windows,
            watermark=self.watermark,
            group_by=self.group_by,
            aggregates=self.aggregates,
            where=self.where,
        )

    def check(self) -> Iterator[Problem]:
        yield from FromTopics.check(self)
        if not self.table and not self.to_topic:
            yield Problem("", "say where the results go: table, to_topic, or both")
        yield from self._check_times()
        try:
            columns = parse_columns(self.schema)
        except DdlError as error:
            yield Problem("schema", str(error))
            return
        if self.event_time != RECORD_TIME:
            yield from self._check_column("event_time", self.event_time, columns, ("timestamp", "bigint"))
        for name in self.group_by:
            yield from self._check_column("group_by", name, columns, None)
        names = [*(alias_of(name) for name in self.group_by), *self.aggregates]
        for name in {
            each for each in names if names.count(each) > 1 or each in ("window_start", "window_end")
        }:
            yield Problem("aggregates", f"the result has a column {name} already")
        for name, text in self.aggregates.items():
            yield from self._check_aggregate(name, text, columns)
        if not self.aggregates:
            yield Problem("aggregates", "say what to compute")

    def _check_times(self) -> Iterator[Problem]:
        found = {}
        for name in ("window", "slide", "watermark"):
            if (text := getattr(self, name)) is None:
                continue
            try:
                found[name] = duration_ms(text)
            except ValueError as error:
                yield Problem(name, str(error))
        if found.get("window") == 0 or found.get("slide") == 0:
            yield Problem("window", "must be longer than nothing")
        elif "window" in found and found.get("slide", 0) > found["window"]:
            yield Problem(
                "slide",
                f"is longer than the window of {self.window}: what happens in between would be in none",
            )

    def _check_aggregate(self, name: str, text: str, columns: StructType) -> Iterator[Problem]:
        key = f"aggregates.{name}"
        match = AGGREGATE.fullmatch(text.strip())
        if match is None or match[1] not in FUNCTIONS:
            yield Problem(
                key, f"must be {', '.join(f'{each}(column)' for each in FUNCTIONS)}, or count, not {text!r}"
            )
        elif match[2]:
            kinds = _NUMBERS if match[1] in ("sum", "avg") else None
            yield from self._check_column(key, match[2], columns, kinds)
        elif match[1] != "count":
            yield Problem(key, f"needs a column, as in {match[1]}({columns.names[0]})")

    def _check_column(
        self, key: str, path: str, columns: StructType, kinds: tuple[str, ...] | None
    ) -> Iterator[Problem]:
        kind = type_of(path, columns)
        if kind is None:
            yield Problem(key, f"the schema has no {path}; it has {', '.join(columns.names)}")
        elif kinds is not None and not kind.simpleString().startswith(kinds):
            yield Problem(key, f"{path} is {kind.simpleString()}, and must be one of {', '.join(kinds)}")

    def topics_written(self) -> Iterable[str]:
        return () if self.to_topic is None else (self.to_topic,)

    def places_written(self) -> Iterable[str]:
        return () if self.table is None else (self.table,)


def start(context: JobContext, options: Options) -> StreamingQuery:
    plan = rebuild.begun(context.state, context.checkpoint)
    if options.rebuild and plan is None:
        plan = rebuild.begin_from(context.state, context.checkpoint, options.source_options(context))
    chosen = options if plan is None else replace(options, start="earliest")
    results = aggregated(chosen.stream(context), options.aggregation, flow=context.name, state=context.state)
    writer = _Writer(context, options, results.schema, plan)
    return (
        results.writeStream.queryName(context.name)
        .outputMode(options.mode)
        .foreachBatch(writer)
        .option("checkpointLocation", context.checkpoint)
        .trigger(**context.trigger)
        .start()
    )


class _Writer:
    """One batch of results after the other."""

    def __init__(
        self, context: JobContext, options: Options, schema: StructType, plan: rebuild.Plan | None
    ) -> None:
        self._context = context
        self._options = options
        self._plan = plan
        self._takes_over = options.take_over
        self._schema = arrow_schema(schema)
        self._totals = Totals(context.state, context.counters)
        self._table = self._open_table()

    def _open_table(self) -> DeltaState | None:
        if self._options.table is None:
            return None
        from tidelog.pipeline.tables.delta_merge import DeltaState

        groups = [alias_of(name) for name in self._options.group_by]
        table = DeltaState(
            self._options.table, self._schema, ["window_start", "window_end", *groups], nullable=groups
        )
        table.prepare(is_rebuild=self._plan is not None)
        return table

    def __call__(self, results: DataFrame, number: int) -> None:
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
        rows = with_schema(results.toArrow(), self._schema)
        counted = self._counted(batch)
        if self._options.to_topic is not None and not (self._table is not None and self._table.holds(batch)):
            self._send(rows)
        if self._table is not None:
            import pyarrow as pa

            self._table.apply(batch, rows.append_column(DELETED, pa.repeat(pa.scalar(False), rows.num_rows)))
        self._totals.add(batch.checkpoint, number, {**counted, "results": rows.num_rows})
        self._takes_over = False
        if self._plan is not None and batch.is_caught_up:
            rebuild.is_done(self._context.state)
            self._plan = None

    def _counted(self, batch: Batch) -> dict[str, int]:
        told = seen(self._context.spark, batch.checkpoint, SEEN)
        undecodable = int(told.metrics["undecodable"] or 0)
        if undecodable and self._options.on_undecodable == "fail":
            raise DecodingError(
                f"flow {self._context.name}: {undecodable} records of batch {batch.number} are no JSON of the schema or have no event time; "
                'mend them, or leave them out with on_undecodable = "skip"; an ingest flow of the same topic shows which they are'
            )
        found = late(told.watermark_ms, told.metrics["first_ends"], told.metrics["last_ends"])
        if not found.is_exact:
            logger.warning(
                "flow %s: batch %d has rows of so many windows that the count of late ones may be off",
                batch.flow,
                batch.number,
            )
        numbers = {"late rows": found.rows, "partly late rows": found.partly, "undecodable": undecodable}
        return {name: number for name, number in numbers.items() if number or name == "late rows"}

    def _send(self, rows: pa.Table) -> None:
        from pyspark.sql import functions as F

        if not rows.num_rows:
            return
        frame = self._context.spark.createDataFrame(rows)
        groups = [plain(alias_of(name)) for name in self._options.group_by]
        options = {"ignoreNullFields": "false"}
        key = F.to_json(F.struct(*groups), options) if groups else F.lit(None).cast("string")
        value = F.to_json(F.struct(*(plain(name) for name in rows.schema.names)), options)
        (
            frame.select(key.alias("key"), value.alias("value"))
            .write.format("tidelog")
            .options(**self._context.kafka_options(), topic=self._options.to_topic or "")
            .mode("append")
            .save()
        )
