"""*aggregate*: numbers of a topic's records by windows of event time and by groups, into a table and back to a topic.

Spark keeps the sums of open windows and closes them by the watermark. Rows that come too late for their windows are left out, and every one of them is counted (`windows`). A table
has each batch exactly once, by the same commit as its rows. A topic gets each result at least once: a batch that is run again after a crash may send its results again, and they are the same.
Results do not say which records could not be decoded: a batch that has such is read again, for the dead letters, before its results are written.
The results of a batch are in the driver's memory: in mode update at most one for each group and window that a batch touches, in mode append those of the windows that it closes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from tidelog.pipeline.aggregation import (
    AGGREGATE,
    FUNCTIONS,
    RECORD_TIME,
    SEEN,
    Aggregation,
    aggregated,
    alias_of,
    marked,
    plain,
    type_of,
)
from tidelog.pipeline.arrow_types import arrow_schema, with_schema
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.databases_ledger import Batch
from tidelog.pipeline.dead_letters import open_dead_letters
from tidelog.pipeline.decoding import Decoder
from tidelog.pipeline.decoding_options import FromValues, ready
from tidelog.pipeline.latest import DELETED
from tidelog.pipeline.microbatches import records_of, seen
from tidelog.pipeline.options import PathText, Problem
from tidelog.pipeline.replay_source import ReplaySource
from tidelog.pipeline.state_flow import IntoState, StateFlow
from tidelog.pipeline.totals import Totals
from tidelog.pipeline.undecodable import first_of, refusal
from tidelog.pipeline.windows import Windows, duration_ms, late

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from tidelog.pipeline.tables.delta_merge import DeltaState

logger = logging.getLogger(__name__)

OFFSETS_PER_BATCH: Final = 200_000
_LATE: Final = "late rows"
_UNDECODABLE: Final = "undecodable"
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(IntoState):
    format: Literal["json", "avro", "raw"] = "json"
    """Of the values: json, avro, or raw (columns key and value as they are)."""
    schema: str | None = None
    """Columns of the values, as in SQL: those that are needed here. Of plain Avro, Avro's JSON."""
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
    max_offsets_per_batch: int | None = OFFSETS_PER_BATCH

    @property
    def windows(self) -> Windows:
        size = duration_ms(self.window)
        return Windows(size, duration_ms(self.slide) if self.slide else size)

    @property
    def aggregation(self) -> Aggregation:
        return Aggregation(
            columns=self.columns(),
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
        yield from FromValues.check(self)
        yield from self.check_settled()
        if not self.table and not self.to_topic:
            yield Problem("", "say where the results go: table, to_topic, or both")
        yield from self._check_times()
        if not self.aggregates:
            yield Problem("aggregates", "say what to compute")
        if (columns := self.columns_known()) is not None:
            yield from self._check_columns(columns)

    def _check_columns(self, columns: StructType) -> Iterator[Problem]:
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
        return tuple(each for each in (self.to_topic, self.dead_letter_topic) if each is not None)

    def places_written(self) -> Iterable[str]:
        return () if self.table is None else (self.table,)


def start(context: JobContext, options: Options) -> StreamingQuery:
    options = ready(options)
    flow = StateFlow(context, options)
    decoder = options.decoder(context, columns=options.columns())
    results = aggregated(flow.stream(), options.aggregation, decoder)
    return context.start(results, _Writer(context, options, flow, decoder, results.schema), mode=options.mode)


class _Writer:
    """One batch of results after the other."""

    def __init__(
        self, context: JobContext, options: Options, flow: StateFlow, decoder: Decoder, schema: StructType
    ) -> None:
        self._context = context
        self._options = options
        self._flow = flow
        self._decoder = decoder
        self._schema = arrow_schema(schema)
        self._totals = Totals(context.state, context.counters)
        self._letters = open_dead_letters(context, options)
        self._table = self._open_table()

    def _open_table(self) -> DeltaState | None:
        if self._options.table is None:
            return None
        from tidelog.pipeline.tables.delta_merge import DeltaState

        groups = [alias_of(name) for name in self._options.group_by]
        table = DeltaState(
            self._options.table, self._schema, ["window_start", "window_end", *groups], nullable=groups
        )
        table.prepare(is_rebuild=self._flow.is_rebuild)
        return table

    def __call__(self, results: DataFrame, number: int) -> None:
        batch = self._flow.batch(number)
        rows = with_schema(results.toArrow(), self._schema)
        counted = self._counted(batch)
        undecodable = counted[_UNDECODABLE]
        is_sent = bool(undecodable) or self._options.to_topic is not None
        if is_sent and not (self._table is not None and self._table.holds(batch)):
            if undecodable:
                self._see_to(undecodable, batch)
            if self._options.to_topic is not None:
                self._send(rows)
        if self._table is not None:
            import pyarrow as pa

            self._table.apply(batch, rows.append_column(DELETED, pa.repeat(pa.scalar(False), rows.num_rows)))
        self._totals.add(batch.checkpoint, number, self._shown(counted, rows.num_rows))
        self._flow.is_written(batch)

    def _counted(self, batch: Batch) -> dict[str, int]:
        told = seen(self._context.spark, batch.checkpoint, SEEN)
        found = late(told.watermark_ms, told.metrics["first_ends"], told.metrics["last_ends"])
        if not found.is_exact:
            logger.warning(
                "flow %s: batch %d has rows of so many windows that the count of late ones may be off",
                batch.flow,
                batch.number,
            )
        undecodable = int(told.metrics["undecodable"] or 0)
        return {_LATE: found.rows, "partly late rows": found.partly, _UNDECODABLE: undecodable}

    def _shown(self, counted: Mapping[str, int], results: int) -> dict[str, int]:
        names = {_UNDECODABLE: "dead_lettered"} if self._letters is not None else {}
        shown = {names.get(name, name): number for name, number in counted.items() if number or name == _LATE}
        return {**shown, "results": results}

    def _see_to(self, undecodable: int, batch: Batch) -> None:
        """Before the results are written, so that no crash loses a dead letter."""
        if self._options.on_undecodable == "skip":
            logger.warning(
                "flow %s: %d records of batch %d cannot be decoded and are skipped",
                batch.flow,
                undecodable,
                batch.number,
            )
            return
        records, explain = self._marked(batch), self._decoder.explain
        if self._letters is None:
            raise refusal(batch.flow, undecodable, batch.number, first_of(records, explain))
        self._letters.send(records, explain, query=batch.checkpoint, batch=batch.number)

    def _marked(self, batch: Batch) -> DataFrame:
        """The batch's records once more, from the log."""
        options = {
            **self._context.kafka_options(),
            "failOnDataLoss": str(self._options.fail_on_data_loss).lower(),
        }
        read = records_of(self._context.spark, batch.checkpoint)
        source = ReplaySource(topics=tuple({each.tp.topic for each in read}), path=None, options=options)
        return marked(source.read(self._context.spark, read), self._options.aggregation, self._decoder)

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
