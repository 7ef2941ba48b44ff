"""The sink under a real Spark: what lands in the log is what the DataFrame held, whatever happens on the way."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.client.partitioner import partition_for_key
from tidelog.client.scanning import scan_table
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
ROWS = "topic string, key string, value binary, partition int, headers array<struct<key:string,value:binary>>, timestamp timestamp"


def records(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    return scan_table(cluster.bootstrap_servers, topic, columns=COLUMNS).to_pylist()


def write(cluster: Cluster, frame: Any, **options: str) -> None:
    frame.write.format("tidelog").option("kafka.bootstrap.servers", cluster.bootstrap_servers).options(
        **options
    ).mode("append").save()


def value_of(n: int) -> bytes | None:
    if n % 7 == 0:  # without a key, and so told apart by its value alone
        return b"without a key %d" % n
    return None if n % 11 == 0 else b"" if n % 13 == 0 else b"value %d" % n


def test_rows_become_records(spark: Any, cluster: Cluster) -> None:
    from datetime import UTC, datetime, timedelta

    for topic, partitions in (("here", 3), ("there", 2), ("all", 5)):
        cluster.create_topic(topic, partitions)
    now = datetime.now(UTC).replace(microsecond=0)
    rows = [
        (
            "here" if n % 3 else "there",
            None if n % 7 == 0 else f"schlüssel {n % 40}",
            value_of(n),
            n % 2 if n % 5 == 0 else None,
            [None, [], [("trace", b"%d" % n), ("trace", None)]][n % 3],
            now + timedelta(milliseconds=n),
        )
        for n in range(1000)
    ]
    frame = spark.createDataFrame(rows, ROWS).coalesce(1)
    write(cluster, frame)
    write(cluster, frame.drop("partition"), topic="all", includeTimestamp="true")
    for topic, partitions in (("here", 3), ("there", 2), ("all", 5)):
        expected: dict[int, list[tuple[Any, ...]]] = {}
        free: list[tuple[Any, ...]] = []
        for of, key, value, partition, headers, at in rows:
            if topic not in (of, "all"):
                continue
            record = (key and key.encode(), value, headers or [], at.isoformat() if topic == "all" else None)
            if topic != "all" and partition is not None:
                expected.setdefault(partition, []).append(record)
            elif key is not None:
                expected.setdefault(partition_for_key(key.encode(), partitions), []).append(record)
            else:
                free.append(record)
        found: dict[int, list[tuple[Any, ...]]] = {}
        for row in records(cluster, topic):
            headers = [(each["key"], each["value"]) for each in row["headers"] or []]
            record = (
                row["key"],
                row["value"],
                headers,
                row["timestamp"].isoformat() if topic == "all" else None,
            )
            found.setdefault(row["partition"], []).append(record)
        for partition, mine in expected.items():
            there = [record for record in found[partition] if record in mine]
            assert there == mine, f"{topic}-{partition}"
        everything = [record for each in found.values() for record in each]
        assert Counter(map(repr, everything)) == Counter(
            map(repr, free + [record for mine in expected.values() for record in mine])
        )


def test_what_cannot_be_written_is_said_before_anything_runs(spark: Any, cluster: Cluster) -> None:
    from pyspark.errors import AnalysisException, PySparkException

    cluster.create_topic("refused", 1)
    frame = spark.createDataFrame(
        [("refused", "k", "v"), (None, "k", "v")], "topic string, key string, value string"
    )
    servers = cluster.bootstrap_servers
    wrong = frame.selectExpr("topic", "1 as value")
    for attempt, message in (
        (wrong.write.mode("append"), "column value is int and must be string or binary"),
        (frame.drop("value").write.mode("append"), "there is no column value"),
        (frame.drop("topic").write.mode("append"), "no topic is named"),
        (frame.write.mode("overwrite"), "a log cannot be overwritten"),
        (frame.write.mode("append").option("kafka.sasl.mechanism", "PLAIN"), "cannot be honoured"),
        (frame.write, "ErrorIfExists"),  # Spark's own: no Python source can have its default mode
    ):
        with pytest.raises(AnalysisException) as refused:
            attempt.format("tidelog").option("kafka.bootstrap.servers", servers).save()
        assert message in str(refused.value)
    with pytest.raises(PySparkException) as failed:
        write(cluster, frame.coalesce(1))
    assert "1 of 2 rows have null in column topic" in str(failed.value)
    with pytest.raises(PySparkException) as failed:
        write(cluster, frame.coalesce(1).selectExpr("value", "3 as partition"), topic="refused")
    assert "topic refused: column 'partition' names partitions from 3 to 3" in str(failed.value)
    assert records(cluster, "refused") == []


@pytest.mark.long
def test_a_broker_that_is_restarted_during_a_write_gets_every_row_once(spark: Any, tmp_path: Path) -> None:
    restarted = str(tmp_path / "restarted")

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        """The last ones wait until the broker has been restarted, however long that takes."""
        import os
        import time

        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                time.sleep(0.2)
                while number in (7, 15) and not os.path.exists(restarted):
                    time.sleep(0.05)
                values = pa.array([b"%d-%d" % (number, n) + bytes(1000) for n in range(9_000)])
                yield pa.RecordBatch.from_arrays([values], names=["value"])

    with Cluster(topics={"restarted": 2}) as cluster:
        frame = spark.range(0, 16, 1, 2).mapInArrow(slowly, "value binary")
        moments: list[str] = []

        def restart() -> None:
            until = time.monotonic() + 300
            while time.monotonic() < until and not records(cluster, "restarted"):
                time.sleep(0.05)
            cluster.restart()
            Path(restarted).touch()
            moments.append("restarted")

        restarting = threading.Thread(target=restart)
        restarting.start()
        write(cluster, frame, topic="restarted")
        moments.append("written")
        restarting.join()
        assert moments == ["restarted", "written"]
        found = Counter(row["value"].rstrip(b"\0") for row in records(cluster, "restarted"))
    assert found == Counter(b"%d-%d" % (m, n) for m in range(16) for n in range(9_000))


@pytest.mark.long
def test_a_stream_that_is_killed_again_and_again_loses_nothing(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    """What is there twice belongs to a micro-batch that was begun and not committed."""
    cluster.create_topic("source", 2)
    cluster.create_topic("copy", 3)
    count = 30_000
    write(
        cluster,
        spark.range(0, count, 1, 2).selectExpr(
            "cast(id as string) as key", "cast(id as string) as value", "cast(id % 2 as int) as partition"
        ),
        topic="source",
    )
    source = {int(row["value"]): (str(row["partition"]), row["offset"]) for row in records(cluster, "source")}
    servers = cluster.bootstrap_servers

    def start(**trigger: Any) -> Any:
        frame = spark.readStream.format("tidelog").options(
            **{
                "kafka.bootstrap.servers": servers,
                "subscribe": "source",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "4000",
            }
        )
        writer = frame.load().select("key", "value").writeStream.format("tidelog")
        return (
            writer.options(
                **{"kafka.bootstrap.servers": servers, "topic": "copy", "checkpointLocation": str(tmp_path)}
            )
            .trigger(**trigger)
            .start()
        )

    chance = random.Random(7)
    allowed: Counter[int] = Counter()
    for _ in range(3):
        before, until = last(tmp_path / "offsets"), time.monotonic() + 300
        query = start(processingTime="0 seconds")
        while last(tmp_path / "offsets") == before:
            assert query.isActive and time.monotonic() < until
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.8))
        query.stop()
        begun, committed = last(tmp_path / "offsets"), last(tmp_path / "commits")
        if begun > committed:
            ends = [ends_of(tmp_path, number) for number in (begun - 1, begun)]
            allowed.update(
                value for value, (partition, offset) in source.items()
                if ends[0].get(partition, 0) <= offset < ends[1][partition]
            )  # fmt: skip
    query = start(availableNow=True)
    query.awaitTermination()
    assert query.exception() is None
    copied = records(cluster, "copy")
    found = Counter(int(row["value"]) for row in copied)
    assert found.keys() == set(range(count))
    for value, times in found.items():
        assert times <= 1 + allowed[value], f"{value} is there {times} times"
    assert all(partition_for_key(row["key"], 3) == row["partition"] for row in copied)


def last(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=-1)


def ends_of(checkpoint: Path, batch: int) -> dict[str, int]:
    if batch < 0:
        return {}
    found: dict[str, int] = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])[
        "source"
    ]
    return found


@pytest.mark.long
def test_what_spark_tells_a_task_of_its_micro_batch(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """Not documented, and what exactly-once delivery will stand on: query and batch id in every task, the same ones when a batch is run again."""
    from pyspark.sql.datasource import DataSource

    cluster.create_topic("told", 1)

    class Recorded(DataSource):
        @classmethod
        def name(cls) -> str:
            return "recorded"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            from tidelog.spark.sink import StreamSink

            class Recording(StreamSink):
                def __init__(self, options: Any, schema: Any) -> None:
                    self.folder = options.pop("folder")
                    super().__init__(options, schema)

                def commit(self, messages: Any, batchId: int) -> None:
                    import os

                    super().commit(messages, batchId)
                    with open(os.path.join(self.folder, "commits.txt"), "a") as out:
                        for each in messages:
                            task = each.result.task
                            print(
                                batchId,
                                task.batch_id,
                                task.query_id,
                                task.partition_id,
                                task.attempt,
                                each.result.rows,
                                file=out,
                            )
                    if not os.path.exists(os.path.join(self.folder, "may-commit")):
                        raise RuntimeError("the driver dies while it commits")

            return Recording(dict(self.options), schema)

    spark.dataSource.register(Recorded)
    checkpoint, told = tmp_path / "checkpoint", tmp_path / "told"
    (tmp_path / "in").mkdir()
    told.mkdir()
    ids = []
    for number in range(3):
        if number:
            (told / "may-commit").touch()
        if number != 1:  # the second time there is nothing new: the batch that failed is run again
            (tmp_path / "in" / f"{number}.txt").write_text("a\nb\n")
        query = (
            spark.readStream.text(str(tmp_path / "in"))
            .repartition(2)
            .writeStream.format("recorded")
            .options(
                **{"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "told", "folder": str(told)}
            )
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        ids.append(query.id)
        if number:
            query.awaitTermination()
        else:
            with pytest.raises(Exception, match="the driver dies while it commits"):
                query.awaitTermination()
    assert len(set(ids)) == 1
    found = [line.split() for line in (told / "commits.txt").read_text().splitlines()]
    assert [line[0] for line in found] == ["0", "0", "0", "0", "1", "1"]
    for batch, told_batch, query_id, _, attempt, _ in found:
        assert (told_batch, query_id, attempt) == (batch, ids[0], "0")
    assert [line[3] for line in found] == ["0", "1"] * 3
    assert sum(int(line[5]) for line in found) == 6 == len(records(cluster, "told"))
