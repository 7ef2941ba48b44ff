"""The audit's work on Spark: segments looked at in tasks, their batches checked in order, replicas compared.

What is wrong with a batch by itself is found where its bytes are read (`inspect`); what batches owe each other, where all of a replica's come together in order (`check`); what replicas owe each other, by a
join of their batches. Results are small: findings and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.pipeline.audit_checks import (
    BatchRow,
    Expected,
    Finding,
    PartitionCheck,
    Side,
    common_range,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.spark.segments.facts import ReplicaFacts

ReplicaKey = tuple[str, str, int]
"""Data directory, topic, partition."""

_WORK: Final = "replica string, topic string, partition int, path string, size long, is_sealed boolean, may_be_torn boolean, base_offset long, end_offset long"
_PLACE: Final = "replica string, topic string, partition int"
_BATCH: Final = (
    "segment string, position long, size long, base_offset long, last_offset long, records long, leader_epoch int, producer_id long, producer_epoch int,"
    " base_sequence int, base_timestamp long, max_timestamp long, crc long, codec int, is_transactional boolean, is_control boolean, has_delete_horizon boolean"
)
FINDING: Final = "kind string, severity string, replica string, topic string, partition int, segment string, position long, first_offset long, end_offset long, what string"
_SCANNED: Final = (
    f"{_PLACE}, {_BATCH}, kind string, severity string, first_offset long, end_offset long, what string"
)
_PAIRS: Final = "topic string, partition int, first string, other string, start long, end long"
_ROWS_MAX: Final = 50_000


def key_of(facts: ReplicaFacts) -> ReplicaKey:
    return facts.data_dir, facts.tp.topic, facts.tp.partition


def scan(spark: SparkSession, replicas: Sequence[ReplicaFacts], *, tasks: int) -> DataFrame:
    """A row for each batch (`kind` is null), and one for each finding about bytes and indexes."""
    works = [
        (
            *key_of(facts),
            each.stretch.path,
            each.stretch.size,
            each.stretch.is_sealed,
            each.stretch.may_be_torn,
            each.base_offset,
            each.end_offset,
        )
        for facts in replicas
        for each in facts.segments
        if each.stretch.size
    ]
    # Large ones first: a late large one would be waited for alone.
    works.sort(key=lambda work: -work[4])
    frame = spark.createDataFrame(works, _WORK).repartition(max(1, min(tasks, len(works))))
    return frame.mapInArrow(_inspect, _SCANNED)


def _inspect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from tidelog.client.metadata import TopicPartition
    from tidelog.spark.segments.inspection import inspect_segment
    from tidelog.spark.segments.plan import Stretch

    for batch in batches:
        for work in batch.to_pylist():
            tp = TopicPartition(work["topic"], work["partition"])
            size, end = work["size"], (1 << 63) - 1
            stretch = Stretch(
                tp, work["path"], size, work["is_sealed"], 0, size, 0, end, may_be_torn=work["may_be_torn"]
            )
            found = inspect_segment(stretch, base_offset=work["base_offset"], end_offset=work["end_offset"])
            place = {name: work[name] for name in ("replica", "topic", "partition")}
            findings = [
                {
                    "kind": "damage",
                    "severity": "error",
                    "segment": harm.path,
                    "position": harm.position,
                    "first_offset": harm.first_offset,
                    "end_offset": harm.end_offset,
                    "what": f"{harm.length} bytes: {harm.problem}",
                    **place,
                }
                for harm in found.harms
            ] + [
                {
                    "kind": "indexes",
                    "severity": "error",
                    "segment": problem.path,
                    "position": problem.position,
                    "first_offset": problem.offset,
                    "end_offset": None,
                    "what": f"{problem.problem}; the file can be removed, a broker makes it anew from the log",
                    **place,
                }
                for problem in found.index_problems
            ]
            schema = _arrow_schema(_SCANNED)
            yield _padded(pa.Table.from_batches([found.batches]), schema, place)
            if findings:
                yield pa.RecordBatch.from_pylist(findings, schema=schema)


def _padded(table: pa.Table, schema: pa.Schema, place: Mapping[str, Any]) -> pa.RecordBatch:
    import pyarrow as pa

    rows = table.num_rows
    columns = []
    for field in schema:
        if field.name in table.column_names:
            columns.append(table.column(field.name).combine_chunks().cast(field.type))
        elif field.name in place:
            columns.append(pa.repeat(pa.scalar(place[field.name], field.type), rows))
        else:
            columns.append(pa.nulls(rows, field.type))
    return pa.RecordBatch.from_arrays(
        [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in columns],
        schema=schema,
    )


def _arrow_schema(ddl: str) -> pa.Schema:
    import pyarrow as pa

    kinds = {"string": pa.string(), "int": pa.int32(), "long": pa.int64(), "boolean": pa.bool_()}
    return pa.schema([(name, kinds[kind]) for name, kind in (each.split() for each in ddl.split(","))])


# ---- batches among each other


def check(batches: DataFrame, expected: Mapping[ReplicaKey, Expected]) -> DataFrame:
    """What batches of a replica owe each other. All of one come to one task, in order."""
    ordered = (
        batches.select("replica", "topic", "partition", *BatchRow._fields)
        .repartition("replica", "topic", "partition")
        .sortWithinPartitions("replica", "topic", "partition", "segment", "position")
    )
    return ordered.mapInArrow(_checker(dict(expected)), FINDING)


def _checker(
    expected: Mapping[ReplicaKey, Expected],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        current: ReplicaKey | None = None
        checking: PartitionCheck | None = None
        for batch in batches:
            findings: list[Finding] = []
            columns = [batch.column(name).to_pylist() for name in ("replica", "topic", "partition")]
            fields = [batch.column(name).to_pylist() for name in BatchRow._fields]
            for key, row in zip(zip(*columns, strict=True), zip(*fields, strict=True), strict=True):
                if key != current:
                    if checking is not None:
                        findings += checking.finish()
                    current, checking = key, PartitionCheck(expected[key])
                assert checking is not None
                findings += checking.next(BatchRow(*row))
            yield from as_arrow(findings)
        if checking is not None:
            yield from as_arrow(list(checking.finish()))

    return run


def as_arrow(findings: Sequence[Finding]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = _arrow_schema(FINDING)
    for start in range(0, len(findings), _ROWS_MAX):
        rows = [each._asdict() for each in findings[start : start + _ROWS_MAX]]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


# ---- replicas among each other


def compare_replicas(
    spark: SparkSession, batches: DataFrame, replicas: Sequence[ReplicaFacts]
) -> list[Finding]:
    """Each further replica of a partition with its first one. The first difference is named, and how many batches differ."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    pairs = _pairs(replicas)
    if not pairs:
        return []
    pair = ("topic", "partition", "first", "other")
    asked = spark.createDataFrame(pairs, _PAIRS)
    alone = (
        batches.join(f.broadcast(asked), ["topic", "partition"])
        .where("replica in (first, other) and last_offset >= start and base_offset < end")
        .groupBy(*pair, "start", "end", "base_offset", "last_offset", "leader_epoch", "crc")
        .agg(
            f.count_distinct("replica").alias("replicas"),
            f.min("replica").alias("replica"),
            f.min("segment").alias("segment"),
            f.min("position").alias("position"),
        )
        .where("replicas < 2")
    )
    of_pair = Window.partitionBy(*pair)
    rows = (
        alone.select(
            "*",
            f.count("*").over(of_pair).alias("count"),
            f.row_number().over(of_pair.orderBy("base_offset", "replica")).alias("number"),
        )
        .where("number <= 2")
        .orderBy(*pair, "number")
        .collect()
    )
    seconds = {tuple(row[name] for name in pair): row for row in rows if row.number == 2}
    return [
        _difference(row, seconds.get(tuple(row[name] for name in pair))) for row in rows if row.number == 1
    ]


def _pairs(replicas: Sequence[ReplicaFacts]) -> list[tuple[str, int, str, str, int, int]]:
    firsts: dict[tuple[str, int], ReplicaFacts] = {}
    found = []
    for other in replicas:
        first = firsts.setdefault(other.tp, other)
        if first is not other:
            start, end = common_range(_side(first), _side(other))
            found.append((*other.tp, first.data_dir, other.data_dir, start, end))
    return found


def _side(facts: ReplicaFacts) -> Side:
    return Side(facts.data_dir, facts.log_start_offset, facts.committed_end, facts.cleaned_to)


def _difference(row: Any, second: Any | None) -> Finding:
    shown = [row] if second is None or second.base_offset != row.base_offset else [row, second]
    told = "; ".join(
        f"{each.replica} has offsets {each.base_offset} to {each.last_offset} of leader epoch {each.leader_epoch} (CRC {each.crc:#010x})"
        for each in shown
    )
    return Finding(
        "replicas",
        "error",
        row.other,
        row.topic,
        row.partition,
        row.segment,
        row.position,
        row.base_offset,
        row.last_offset + 1,
        f"differs from {row.first} within offsets {row.start} to {row.end}, which both have committed: first at offset {row.base_offset}, where {told};"
        f" {row['count']} batches are in one of them only",
    )


def expectation(facts: ReplicaFacts, harmed: Sequence[tuple[int, int]]) -> Expected:
    return Expected(
        replica=facts.data_dir,
        topic=facts.tp.topic,
        partition=facts.tp.partition,
        log_start_offset=facts.log_start_offset,
        high_watermark=facts.high_watermark,
        cleaned_to=facts.cleaned_to,
        epochs=None
        if facts.epochs is None
        else tuple((each.epoch, each.start_offset) for each in facts.epochs),
        harmed=tuple(harmed),
    )
