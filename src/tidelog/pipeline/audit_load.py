"""How the load of audited topics is spread: records, bytes and times by partition, the hottest keys, records over time. Counted by Spark, exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.client.metadata import TopicPartition
    from tidelog.spark.segments.facts import ReplicaFacts

BUCKETS_MAX: Final = 60


def load_of_partitions(replicas: Sequence[ReplicaFacts], batches: DataFrame) -> list[dict[str, Any]]:
    from pyspark.sql import functions as f

    sums = {
        (row.replica, row.topic, row.partition): row
        for row in batches.groupBy("replica", "topic", "partition")
        .agg(
            f.sum(f.expr("if(is_control, 0, records)")).alias("records"),
            f.sum("size").alias("bytes"),
            f.count("*").alias("batches"),
            f.min(
                f.expr("if(has_delete_horizon or is_control or base_timestamp < 0, null, base_timestamp)")
            ).alias("first_ms"),
            f.max(f.expr("if(is_control or max_timestamp < 0, null, max_timestamp)")).alias("last_ms"),
        )
        .collect()
    }
    found = []
    for facts in replicas:
        row = sums.get((facts.data_dir, *facts.tp))
        found.append(
            {
                "replica": facts.data_dir,
                "topic": facts.tp.topic,
                "partition": facts.tp.partition,
                "segments": len(facts.segments),
                "batches": row.batches if row else 0,
                "records": row.records if row else 0,
                "bytes": row.bytes if row else 0,
                "log_start_offset": facts.log_start_offset,
                "high_watermark": facts.high_watermark,
                "log_end_offset": facts.log_end_offset,
                "first_ms": row.first_ms if row else None,
                "last_ms": row.last_ms if row else None,
            }
        )
    return _with_shares(found)


def _with_shares(partitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How much of its topic each has, and how many times the average that is: the skew."""
    totals: dict[tuple[str, str], list[int]] = {}
    for each in partitions:
        totals.setdefault((each["replica"], each["topic"]), []).append(each["records"])
    for each in partitions:
        counts = totals[each["replica"], each["topic"]]
        total = sum(counts)
        each["share"] = each["records"] / total if total else 0.0
        each["times_average"] = each["records"] * len(counts) / total if total else 0.0
    return partitions


def hot_keys(spark: SparkSession, replicas: Sequence[ReplicaFacts], count: int) -> list[dict[str, Any]]:
    """Exact counts, from the first replica of each partition."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    firsts: dict[TopicPartition, ReplicaFacts] = {}
    for facts in replicas:
        firsts.setdefault(facts.tp, facts)
    records = (
        spark.read.format("tidelog")
        .option("paths", json.dumps([each.directory for each in firsts.values()]))
        .option("highWatermark", "none")
        .option("onDamage", "skip")
        .option("failOnDataLoss", "false")
        .option("columns", "topic,partition,key")
        .load()
    )
    counted = records.groupBy("topic", "partition", "key").agg(f.count("*").alias("records"))
    by_key = counted.groupBy("topic", "key").agg(
        f.sum("records").alias("records"),
        f.max_by("partition", "records").alias("partition"),
        f.count("*").alias("partitions"),
    )
    in_topic = Window.partitionBy("topic")
    ranked = by_key.select(
        "*",
        (f.col("records") / f.sum("records").over(in_topic)).alias("share"),
        f.row_number().over(in_topic.orderBy(f.desc("records"), f.col("key"))).alias("rank"),
    ).where(f.col("rank") <= count)
    rows = ranked.orderBy("topic", "rank").collect()
    return [
        {
            "topic": row.topic,
            "rank": row["rank"],
            "key": None if row.key is None else bytes(row.key),
            "text": _readable(row.key),
            "records": row.records,
            "share": row.share,
            "partition": row.partition,
            "partitions": row.partitions,
        }
        for row in rows
    ]


def _readable(key: bytes | None) -> str:
    if key is None:
        return "(no key)"
    try:
        text = bytes(key).decode()
    except UnicodeDecodeError:
        return "0x" + bytes(key).hex()
    return text if text.isprintable() else "0x" + bytes(key).hex()


def timeline(batches: DataFrame, partitions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records by time, each batch counted at its latest record. Of first replicas only."""
    from pyspark.sql import functions as f

    times = [each[name] for each in partitions for name in ("first_ms", "last_ms") if each[name] is not None]
    if not times:
        return []
    start, end = min(times), max(times)
    width = max(1000, -(-(end - start + 1) // BUCKETS_MAX))
    firsts: dict[tuple[str, int], str] = {}
    for each in partitions:
        firsts.setdefault((each["topic"], each["partition"]), each["replica"])
    rows = (
        batches.where("not is_control and max_timestamp >= 0")
        .groupBy(
            "replica",
            "topic",
            "partition",
            f.expr(f"floor((max_timestamp - {start}) / {width})").alias("bucket"),
        )
        .agg(f.sum("records").alias("records"), f.sum("size").alias("bytes"))
        .collect()
    )
    sums: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        if firsts[row.topic, row.partition] == row.replica:
            both = sums.setdefault((row.topic, row.bucket), [0, 0])
            both[0] += row.records
            both[1] += row.bytes
    return [
        {
            "topic": topic,
            "start_ms": start + bucket * width,
            "end_ms": start + (bucket + 1) * width,
            "records": records,
            "bytes": size,
        }
        for (topic, bucket), (records, size) in sorted(sums.items())
    ]
