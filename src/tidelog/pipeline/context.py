"""What a job is given: a Spark session, where the log is, where its checkpoint goes, and counters that a person can watch."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidelog.pipeline.options import Options, Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCHES_REMEMBERED: Final = 100
"""More than there can be between two looks at a query."""


class Counters:
    """Numbers of a flow that only grow (dead letters, late rows, …), from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._numbers[name] = self._numbers.get(name, 0) + count

    def now(self) -> dict[str, int]:
        with self._lock:
            return dict(self._numbers)


class BatchRows:
    """How many records the last batches had, told by a job that reads some of them more than once: Spark counts them as often as they are read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[int, int] = {}

    def note(self, batch: int, rows: int) -> None:
        with self._lock:
            self._rows[batch] = rows
            for old in sorted(self._rows)[:-BATCHES_REMEMBERED]:
                del self._rows[old]

    def of(self, batch: int) -> int | None:
        """None: nobody told."""
        with self._lock:
            return self._rows.get(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    spark: SparkSession
    name: str
    """Of the flow: the query is called so, too."""
    brokers: str
    state: str
    """A directory of this flow's own, for its checkpoint and whatever else must outlive the process."""
    checkpoints: str = ""
    """A directory for the checkpoint alone, where it is elsewhere: executors on other machines must reach it."""
    trigger: Mapping[str, Any] = field(default_factory=lambda: {"processingTime": "1 second"})
    """Arguments of `DataStreamWriter.trigger`."""
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings of the clients, under Kafka's names, for every read and write of the flow."""
    counters: Counters = field(default_factory=Counters)
    batch_rows: BatchRows = field(default_factory=BatchRows)

    @property
    def checkpoint(self) -> str:
        return os.path.join(self.checkpoints or self.state, "checkpoint")

    def kafka_options(self) -> dict[str, str]:
        """For `format("tidelog")`, reading and writing."""
        return {
            "kafka.bootstrap.servers": self.brokers,
            **{f"kafka.{name}": value for name, value in self.client.items()},
        }

    def start(
        self, frame: DataFrame, write: Callable[[DataFrame, int], None], *, mode: str = "append"
    ) -> StreamingQuery:
        """A query of the flow's name that hands one batch after the other to `write`, from the flow's checkpoint on."""
        writer = frame.writeStream.queryName(self.name).outputMode(mode).foreachBatch(write)
        return writer.option("checkpointLocation", self.checkpoint).trigger(**self.trigger).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class FromTopics(Options):
    """Options of jobs that read topics."""

    topics: tuple[str, ...] = ()
    """What is read. Either this or `pattern`."""
    pattern: str | None = None
    """A regular expression for whole names of topics. Topics and partitions that come later are read from their beginning."""
    start: str = "earliest"
    """earliest, latest, or offsets as `{"orders": {"0": 23}}`; counts only where there is no checkpoint."""
    max_offsets_per_batch: int | None = None
    """A batch reads no more records than about this, over all partitions."""
    max_bytes_per_batch: int | None = None
    """A batch reads no more bytes than about this."""
    fail_on_data_loss: bool = True
    """Fail, with the reason, when records are gone before they were read (retention, a topic made anew, a log cut short). false: go on with what is there, and say in the status and in Spark's log without what."""
    group: str | None = None
    """A group under whose name the flow says how far it is, for tools that show lag."""

    def check(self) -> Iterator[Problem]:
        if bool(self.topics) == bool(self.pattern):
            yield Problem("topics", "say what to read by either topics or pattern")
        for name in ("max_offsets_per_batch", "max_bytes_per_batch"):
            if (limit := getattr(self, name)) is not None and limit < 1:
                yield Problem(name, f"must be at least 1, not {limit}")
        if self.pattern:
            try:
                re.compile(self.pattern)
            except re.error as error:
                yield Problem("pattern", f"is no regular expression: {error}")

    def reads_topic(self, name: str) -> bool:
        return name in self.topics if self.topics else re.fullmatch(self.pattern or "", name) is not None

    def source_options(self, context: JobContext, **more: str) -> dict[str, str]:
        """For a stream of `format("tidelog")`."""
        return {
            **context.kafka_options(),
            "startingOffsets": self.start,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "includeHeaders": "true",
            **(
                {"subscribe": ",".join(self.topics)}
                if self.topics
                else {"subscribePattern": self.pattern or ""}
            ),
            **(
                {"maxOffsetsPerTrigger": str(self.max_offsets_per_batch)}
                if self.max_offsets_per_batch
                else {}
            ),
            **({"maxBytesPerTrigger": str(self.max_bytes_per_batch)} if self.max_bytes_per_batch else {}),
            **({"commitGroup": self.group} if self.group else {}),
            **more,
        }

    def stream(self, context: JobContext, **more: str) -> DataFrame:
        """The topics as a stream, with all columns of the source and its headers."""
        chosen = self.source_options(context, **more)
        return context.spark.readStream.format("tidelog").options(**chosen).load()
