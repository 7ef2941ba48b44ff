"""`format("tidelog")` with a path in a real Spark: the files of a broker hold what the broker has served."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.spark.segments_world import NOW_MS, LogMaker, flipped, records, segment_paths
from tidelog.records.batch import read_header
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow

LIVE = {"log.flush.offset.checkpoint.interval.ms": 500}
PER_CODEC = 300
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Row = tuple[str, int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


class Served(NamedTuple):
    data_dir: Path
    rows: dict[str, list[Row]]


def consume(cluster: Cluster, topic: str) -> list[Row]:
    """Everything that a topic shows to a plain client."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
    )
    partitions = list(consumer.list_topics(topic, 10).topics[topic].partitions)
    ends = {each: consumer.get_watermark_offsets(TopicPartition(topic, each)) for each in partitions}
    consumer.assign([TopicPartition(topic, each, low) for each, (low, _) in ends.items()])
    rows: list[Row] = []
    while any(
        position.offset < ends[position.partition][1]
        for position in consumer.position([TopicPartition(topic, each) for each in partitions])
        if ends[position.partition][0] < ends[position.partition][1]
    ):
        for message in consumer.consume(1000, 0.2):
            assert not message.error()
            headers = tuple((name, value) for name, value in message.headers() or [])
            rows.append(
                (
                    topic,
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    headers,
                )
            )
    consumer.close()
    return sorted(rows)


def fill(cluster: Cluster, topic: str, partitions: int) -> None:
    from confluent_kafka import Producer

    def delivered(error: Any, _: Any) -> None:
        assert error is None, error

    for codec in CODECS:
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec, "log_level": 0}
        )
        for number in range(PER_CODEC):
            producer.produce(
                topic,
                None if number % 7 == 0 else b"%s %d " % (codec.encode(), number) * 20,
                key=None if number % 5 == 0 else b"k%d" % (number % 11),
                partition=number % partitions,
                headers={"n": str(number), "none": None} if number % 3 == 0 else None,
                timestamp=NOW_MS + number * 1000,
                on_delivery=delivered,
            )
            if number % 50 == 0:
                producer.flush(30)  # a batch must fit into a segment
        assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A stopped broker's directory with a plain topic, and one with its beginning deleted."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    path = tmp_path_factory.mktemp("data")
    small = {"segment.bytes": 1 << 20, "internal.segment.bytes": 30_000}
    config = {"durability": "replicated"}
    with Cluster(data_dir=path, config=config) as cluster:
        cluster.create_topic("mixed", 2, config=small)
        cluster.create_topic("short", 1, config=small)
        fill(cluster, "mixed", 2)
        fill(cluster, "short", 1)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for done in admin.delete_records([TopicPartition("short", 0, 700)]).values():
            done.result(10)
        rows = {topic: consume(cluster, topic) for topic in ("mixed", "short")}
    yield Served(path, rows)


def as_rows(frame: Any) -> list[Row]:
    return sorted(
        (
            row.topic,
            row.partition,
            row.offset,
            round(row.timestamp.timestamp() * 1000),
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            tuple(
                (each.key, None if each.value is None else bytes(each.value)) for each in row.headers or ()
            ),
        )
        for row in frame.collect()
    )


def load(spark: Any, path: Path, **options: str) -> Any:
    return spark.read.format("tidelog").options(**options).load(str(path))


def test_files_hold_what_the_broker_served(spark: Any, served: Served) -> None:
    found = as_rows(load(spark, served.data_dir, includeHeaders="true"))
    expected = sorted(row for rows in served.rows.values() for row in rows)
    assert len(served.rows["short"]) == len(CODECS) * PER_CODEC - 700
    assert found == expected
    one = load(spark, served.data_dir / "mixed-1", includeHeaders="true", minPartitions="5")
    assert one.rdd.getNumPartitions() == 5
    assert as_rows(one) == [row for row in served.rows["mixed"] if row[1] == 1]


def test_schemas_filters_and_segment_columns(spark: Any, served: Served) -> None:
    mixed = served.rows["mixed"]
    pruned = spark.read.format("tidelog").schema("partition int, offset long").option("subscribe", "mixed")
    counted = pruned.load(str(served.data_dir)).groupBy("partition").count().collect()
    assert {row["partition"]: row["count"] for row in counted} == {
        number: sum(row[1] == number for row in mixed) for number in (0, 1)
    }
    moment = NOW_MS + 200_000
    query = f"offset >= 200 and partition = 1 and timestamp >= timestamp_millis({moment})"
    expected = [row for row in mixed if row[1] == 1 and row[2] >= 200 and row[3] >= moment]
    for is_pushed in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", is_pushed)
        try:
            frame = load(spark, served.data_dir, subscribe="mixed", includeHeaders="true").where(query)
            assert as_rows(frame) == expected
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    where = load(spark, served.data_dir, assign='{"mixed": [0]}', segmentColumns="true", columns="offset")
    batches = (
        where.groupBy("segment", "position", "batch_base_offset", "batch_last_offset", "compression")
        .count()
        .collect()
    )
    assert sum(row["count"] for row in batches) == len([row for row in mixed if row[1] == 0])
    for row in batches:
        assert row["count"] == row.batch_last_offset - row.batch_base_offset + 1
        with open(row.segment, "rb") as file:
            file.seek(row.position)
            assert int.from_bytes(file.read(8), "big") == row.batch_base_offset
    assert {row.compression for row in batches} == set(CODECS)


def test_committed_records_and_damage(spark: Any, tmp_path: Path) -> None:
    maker = LogMaker(tmp_path)
    for number in range(40):
        maker.data([NOW_MS] * 3, producer_id=7, transactional=True)
        maker.data([NOW_MS] * 2, producer_id=8, transactional=True)
        if number % 4 == 3:
            maker.marker(7, commit=number % 8 == 3)
        if number == 30:
            maker.marker(8, commit=True)
    maker.stop(high_watermark=maker.end - 3)
    for level in ("read_uncommitted", "read_committed"):
        frame = load(spark, tmp_path, **{"kafka.isolation.level": level})
        expected = maker.visible(high_watermark=maker.end - 3, committed=level == "read_committed")
        assert sorted(row.offset for row in frame.select("offset").collect()) == [
            row.offset for row in expected
        ]
    shown = load(spark, tmp_path, segmentColumns="true", includeControl="true").where("is_control")
    assert {row.producer_id for row in shown.collect()} == {7, 8}

    victim = segment_paths(maker.directory)[2]
    flipped(victim, 100)
    lost = read_header(victim.read_bytes()).record_count
    with pytest.raises(Exception, match=f"{victim.name} is damaged at position 0.*tidelog log verify"):
        load(spark, tmp_path).count()
    left = load(spark, tmp_path, onDamage="skip").count()
    assert left == len(maker.visible(high_watermark=maker.end - 3)) - lost
    with pytest.raises(Exception, match="read as a batch"):
        spark.readStream.format("tidelog").load(str(tmp_path)).writeStream.format(
            "noop"
        ).start().awaitTermination()


def test_a_live_broker_is_read_up_to_its_checkpoint(spark: Any, tmp_path: Path) -> None:
    with Cluster(data_dir=tmp_path, config=LIVE) as cluster:
        cluster.create_topic("live", 1, config={"internal.segment.bytes": 30_000})
        fill(cluster, "live", 1)
        expected = consume(cluster, "live")
        deadline = time.monotonic() + 100
        while "live 0 1500" not in _text(tmp_path / "replication-offset-checkpoint"):
            assert time.monotonic() < deadline, "no checkpoint was written"
            time.sleep(0.2)
        fill(cluster, "live", 1)
        found = as_rows(load(spark, tmp_path, includeHeaders="true"))
        assert found[: len(expected)] == expected
        assert found == consume(cluster, "live")[: len(found)]


def test_compacted_files_hold_what_the_broker_serves(tmp_path: Path) -> None:
    """Gaps in offsets are no damage. Without Spark: the reader is the same."""
    from confluent_kafka import Producer

    config = {
        "internal.segment.bytes": 30_000,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "file.delete.delay.ms": "0",
    }
    with Cluster(
        data_dir=tmp_path, config={"durability": "replicated", "log.cleaner.backoff.ms": 100}
    ) as cluster:
        cluster.create_topic("states", 1, config=config)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        for number in range(3000):
            producer.produce("states", b"state %d " % number * 6, key=b"k%d" % (number % 30))
            if number % 100 == 0:
                producer.flush(30)
        assert producer.flush(30) == 0
        deadline = time.monotonic() + 200
        while len(consume(cluster, "states")) > 2500:
            assert time.monotonic() < deadline, "the broker has not compacted in time"
            time.sleep(0.2)
    found = records(tmp_path)
    with Cluster(data_dir=tmp_path, config={"log.cleaner.enable": "false"}) as cluster:
        expected = consume(cluster, "states")
    assert found[-1].offset == 2999 and len(found) < 2500
    assert [(row.offset, row.timestamp, row.key, row.value) for row in found] == [
        row[2:6] for row in expected
    ]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
