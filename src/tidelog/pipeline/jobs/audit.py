"""*audit*: are the replicas of topics sound, and how is their load spread? Read from segment files, brokers idle or dead.

Every batch of every replica is read once: its CRC, the offsets and epochs between batches, producers' sequences, the indexes. Replicas of a partition are compared with each other. Keys are counted exactly, from one replica of
each partition. Results are tables (one for each kind of finding) and a report with plots. Nothing is ever changed or repaired.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tidelog.errors import TidelogError
from tidelog.pipeline.audit_checks import KINDS, Finding
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.options import Options as BaseOptions
from tidelog.pipeline.options import PathText, Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidelog.spark.segments.facts import ReplicaFacts

FINDINGS_MAX: Final = 100_000
TASKS_PER_CORE: Final = 4


class AuditError(TidelogError):
    """There is nothing to audit, or it cannot be done; or findings, where they shall stop a flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BaseOptions):
    paths: tuple[PathText, ...]
    """Data directories of brokers, or directories of partitions. A partition that stands in several has as many replicas, which are compared."""
    topics: tuple[str, ...] = ()
    """Only these; all but internal ones if neither this nor `pattern` is given."""
    pattern: str | None = None
    """A regular expression for whole names of topics."""
    output: PathText | None = None
    """A directory for tables and report, which are written anew each time; the flow's own state directory if not given."""
    format: Literal["parquet", "delta"] = "parquet"
    """Of the tables."""
    keys: bool = True
    """Count keys, which reads the records as well as the batches."""
    hot_keys: int = 20
    """How many keys of each topic are listed, those with most records first."""
    fail_on_findings: bool = False
    """End with an error if anything is wrong, after everything has been written."""

    def check(self) -> Iterator[Problem]:
        if not self.paths:
            yield Problem("paths", "name at least one data directory")
        if self.topics and self.pattern:
            yield Problem("topics", "say what to audit by topics or by pattern, not by both")
        if self.hot_keys < 1:
            yield Problem("hot_keys", f"must be at least 1, not {self.hot_keys}")
        if self.pattern:
            try:
                re.compile(self.pattern)
            except re.error as error:
                yield Problem("pattern", f"is no regular expression: {error}")

    def places_written(self) -> Iterable[str]:
        return () if self.output is None else (self.output,)

    def takes(self, topic: str) -> bool:
        if self.topics:
            return topic in self.topics
        if self.pattern:
            return re.fullmatch(self.pattern, topic) is not None
        return not topic.startswith("__")


def run(context: JobContext, options: Options) -> Mapping[str, Any]:
    from pyspark.storagelevel import StorageLevel

    from tidelog.pipeline import audit_scan
    from tidelog.pipeline.audit_load import hot_keys, load_of_partitions, timeline
    from tidelog.pipeline.audit_report import write_report
    from tidelog.pipeline.audit_tables import Results, write_tables

    replicas = _replicas(options)
    counters = context.counters
    counters.add("replicas", len(replicas))
    counters.add("segments", sum(len(each.segments) for each in replicas))
    counters.add("bytes", sum(each.stretch.size for facts in replicas for each in facts.segments))
    tasks = TASKS_PER_CORE * context.spark.sparkContext.defaultParallelism
    scanned = audit_scan.scan(context.spark, replicas, tasks=tasks).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        findings = _found_in_segments(scanned) + _epoch_files(replicas)
        counters.add("damage", sum(each.kind == "damage" for each in findings))
        batches = scanned.where("kind is null")
        harmed: dict[audit_scan.ReplicaKey, list[tuple[int, int]]] = {}
        for each in findings:
            if each.kind == "damage" and each.first_offset is not None and each.end_offset is not None:
                key = (each.replica, each.topic, each.partition)
                harmed.setdefault(key, []).append((each.first_offset, each.end_offset))
        expected = {
            (key := audit_scan.key_of(facts)): audit_scan.expectation(facts, harmed.get(key, ()))
            for facts in replicas
        }
        checked = audit_scan.check(batches, expected).limit(FINDINGS_MAX).collect()
        findings += [Finding(*row) for row in checked]
        findings += _empty_but_committed(replicas)
        findings += audit_scan.compare_replicas(context.spark, batches, replicas)
        results = Results(
            tuple(options.paths),
            findings,
            partitions := load_of_partitions(replicas, batches),
            hot_keys(context.spark, replicas, options.hot_keys) if options.keys else [],
            timeline(batches, partitions),
        )
    finally:
        scanned.unpersist()
    output = options.output or os.path.join(context.state, "audit")
    write_tables(results, os.path.join(output, "tables"), options.format)
    report = write_report(results, output)
    errors = {
        kind: sum(each.kind == kind and each.severity == "error" for each in findings) for kind in KINDS
    }
    counters.add("findings", sum(errors.values()))
    if options.fail_on_findings and any(errors.values()):
        told = ", ".join(f"{count} in {kind}" for kind, count in errors.items() if count)
        raise AuditError(f"the audit has found something wrong ({told}): see {report}")
    return {
        "report": report,
        "partitions": len({each.tp for each in replicas}),
        "replicas": len(replicas),
        "records": sum(row["records"] for row in results.partitions),
        "bytes": sum(row["bytes"] for row in results.partitions),
        **{f"{kind}_errors": count for kind, count in errors.items()},
    }


def _replicas(options: Options) -> list[ReplicaFacts]:
    from tidelog.spark.segments.facts import replicas_in

    chosen = replicas_in(options.paths, options.takes)
    if not chosen:
        raise AuditError(
            f"no partitions of the topics that are asked for stand in {', '.join(options.paths)}"
        )
    return chosen


def _found_in_segments(scanned: DataFrame) -> list[Finding]:
    rows = scanned.where("kind is not null").limit(FINDINGS_MAX).select(*Finding._fields).collect()
    return sorted(
        (Finding(*row) for row in rows), key=lambda each: (each.topic, each.partition, str(each.segment))
    )


def _epoch_files(replicas: Sequence[ReplicaFacts]) -> list[Finding]:
    return [
        Finding(
            "epochs",
            "error",
            each.data_dir,
            *each.tp,
            None,
            None,
            None,
            None,
            f"the checkpoint of leader epochs: {each.epochs_problem}",
        )
        for each in replicas
        if each.epochs_problem is not None
    ]


def _empty_but_committed(replicas: Sequence[ReplicaFacts]) -> list[Finding]:
    """Replicas without a batch are seen by no check of batches."""
    return [
        Finding(
            "gaps",
            "error",
            each.data_dir,
            *each.tp,
            None,
            None,
            each.log_start_offset,
            each.high_watermark,
            f"the log was committed up to offset {each.high_watermark}, and holds no batch at all",
        )
        for each in replicas
        if (each.high_watermark or 0) > each.log_start_offset
        and not any(segment.stretch.size for segment in each.segments)
    ]
