"""The same work with Spark's own Kafka connector and with ours, in one Spark: what each gave, as JSON, for `test_spark.py` to compare.

Runs in the environment of `tools.peers.spark_jvm`: `python -m tests.interop.spark_side SERVERS JARS FOLDER [WHAT …]`. Decides nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

FORMATS: Final = ("kafka", "tidelog")
TIME_MS: Final = 1_700_000_000_000
RECORDS: Final = 600
SPEED_ROWS: Final = 300_000
HEADERS: Final = "array<struct<key:string,value:binary>>"
Answers = dict[str, Any]


class Side:
    def __init__(self, servers: str, jars: str, folder: str) -> None:
        from tidelog.spark.session import spark_session

        self.servers = {"kafka.bootstrap.servers": servers}
        self.folder = Path(folder)
        self.spark = spark_session("interop", master="local[2]", settings={"spark.jars": jars})
        self.frame = self.spark.createDataFrame(
            [
                (
                    None if n % 7 == 0 else b"key %d" % (n % 50),
                    None if n % 11 == 0 else b"value %d" % n,
                    n % 3 if n % 4 == 0 else None,
                    [None, [], [("trace", b"%d" % n), ("trace", None)]][n % 3],
                )
                for n in range(500)
            ],
            f"key binary, value binary, partition int, headers {HEADERS}",
        ).coalesce(1)

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(self, format: str, topics: str = "mixed", **options: Any) -> list[str]:
        given = {"subscribe": topics} if not {"assign", "subscribePattern"} & options.keys() else {}
        frame = self.spark.read.format(format).options(**self.servers, **given, **options).load()
        return rows_of(frame)

    def everything(self, format: str) -> Answers:
        frame = (
            self.spark.read.format(format)
            .options(**self.servers, subscribe="mixed", includeHeaders="true")
            .load()
        )
        plain = self.spark.read.format(format).options(**self.servers, subscribe="mixed").load()
        return {"schema": frame.schema.json(), "without headers": plain.schema.json(), "rows": rows_of(frame)}

    def some_offsets(self, format: str) -> Answers:
        start = {"mixed": {"0": 10, "1": -2, "2": 30}}
        end = {"mixed": {"0": 50, "1": 20, "2": -1}}
        return {
            "ranges": self.read(format, startingOffsets=json.dumps(start), endingOffsets=json.dumps(end)),
            "assigned": self.read(format, assign=json.dumps({"mixed": [0, 2]})),
            "pattern": self.read(format, subscribePattern="mi.*"),
            "split": self.read(format, minPartitions="7"),
            "lz4": self.read(format, "packed"),
        }

    def by_time(self, format: str) -> Answers:
        middle = TIME_MS + 300
        each = {"mixed": {"0": middle, "1": TIME_MS, "2": TIME_MS + 10_000_000}}
        return {
            "from": self.read(format, startingTimestamp=str(middle)),
            "until": self.read(format, endingTimestamp=str(middle)),
            "each": self.read(format, startingOffsetsByTimestamp=json.dumps(each), startingOffsetsByTimestampStrategy="latest"),
            "each until": self.read(format, endingOffsetsByTimestamp=json.dumps(each)),
        }  # fmt: skip

    def refused(self, format: str) -> Answers:
        """Which of these are errors."""
        attempts: dict[str, Callable[[], object]] = {
            "no topic to read": lambda: self.spark.read.format(format).options(**self.servers).load().count(),
            "batch from latest": lambda: self.read(format, startingOffsets="latest"),
            "a partition is missing": lambda: self.read(format, startingOffsets='{"mixed":{"0":1}}'),
            "nothing at that time": lambda: self.read(format, startingTimestamp=str(TIME_MS + 10_000_000)),
            "ends at earliest": lambda: self.read(format, endingOffsets="earliest"),
            "auto.offset.reset": lambda: self.read(format, **{"kafka.auto.offset.reset": "earliest"}),
            "no value": lambda: self.write(format, self.frame.drop("value"), "refused"),
            "value is a number": lambda: self.write(format, self.frame.selectExpr("1 as value"), "refused"),
            "no topic to write": lambda: self.write(format, self.frame, None),
            "topic is null": lambda: self.write(format, self.frame.selectExpr("value", "string(null) as topic"), None),
            "a serializer": lambda: self.write(format, self.frame, "refused", **{"kafka.value.serializer": "x"}),
            "overwrite": lambda: self.write(format, self.frame, "refused", mode="overwrite"),
            "a partition that is not there": lambda: self.write(format, self.frame.selectExpr("value", "9 as partition"), "refused", **{"kafka.max.block.ms": "2000"}),
            "a negative partition": lambda: self.write(format, self.frame.selectExpr("value", "-1 as partition"), "refused"),
        }  # fmt: skip
        return {what: fails(attempt) for what, attempt in attempts.items()}

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(
        self, format: str, frame: Any, topic: str | None, *, mode: str = "append", **options: str
    ) -> None:
        named = {} if topic is None else {"topic": topic}
        frame.write.format(format).options(**self.servers, **named, **options).mode(mode).save()

    def written(self, format: str) -> Answers:
        """Rows that say or whose key says where they go, in order; the others, wherever they are."""
        placed = self.frame.where("partition is not null or key is not null")
        self.write(format, placed, f"placed-{format}")
        text = self.frame.where("key is not null").selectExpr("string(key) as key", "string(value) as value")
        self.write(format, text, f"text-{format}", **{"kafka.compression.type": "lz4"})
        by_row = self.frame.selectExpr(
            "*", f"if(partition is null, 'free-{format}', 'named-{format}') as topic"
        )
        self.write(format, by_row, None)
        return {
            "placed": contents(self, f"placed-{format}"),
            "text": contents(self, f"text-{format}"),
            "free": sorted(json.dumps(json.loads(row)[1:]) for row in contents(self, f"free-{format}")),
            "named": contents(self, f"named-{format}"),
        }

    # -- streams ----------------------------------------------------------------------------------------------------

    def streamed(self, format: str) -> Answers:
        """In micro-batches; then again from the same checkpoint, with a few records more."""
        checkpoint = str(self.folder / f"streamed-{format}")
        first, ends = self.run(
            format, "growing", checkpoint, maxOffsetsPerTrigger="100", includeHeaders="true"
        )
        produce(self.servers, "growing", range(300, 340))
        second, more = self.run(
            format, "growing", checkpoint, maxOffsetsPerTrigger="100", includeHeaders="true"
        )
        produce_back(self, "growing")
        return {"first": first, "second": second, "ends": ends + more}

    def imported(self, format: str) -> Answers:
        """A checkpoint of the connector, gone on with by itself, or by ours after it was carried over."""
        from tidelog.spark.checkpoints import import_jvm_checkpoint

        old = str(self.folder / "imported-old")
        topic = f"moving-{format}"
        produce(self.servers, topic, range(100))
        self.run("kafka", topic, f"{old}-{format}", maxOffsetsPerTrigger="40")
        produce(self.servers, topic, range(100, 130))
        checkpoint = f"{old}-{format}"
        if format == "tidelog":
            checkpoint = str(self.folder / "imported-new")
            import_jvm_checkpoint(f"{old}-{format}", checkpoint)
        found, _ = self.run(format, topic, checkpoint)
        return {"rows": [row.replace(topic, "moving") for row in found]}

    def copied(self, format: str) -> Answers:
        """Topic to topic, by a stream; and an aggregate in complete mode. (Spark lets no Python sink have update mode.)"""
        frame = self.stream(format, "mixed", includeHeaders="true")
        self.finish(
            self.sink(format, frame.select("key", "value", "headers", "partition"), f"copied-{format}")
        )
        counted = self.stream(format, "mixed").groupBy("partition").count()
        counted = counted.selectExpr("string(partition) as key", "string(count) as value", "0 as partition")
        self.finish(self.sink(format, counted, f"counted-{format}").outputMode("complete"))
        return {
            "copied": contents(self, f"copied-{format}"),
            "counted": sorted(contents(self, f"counted-{format}")),
        }

    def stream(self, format: str, topic: str, **options: str) -> Any:
        given = {"subscribe": topic, "startingOffsets": "earliest", **options}
        return self.spark.readStream.format(format).options(**self.servers, **given).load()

    def sink(self, format: str, frame: Any, topic: str) -> Any:
        checkpoint = str(self.folder / f"{topic}-checkpoint")
        return frame.writeStream.format(format).options(
            **self.servers, topic=topic, checkpointLocation=checkpoint
        )

    def run(self, format: str, topic: str, checkpoint: str, **options: str) -> tuple[list[str], list[Any]]:
        """Rows, and where each micro-batch ended."""
        found: list[str] = []
        query = self.finish(
            self.stream(format, topic, **options)
            .writeStream.foreachBatch(lambda batch, _: found.extend(rows_of(batch)))
            .option("checkpointLocation", checkpoint)
        )
        ends = [
            json.loads(each["sources"][0]["endOffset"])
            for each in query.recentProgress
            if each["numInputRows"]
        ]
        return sorted(found), [{topic: end[topic]} for end in ends]

    def finish(self, writer: Any) -> Any:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    # -- speed ------------------------------------------------------------------------------------------------------

    def speed(self, format: str) -> Answers:
        """Rows per second of a small load, the second time: an impression; `python -m bench.spark` measures."""
        frame = self.spark.range(0, SPEED_ROWS, 1, 2).selectExpr("repeat(string(id), 14) as value").cache()
        frame.count()
        found: Answers = {}
        for _ in range(2):
            began = time.perf_counter()
            self.write(format, frame, f"speed-{format}")
            found["write"] = SPEED_ROWS / (time.perf_counter() - began)
        for _ in range(2):
            began = time.perf_counter()
            source = (
                self.spark.read.format(format).options(**self.servers, subscribe=f"speed-{format}").load()
            )
            source.write.format("noop").mode("overwrite").save()
            found["read"] = 2 * SPEED_ROWS / (time.perf_counter() - began)
        return found


def rows_of(frame: Any) -> list[str]:
    def plain(value: Any) -> Any:
        if isinstance(value, bytes | bytearray):
            return bytes(value).decode("latin-1")
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return value if value is None or isinstance(value, int | str) else str(value)

    names = [name for name in ("partition", "offset", "key", "value", "topic", "timestamp", "timestampType", "headers") if name in frame.columns]  # fmt: skip
    return sorted(json.dumps([plain(row[name]) for name in names]) for row in frame.select(*names).collect())


def contents(side: Side, topic: str) -> list[str]:
    """What a topic holds, partition by partition in order, read by our client."""
    from tidelog.client.scanning import scan_table

    table = scan_table(
        side.servers["kafka.bootstrap.servers"], topic, columns=("partition", "key", "value", "headers")
    )
    found = [
        (row["partition"], [_text(row["key"]), _text(row["value"]), [[each["key"], _text(each["value"])] for each in row["headers"] or []]])
        for row in table.to_pylist()
    ]  # fmt: skip
    found.sort(key=lambda each: each[0])
    return [json.dumps([partition, *rest]) for partition, rest in found]


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def fails(attempt: Callable[[], object]) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        attempt()
    except (PySparkException, Py4JError):
        return True
    return False


def produce(servers: dict[str, str], topic: str, numbers: range, **settings: Any) -> None:
    from tidelog.client.blocking import Producer

    with Producer(servers["kafka.bootstrap.servers"], **settings) as producer:
        for n in numbers:
            producer.send(
                topic,
                None if n % 13 == 0 else b"value %d" % n,
                key=None if n % 5 == 0 else b"key %d" % (n % 40),
                headers=() if n % 2 else (("h", b"%d" % n), ("none", None)),
                partition=n % 3,
                timestamp_ms=TIME_MS + n,
            )


def produce_back(side: Side, topic: str) -> None:
    """The topic as it was, for the other one."""
    from tidelog.client.blocking import Admin

    with Admin(side.servers["kafka.bootstrap.servers"]) as admin:
        admin.delete_topics([topic])
    prepare(side.servers, {topic: 3})
    produce(side.servers, topic, range(300))


def prepare(servers: dict[str, str], topics: dict[str, int]) -> None:
    from tidelog.client import NewTopic
    from tidelog.client.blocking import Admin

    kept = {"retention.ms": "-1"}  # the records are years old
    with Admin(servers["kafka.bootstrap.servers"]) as admin:
        admin.create_topics([NewTopic(name, partitions, 1, kept) for name, partitions in topics.items()])


COMPARED: Final = ("everything", "some_offsets", "by_time", "refused", "written", "streamed", "imported", "copied", "speed")  # fmt: skip


def main() -> None:
    servers, jars, folder, *wanted = sys.argv[1:]
    side = Side(servers, jars, folder)
    names = ["mixed", "packed", "refused", "growing"]
    names += [f"{name}-{format}" for name in ("placed", "text", "free", "named", "moving", "copied", "counted", "speed") for format in FORMATS]  # fmt: skip
    prepare(side.servers, dict.fromkeys(names, 3))
    produce(side.servers, "mixed", range(RECORDS))
    produce(side.servers, "packed", range(RECORDS), compression_type="lz4")
    produce(side.servers, "growing", range(300))
    for what in wanted or COMPARED:
        for format in FORMATS:
            try:
                answer: Answers = getattr(side, what)(format)
            except Exception:  # noqa: BLE001 (shown by the test, whatever it is)
                answer = {"error": traceback.format_exc()[-3000:]}
            (Path(folder) / f"{what}-{format}.json").write_text(json.dumps(answer))
    side.spark.stop()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of Spark's gateway are not waited for
