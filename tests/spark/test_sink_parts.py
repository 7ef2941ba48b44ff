"""The sink without Spark: options, columns, rows by topic, and a task's rows on their way to a broker."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.client.partitioner import partition_for_key
from tidelog.client.scanning import scan_table
from tidelog.spark import sink_columns, sink_producers
from tidelog.spark.sink import BatchSink, StreamSink, TaskWritten
from tidelog.spark.sink_columns import SinkSchemaError, by_topic, chunks, columns_for
from tidelog.spark.sink_delivery import AtLeastOnce, Task, TaskResult, Written
from tidelog.spark.sink_options import SinkError, SinkOptionError, SinkOptions
from tidelog.testing import Cluster

SERVERS = {"kafka.bootstrap.servers": "one:9092,two:9092"}
TASK = Task(partition_id=3, attempt=1, query_id="q", batch_id=7)


def pairs(of: DataType) -> DataType:
    return ArrayType(StructType([StructField("key", StringType()), StructField("value", of)]))


TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string,binary>": MapType(StringType(), BinaryType()),
    "array<struct<key:string,value:binary>>": pairs(BinaryType()),
    "array<struct<key:string,value:string>>": pairs(StringType()),
}


def schema(text: str) -> StructType:
    """As Spark's DDL, which only its Java can read."""
    found = (column.split(" ") for column in text.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in found])


def columns(text: str, **options: str) -> sink_columns.SinkColumns:
    return columns_for(SinkOptions.parse({**SERVERS, **options}), schema(text))


# ---- options


def test_options_whatever_their_case() -> None:
    options = SinkOptions.parse(
        {
            "KAFKA.Bootstrap.Servers": "one:9092",
            "Topic": "Orders",
            "checkpointLocation": "/somewhere",
            "kafka.compression.type": "lz4",
            "kafka.batch.size": "262144",
            "kafka.socket.connection.setup.timeout.ms": "2000",
            "kafka.security.protocol": "plaintext",
        }
    )
    assert (options.servers, options.topic, options.writes_timestamps) == ("one:9092", "Orders", False)
    settings = options.settings()
    assert (settings.compression_type, settings.batch_size, settings.connect_timeout_ms) == (
        "lz4",
        262144,
        2000,
    )
    assert settings.enable_idempotence


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"topic": " "}, "option topic is empty"),
        ({"tpoic": "a"}, "option tpoic is not known; the sink has topic"),
        ({"startingOffsets": "earliest"}, "startingoffsets belongs to the source"),
        ({"path": "/data"}, "not to the path '/data'"),
        ({"includeTimestamp": "yes"}, "includeTimestamp is true or false"),
        ({"kafka.key.serializer": "x"}, "kafka.key.serializer cannot be set: keys are written as they are"),
        ({"kafka.partitioner.class": "x"}, "give the DataFrame a column `partition`"),
        ({"kafka.transactional.id": "x"}, "at least once"),
        ({"kafka.security.protocol": "SASL_SSL"}, "cannot be honoured: this client speaks PLAINTEXT only"),
        ({"kafka.sasl.jaas.config": "x"}, "cannot be honoured"),
        ({"kafka.ssl.truststore.location": "x"}, "cannot be honoured"),
        ({"kafka.linger.ms": "soon"}, "kafka.*: linger.ms is a number"),
        ({"kafka.acks": "1"}, "acks=1 and enable.idempotence do not go together"),
    ],
)
def test_options_that_cannot_work_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SinkOptionError) as refused:
        SinkOptions.parse({**SERVERS, **given})
    assert message in str(refused.value)


def test_what_only_tunes_a_java_client_is_passed_over_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        options = SinkOptions.parse({**SERVERS, "kafka.send.buffer.bytes": "1000"})
    assert options.client == {}
    assert "kafka.send.buffer.bytes=1000" in caplog.text


# ---- columns


def test_columns_that_are_written() -> None:
    headers = "headers array<struct<key:string,value:binary>>"
    found = columns(
        f"topic string, key binary, value string, partition int, {headers}, offset bigint, timestamp timestamp"
    )
    assert (found.topic, found.names) == (None, ["key", "value", "headers", "partition"])
    found = columns("topic int, value string, timestamp timestamp", topic="one", includeTimestamp="true")
    assert (found.topic, found.names) == ("one", ["value", "timestamp"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topic string, key string", "there is no column value, which holds what is written; there are topic, key"),
        ("value string", "no topic is named: say option('topic'"),
        ("topic string, value bigint", "column value is bigint and must be string or binary: cast it, or encode it as JSON"),
        ("topic string, value string, key int", "column key is int and must be string or binary"),
        ("topic int, value string", "column topic is int and must be string"),
        ("topic string, value string, partition bigint", "column partition is bigint and must be int"),
        ("topic string, value string, headers map<string,binary>", "must be array<struct<key:string,value:binary>>"),
        ("topic string, value string, headers array<struct<key:string,value:string>>", "column headers is array<struct<key:string,value:string>>"),
        ("topic string, Value string", "the column Value must be written value"),
        ("topic string, value string, key string, KEY string", "the column KEY must be written key"),
        ("topic string, value string, key string, key string", "there are two columns key"),
    ],
)  # fmt: skip
def test_frames_that_cannot_be_written_are_refused_when_the_query_is_planned(text: str, message: str) -> None:
    for sink in (BatchSink, StreamSink):
        with pytest.raises(SinkSchemaError) as refused:
            sink(SERVERS, schema(text))
        assert message in str(refused.value)


def test_timestamps_need_their_column() -> None:
    with pytest.raises(SinkSchemaError, match="there is no column timestamp"):
        columns("value string", topic="one", includeTimestamp="true")
    with pytest.raises(SinkSchemaError, match="column timestamp is string and must be timestamp"):
        columns("value string, timestamp string", topic="one", includeTimestamp="true")


# ---- rows


def test_chunks_hold_the_same_rows_in_larger_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_columns, "CHUNK_ROWS", 25)
    whole = pa.table({"value": [b"%d" % n for n in range(100)]})
    batches = [*whole.to_batches(max_chunksize=10), whole.slice(0, 0).to_batches(max_chunksize=10)]
    found = list(chunks(each for each in batches if isinstance(each, pa.RecordBatch)))
    assert [each.num_rows for each in found] == [20] * 5
    assert pa.Table.from_batches(found).equals(whole)
    monkeypatch.setattr(sink_columns, "CHUNK_BYTES", 1)
    assert [each.num_rows for each in chunks(whole.to_batches(max_chunksize=40))] == [40, 40, 20]


def test_rows_of_each_topic_keep_their_order() -> None:
    names = ["a", "b", "c"]
    rows = pa.RecordBatch.from_pydict(
        {
            "topic": [names[n * n % 3] for n in range(50)],
            "value": [b"%d" % n for n in range(50)],
            "other": list(range(50)),
        }
    )
    found = {
        topic: part.column("value").to_pylist()
        for topic, part in by_topic(columns("topic string, value binary"), rows)
    }
    assert found == {name: [b"%d" % n for n in range(50) if names[n * n % 3] == name] for name in ("a", "b")}
    assert [topic for topic, _ in by_topic(columns("topic string, value binary", topic="z"), rows)] == ["z"]


def test_rows_that_cannot_be_placed_are_refused() -> None:
    rows = pa.RecordBatch.from_pydict({"topic": ["a", None, None], "value": [b"", b"", b""]})
    with pytest.raises(SinkError, match="2 of 3 rows have null in column topic"):
        list(by_topic(columns("topic string, value binary"), rows))
    rows = pa.RecordBatch.from_pydict(
        {"partition": pa.array([0, None, -1], pa.int32()), "value": [b"", b"", b""]}
    )
    with pytest.raises(SinkError, match="column partition holds -1"):
        list(by_topic(columns("value binary, partition int", topic="t"), rows))


# ---- delivery


@pytest.fixture
def two_topics(cluster: Cluster) -> Iterator[Cluster]:
    for topic in ("one", "two"):
        cluster.create_topic(topic, 3, exist_ok=True)
    yield cluster
    for topic in ("one", "two"):
        cluster.delete_topic(topic)
    while sink_producers._kept:
        sink_producers._kept.popitem()[1].end()


def rows(start: int, end: int) -> pa.RecordBatch:
    numbers = range(start, end)
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["one" if n % 3 else "two" for n in numbers],
            "key": [b"k%d" % (n % 20) for n in numbers],
            "value": [b"v%d" % n for n in numbers],
        }
    )


def test_a_task_says_what_it_wrote_and_where(two_topics: Cluster) -> None:
    options = SinkOptions.parse({"kafka.bootstrap.servers": two_topics.bootstrap_servers})
    wanted = columns("topic string, key binary, value binary")
    results = [
        AtLeastOnce().write(
            options, wanted, TASK, [rows(n, n + 100) for n in range(first, first + 1000, 100)]
        )
        for first in (0, 1000)
    ]
    assert len(sink_producers._kept) == 1, "the second task had the first one's producer"
    assert [each.rows for each in results] == [1000, 1000]
    for topic in ("one", "two"):
        table = scan_table(two_topics.bootstrap_servers, topic, columns=("partition", "offset", "value"))
        found = table.to_pylist()
        for partition in range(3):
            mine = [
                n
                for n in range(2000)
                if (topic == "one") == bool(n % 3) and partition_for_key(b"k%d" % (n % 20), 3) == partition
            ]
            assert [row["value"] for row in found if row["partition"] == partition] == [
                b"v%d" % n for n in mine
            ]
            told = [
                each
                for result in results
                for each in result.written
                if (each.topic, each.partition) == (topic, partition)
            ]
            half = sum(n < 1000 for n in mine)
            assert told == [
                Written(topic, partition, half, 0, half - 1),
                Written(topic, partition, len(mine) - half, half, len(mine) - 1),
            ]


def test_a_task_that_fails_says_which_and_why_and_leaves_its_producer(two_topics: Cluster) -> None:
    servers = {"kafka.bootstrap.servers": two_topics.bootstrap_servers}
    options = SinkOptions.parse({**servers, "kafka.max.block.ms": "300"})
    wanted = columns("value binary, partition int", topic="one")
    bad = pa.RecordBatch.from_pydict({"value": [b"x"], "partition": pa.array([3], pa.int32())})
    with pytest.raises(SinkError) as failed:
        AtLeastOnce().write(options, wanted, TASK, [bad])
    assert str(failed.value) == (
        "task 3 of micro-batch 7 (attempt 1) could not write all of its rows: "
        "topic one: column 'partition' names partitions from 3 to 3; the topic has 0 to 2"
    )
    assert not sink_producers._kept

    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(0, 10).select(["value"])
        raise OSError("Spark has gone")

    with pytest.raises(OSError, match="Spark has gone"):
        AtLeastOnce().write(options, columns("value binary", topic="one"), TASK, broken())
    assert not sink_producers._kept
    large = SinkOptions.parse(
        {**servers, "kafka.max.request.size": "100000000", "kafka.buffer.memory": "100000000"}
    )
    huge = pa.RecordBatch.from_pydict({"value": [bytes(2_000_000)]})
    with pytest.raises(
        SinkError, match=r"1 of 1 rows were not delivered; the first: writing to one-\d: .*MESSAGE_TOO_LARGE"
    ):
        AtLeastOnce().write(large, columns("value binary", topic="one"), TASK, [huge])


def test_nobody_there_is_an_error_that_says_so() -> None:
    options = SinkOptions.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "200"})
    with pytest.raises(SinkError, match=r"127\.0\.0\.1:1"):
        AtLeastOnce().write(options, columns("value binary", topic="one"), TASK, [])


def test_what_travels_between_processes_is_small() -> None:
    sink = pickle.loads(
        pickle.dumps(StreamSink({**SERVERS, "topic": "t"}, schema("key string, value string")))
    )
    message = TaskWritten(TaskResult(TASK, (Written("t", 0, 10, 5, 14),)))
    assert pickle.loads(pickle.dumps(message)) == message
    sink.commit([message, None], 7)
    sink.abort([message, None], 7)
    assert len(pickle.dumps(sink)) < 1_000
