"""What a micro-batch knows of itself on the driver: its query, where it ends, and the watermarks, as Spark's own checkpoint has them.

The checkpoint is the only word that stays the same when a batch is run again. Reads it and never writes it. A checkpoint that is not on a file system of this
machine (`s3a://…`, `hdfs://…`) is not looked into: what could be told then is empty, and whoever asks must do without.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidelog.spark.offsets import Offsets
from tidelog.spark.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SOURCE: Final = "StreamingDataSourceV2ScanRelation"
"""What Spark calls a source in the plan of a batch."""


def query_id(spark: SparkSession) -> str:
    """Within `foreachBatch`: the id of the query, which is born with its checkpoint and gone with it."""
    found = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise RuntimeError(
            "Spark does not say which query this batch belongs to: not called within foreachBatch?"
        )
    return str(found)


@dataclass(frozen=True, slots=True)
class Seen:
    """What Spark knows of the batch that is being written, after an action on it."""

    watermark_ms: int
    """Behind which rows of this batch were late: that of the batch before."""
    metrics: Mapping[str, Any]
    """Numbers and texts that were observed, by name."""


def seen(spark: SparkSession, query: str, observation: str) -> Seen:
    """Within `foreachBatch`, after the batch's rows were computed. Spark tells it in public only when the batch is committed, which is too late to be written with it:
    this goes through the running query in the JVM."""
    execution = _execution(spark, query)
    before = execution.prevOffsetSeqMetadata()
    row = execution.observedMetrics().get(observation).get()
    names = list(row.schema().fieldNames())
    return Seen(
        int(before.get().batchWatermarkMs()) if before.isDefined() else 0,
        {name: row.get(number) for number, name in enumerate(names)},
    )


def records_of(spark: SparkSession, query: str) -> list[OffsetRange]:
    """Within `foreachBatch`: what the batch has read of its topics. By the running query, too: where the first batch begins, a checkpoint does not have to say."""
    leaves = _execution(spark, query).logical().collectLeaves()
    found: list[OffsetRange] = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName() != _SOURCE:
            continue  # a batch that only closes windows reads nothing
        start, end = (Offsets.from_json(each.get().json()) for each in (leaf.startOffset(), leaf.endOffset()))
        found += [
            OffsetRange(tp, first, last) for tp, (first, last) in end.since(start).items() if first < last
        ]
    return found


def _execution(spark: SparkSession, query: str) -> Any:
    streams: Any = spark._jsparkSession
    return streams.streams().get(query).streamingQuery().lastExecution()


def local_path(checkpoint: str) -> str | None:
    if checkpoint.startswith("file:"):
        return re.sub(r"^file:(//)?(?=/)", "", checkpoint)
    return None if re.match(r"[a-z][a-z0-9+.-]*:", checkpoint, re.IGNORECASE) else checkpoint


def stored_query_id(checkpoint: str) -> str | None:
    """None: there is no checkpoint yet, or it cannot be looked into."""
    path = local_path(checkpoint)
    if path is None or not os.path.exists(os.path.join(path, "metadata")):
        return None
    with open(os.path.join(path, "metadata"), encoding="utf-8") as file:
        return str(json.load(file)["id"])


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch as the checkpoint has it."""

    watermark_ms: int
    offsets: str
    """Of the only source, as text that is the same whenever the batch is run; empty: not known."""

    @property
    def end(self) -> Offsets | None:
        return Offsets.from_json(self.offsets) if self.offsets else None


def planned(checkpoint: str, number: int) -> Planned | None:
    """None: there was no such batch, or the checkpoint cannot be looked into."""
    path = local_path(checkpoint)
    if path is None:
        return None
    try:
        with open(os.path.join(path, "offsets", str(number)), encoding="utf-8") as file:
            return parse_planned(file.read())
    except FileNotFoundError:
        return None


def parse_planned(text: str) -> Planned:
    """A line with the version, a line of metadata, a line for each source."""
    lines = text.splitlines()
    metadata: Mapping[str, Any] = json.loads(lines[1]) if len(lines) > 1 and lines[1].strip() else {}
    offsets = lines[2] if len(lines) == 3 and lines[2].startswith("{") else ""
    return Planned(int(metadata.get("batchWatermarkMs", 0)), offsets)
