"""A bounded read from brokers, driven as Spark drives it: which records, which columns, which errors."""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tests.spark.driving import batch, batch_reader, numbered, rows_of, send, values
from tidelog.client import TopicPartition
from tidelog.client.blocking import Admin, Producer
from tidelog.client.errors import ClientError
from tidelog.spark.loss import DataLossError
from tidelog.spark.options import OptionError
from tidelog.testing import Cluster

_numbers = itertools.count()


@pytest.fixture
def servers(cluster: Cluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture
def topic(cluster: Cluster) -> Iterator[str]:
    name = cluster.create_topic(f"batch-{next(_numbers)}", 3)
    yield name
    cluster.delete_topic(name)


def test_every_column_of_every_kind_of_record(servers: str, topic: str) -> None:
    long_ago = 1_500_000_000_123
    with Producer(servers) as producer:
        producer.send(
            topic, b"v", key=b"k", partition=1, timestamp_ms=long_ago, headers=[("h", b"1"), ("n", None)]
        )
        producer.send(topic, None, key=b"tombstone", partition=1, timestamp_ms=long_ago + 1)
        producer.send(topic, b"", key=None, partition=1, timestamp_ms=long_ago + 2)
        producer.flush()
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=long_ago)
    rows = batch(servers, subscribe=topic, includeHeaders="true")
    same = {"topic": topic, "partition": 1, "timestampType": 0}
    header = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    ms = timedelta(milliseconds=1)
    assert rows == [
        {"key": b"k", "value": b"v", "offset": 0, "timestamp": moment, "headers": header, **same},
        {"key": b"tombstone", "value": None, "offset": 1, "timestamp": moment + ms, "headers": None, **same},
        {"key": None, "value": b"", "offset": 2, "timestamp": moment + 2 * ms, "headers": None, **same},
    ]
    assert list(rows[0]) == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(servers: str, topic: str, codec: str) -> None:
    sent = [b"order %d " % number * 5 for number in range(500)]
    send(servers, topic, sent, compression_type=codec)
    assert values(batch(servers, subscribe=topic)) == sent


def test_broker_time(cluster: Cluster, servers: str) -> None:
    name = cluster.create_topic(
        f"stamped-{next(_numbers)}", config={"message.timestamp.type": "LogAppendTime"}
    )
    send(servers, name, [b"x"], timestamp_ms=1)
    (row,) = batch(servers, subscribe=name)
    assert row["timestampType"] == 1 and abs(row["timestamp"].timestamp() - time.time()) < 60


def test_columns_are_pruned_by_schema_and_by_option(servers: str, topic: str) -> None:
    send(servers, topic, numbered(0, 3), key=b"k")
    schema = t.StructType([t.StructField("OFFSET", t.LongType()), t.StructField("value", t.BinaryType())])
    assert batch(servers, schema, subscribe=topic) == [{"OFFSET": n, "value": b"%d" % n} for n in range(3)]
    assert batch(servers, subscribe=topic, columns="partition") == [{"partition": 0}] * 3
    no_nulls = t.StructType([t.StructField("offset", t.LongType(), nullable=False)])
    reader = batch_reader(servers, no_nulls, subscribe=topic)
    (found,) = reader.read(reader.partitions()[0])
    assert not found.schema.field("offset").nullable
    with pytest.raises(OptionError, match="column 'valeu'; there are key"):
        batch_reader(servers, t.StructType([t.StructField("valeu", t.BinaryType())]), subscribe=topic)
    with pytest.raises(OptionError, match="'value' as string; it is binary: cast it after loading"):
        batch_reader(servers, t.StructType([t.StructField("value", t.StringType())]), subscribe=topic)


def test_offsets_and_times_say_where_to_begin_and_end(servers: str, topic: str) -> None:
    for number in range(10):
        send(servers, topic, numbered(number, number + 1), timestamp_ms=1000 * number)
    everywhere = '{"%s": {"0": %d, "1": -2, "2": -2}}'

    def read(**more: str) -> list[bytes]:
        return values(batch(servers, subscribe=topic, **more))

    assert read(startingOffsets=everywhere % (topic, 4)) == numbered(4, 10)
    assert read(endingOffsets=f'{{"{topic}": {{"0": 4, "1": -1, "2": -1}}}}') == numbered(0, 4)
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(startingTimestamp="3500", **latest) == numbered(4, 10)
    assert read(endingTimestamp="3500") == numbered(0, 4)
    with pytest.raises(OptionError, match=f"no record of {topic}-1, {topic}-2 is as late as 3500 ms"):
        read(startingTimestamp="3500")
    by_time = f'{{"{topic}": {{"0": 2000, "1": 0, "2": 0}}}}'
    assert read(startingOffsetsByTimestamp=by_time, endingTimestamp="5000", **latest) == numbered(2, 5)
    with pytest.raises(OptionError, match=f"Missing: {topic}-1, {topic}-2; not read: {topic}-7"):
        read(startingOffsets=f'{{"{topic}": {{"0": 1, "7": 1}}}}')
    with pytest.raises(OptionError, match=f"{topic}-0 begins at offset 9 and ends at 4"):
        ends = f'{{"{topic}": {{"0": 4, "1": -1, "2": -1}}}}'
        read(startingOffsets=everywhere % (topic, 9), endingOffsets=ends)


def test_what_is_not_in_the_log(servers: str, topic: str) -> None:
    send(servers, topic, numbered(0, 10))
    with Admin(servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    starts = f'{{"{topic}": {{"0": 2, "1": 0, "2": 0}}}}'
    ends = f'{{"{topic}": {{"0": 50, "1": 0, "2": 0}}}}'
    with pytest.raises(DataLossError, match=f"{topic}-0: offsets 2 to 4 are gone.*it has 4 to 10"):
        batch(servers, subscribe=topic, startingOffsets=starts)
    with pytest.raises(DataLossError, match=f"{topic}-0 has offsets 4 to 10, and 4 to 50 are asked for"):
        batch(servers, subscribe=topic, endingOffsets=ends)
    rows = batch(servers, subscribe=topic, startingOffsets=starts, endingOffsets=ends, failOnDataLoss="false")
    assert values(rows) == numbered(4, 10)


def test_what_to_read(cluster: Cluster, servers: str) -> None:
    for name in ("ways-a", "ways-b", "other-ways"):
        cluster.create_topic(name, 2)
        send(servers, name, [name.encode()] * 2)
        send(servers, name, [b"second"], partition=1)
    assert sorted(values(batch(servers, subscribe="ways-a, ways-b"))) == sorted(
        [b"ways-a"] * 2 + [b"ways-b"] * 2 + [b"second"] * 2
    )
    assert {row["topic"] for row in batch(servers, subscribePattern="ways-.*")} == {"ways-a", "ways-b"}
    assert batch(servers, subscribePattern="nothing.*") == []
    assert values(batch(servers, assign='{"ways-a": [1]}')) == [b"second"]
    with pytest.raises(OptionError, match="subscribe names absent, which does not exist"):
        batch(servers, subscribe="ways-a,absent")
    with pytest.raises(OptionError, match="assign names ways-a-7, which does not exist"):
        batch(servers, assign='{"ways-a": [0, 7]}')


def test_tasks(servers: str, topic: str) -> None:
    for partition in range(3):
        send(servers, topic, numbered(0, 100), partition=partition)

    def tasks(**more: str) -> list[int]:
        reader = batch_reader(servers, subscribe=topic, **more)
        parts = reader.partitions()
        assert len(rows_of(reader, parts)) == 300
        return [len(part.ranges) for part in parts]

    assert tasks() == [3]  # so little that one task is enough
    assert tasks(minPartitions="10") == [1] * 10
    assert tasks(maxRecordsPerPartition="30") == [1] * 12


def pushed(servers: str, topic: str, *filters: Filter) -> tuple[list[tuple[int, int]], list[Filter]]:
    """Partition and offset of what is read, and the filters that are left to Spark."""
    reader = batch_reader(servers, subscribe=topic)
    left = list(reader.pushFilters(list(filters)))
    rows = rows_of(reader, reader.partitions())
    return [(row["partition"], row["offset"]) for row in rows], left


def test_filters_on_places_are_exact(servers: str, topic: str) -> None:
    for partition in range(3):
        send(servers, topic, numbered(0, 10), partition=partition)
    place, offset, name = ("partition",), ("offset",), ("topic",)
    found, left = pushed(
        servers,
        topic,
        IsNotNull(offset),
        GreaterThan(offset, 3),
        LessThanOrEqual(offset, 6),
        Not(EqualTo(place, 1)),
    )
    assert found == [(p, n) for p in (0, 2) for n in (4, 5, 6)] and left == []
    found, left = pushed(
        servers, topic, In(offset, (2, 4)), EqualTo(place, 0), StringStartsWith(name, topic[:3])
    )
    assert found == [(0, 2), (0, 3), (0, 4)] and left == [In(offset, (2, 4))]  # Spark drops the one between
    found, left = pushed(servers, topic, EqualTo(name, "another"))
    assert found == [] and left == []
    found, left = pushed(servers, topic, GreaterThanOrEqual(offset, 100))
    assert found == [] and left == []
    unknown = EqualTo(("value",), b"x")
    found, left = pushed(servers, topic, unknown, LessThan(offset, 1))
    assert len(found) == 3 and left == [unknown]


def test_filters_on_times_leave_nothing_out(servers: str, topic: str) -> None:
    """Times go up and down; what is behind the first one that is late enough is read, older or not."""
    times_s = [10, 30, 20, 40, 15]
    for number, seconds in enumerate(times_s):
        send(servers, topic, [b"%d" % number], timestamp_ms=1000 * seconds)
    at = ("timestamp",)
    filters: list[Filter] = [GreaterThanOrEqual(at, datetime(1970, 1, 1, 0, 0, 25, 500, tzinfo=UTC))]
    found, left = pushed(servers, topic, *filters)
    assert found == [(0, 1), (0, 2), (0, 3), (0, 4)] and left == filters
    filters = [LessThan(at, datetime(1970, 1, 1, 0, 0, 12, tzinfo=UTC))]
    found, left = pushed(servers, topic, *filters)
    assert len(found) == 5 and left == filters
    late = [GreaterThan(at, datetime(2030, 1, 1, tzinfo=UTC))]
    assert pushed(servers, topic, *late) == ([], late)


def test_large_records_and_many_fetches(servers: str, topic: str) -> None:
    sent = [bytes([number]) * 200_000 for number in range(40)]
    send(servers, topic, sent)
    small = {"kafka__max__partition__fetch__bytes": "1000000", "kafka__fetch__max__bytes": "1500000"}
    assert values(batch(servers, subscribe=topic, **small)) == sent
    one_by_one = {"kafka__max__partition__fetch__bytes": "1000"}
    assert values(batch(servers, subscribe=topic, **one_by_one)) == sent


def test_no_broker_at_all() -> None:
    started = time.monotonic()
    with pytest.raises(ClientError, match=r"cannot connect to 127\.0\.0\.1:1.*connection refused") as caught:
        batch(
            "127.0.0.1:1", subscribe="x", fetchOffset__numRetries="2", kafka__default__api__timeout__ms="300"
        )
    assert time.monotonic() - started < 50, "not the minute that clients wait by themselves"
    assert "kafka.default.api.timeout.ms" in "".join(caught.value.__notes__)


def test_a_topic_that_goes_between_planning_and_reading(cluster: Cluster, servers: str) -> None:
    name = cluster.create_topic(f"gone-{next(_numbers)}")
    send(servers, name, numbered(0, 5))
    strict = batch_reader(servers, subscribe=name, kafka__retry__backoff__max__ms="20")
    lax = batch_reader(servers, subscribe=name, failOnDataLoss="false", kafka__retry__backoff__max__ms="20")
    plans = strict.partitions(), lax.partitions()
    cluster.delete_topic(name)
    with pytest.raises(DataLossError, match=f"{name}-0 was deleted: offsets 0 to 5 are gone"):
        rows_of(strict, plans[0])
    assert rows_of(lax, plans[1]) == []
    cluster.create_topic(name)
    send(servers, name, numbered(100, 120))
    with pytest.raises(DataLossError, match=f"topic {name} was deleted and made anew"):
        rows_of(strict, plans[0])
    assert rows_of(lax, plans[1]) == []


def test_records_that_are_deleted_between_planning_and_reading(servers: str, topic: str) -> None:
    send(servers, topic, numbered(0, 10))
    strict, lax = (batch_reader(servers, subscribe=topic, failOnDataLoss=each) for each in ("true", "false"))
    plans = strict.partitions(), lax.partitions()
    with Admin(servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    with pytest.raises(
        DataLossError, match=f"{topic}-0: offsets 0 to 6 were deleted before they were read.*6 to 10 now"
    ):
        rows_of(strict, plans[0])
    assert values(rows_of(lax, plans[1])) == numbered(6, 10)


def test_what_travels_to_workers_is_small(servers: str, topic: str) -> None:
    reader = batch_reader(servers, subscribe=topic)
    assert len(pickle.dumps(reader)) < 2000
