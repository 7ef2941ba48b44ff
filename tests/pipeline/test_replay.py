"""*replay* with a real Spark: what arrives compared with what was there, also when it was interrupted; and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tidelog.client.blocking import Admin, Consumer, Producer
from tidelog.client.metadata import TopicPartition
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.jobs import replay
from tidelog.pipeline.options import read_options
from tidelog.pipeline.replay_targets import FileTarget, TableTarget, TopicTarget
from tidelog.testing import Cluster

pytestmark = pytest.mark.slow

PARTITIONS = 3
RECORDS = 600
BASE_MS = 1_700_000_000_000


class InterruptError(Exception):
    pass


@pytest.fixture(scope="module")
def source(cluster: Cluster) -> str:
    """Times go up by a second from record to record; some keys, values and headers are missing."""
    topic = cluster.create_topic("source", PARTITIONS)
    chance = random.Random(1)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(RECORDS):
            producer.send(
                topic,
                None if chance.random() < 0.1 else b"\xff%d" % number,
                key=None if chance.random() < 0.1 else b"k%d" % (number % 17),
                headers=(("n", b"%d" % number),) if number % 3 else (),
                partition=number % PARTITIONS,
                timestamp_ms=BASE_MS + number * 1000,
            )
    return topic


Record = tuple[Any, ...]


def contents(cluster: Cluster, topic: str) -> dict[int, list[Record]]:
    """By partition: key, value, headers, timestamp, offset."""
    found: dict[int, list[Record]] = {}
    with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        tps = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
        ends = consumer.end_offsets(tps)
        consumer.assign(tps)
        while any(consumer.position(tp) < ends[tp] for tp in tps):
            for each in consumer.poll():
                row = (each.key, each.value, tuple(each.headers), each.timestamp_ms, each.offset)
                found.setdefault(each.partition, []).append(row)
    return found


def run(spark: Any, cluster: Cluster, state: Path, **table: Any) -> tuple[Any, dict[str, int]]:
    context = JobContext(spark=spark, name="again", brokers=cluster.bootstrap_servers, state=str(state))
    result = replay.run(context, read_options(replay.Options, table))
    return result, context.counters.now()


def test_to_a_topic_with_an_interruption(
    spark: Any, cluster: Cluster, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"topics": source, "to_topic": "copy", "offsets_per_step": 250, "position_headers": True}
    write = TopicTarget.write

    def dying(self: Any, rows: Any, plan: Any) -> Any:
        if plan.done == 1:
            raise InterruptError
        return write(self, rows, plan)

    with monkeypatch.context() as patched, pytest.raises(InterruptError):
        patched.setattr(TopicTarget, "write", dying)
        run(spark, cluster, tmp_path, **table)
    result, counters = run(spark, cluster, tmp_path, **table)
    assert result["records"] == RECORDS == counters["records"]
    assert counters["steps done"] == counters["steps in all"] == 3
    expected = {
        number: [
            (key, value, (*headers, ("replay.topic", source.encode()), ("replay.partition", b"%d" % number), ("replay.offset", b"%d" % offset), ("replay.timestamp", b"%d" % time)), time, offset)
            for key, value, headers, time, offset in rows
        ]
        for number, rows in contents(cluster, source).items()
    }  # fmt: skip
    assert contents(cluster, "copy") == expected
    assert run(spark, cluster, tmp_path, **table)[0] == result
    assert contents(cluster, "copy") == expected, "a replay that is done copies nothing"
    with pytest.raises(replay.ReplayError, match=r"other options \(to_topic\)"):
        run(spark, cluster, tmp_path, **{**table, "to_topic": "elsewhere"})


def test_by_key_where_partitions_differ(spark: Any, cluster: Cluster, source: str, tmp_path: Path) -> None:
    cluster.create_topic("narrow", 2)
    with pytest.raises(replay.ReplayError, match="has 3 partitions and narrow has 2"):
        run(spark, cluster, tmp_path / "kept", topics=source, to_topic="narrow", partitions="keep")
    run(
        spark,
        cluster,
        tmp_path / "free",
        topics=source,
        to_topic="narrow",
        from_offsets=json.dumps({source: {"1": 40}}),
    )
    wanted = [row for row in contents(cluster, source)[1] if row[4] >= 40]
    found = contents(cluster, "narrow")
    keyed = [row[:4] for rows in found.values() for row in rows if row[0]]
    assert sorted(keyed, key=repr) == sorted((row[:4] for row in wanted if row[0]), key=repr)
    assert sum(map(len, found.values())) == len(wanted)
    for rows in found.values():
        for key in {row[0] for row in rows if row[0]}:
            assert [row[3] for row in rows if row[0] == key] == [row[3] for row in wanted if row[0] == key]


def test_segments_by_time_into_a_table_and_a_file(
    spark: Any, cluster: Cluster, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = {
        "topics": source,
        "path": str(cluster.data_dir),
        "high_watermark": "none",
        "from_time": str(BASE_MS + 100_000),
        "to_time": "2023-11-14T22:18:20Z",
        "offsets_per_step": 90,
    }
    expected = sorted(
        (number, offset, key, value, time, headers)
        for number, rows in contents(cluster, source).items()
        for key, value, headers, time, offset in rows
        if BASE_MS + 100_000 <= time < BASE_MS + 300_000
    )  # fmt: skip
    assert len(expected) == 200
    run(spark, cluster, tmp_path / "t", **common, table=str(tmp_path / "table"))
    from deltalake import DeltaTable

    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert expected == sorted(
        (
            row["partition"], row["offset"], row["key"], row["value"], round(row["timestamp"].timestamp() * 1000),
            tuple((each["key"], each["value"]) for each in row["headers"] or ()),
        )
        for row in rows
    )  # fmt: skip
    path = tmp_path / "records.jsonl"
    write = FileTarget.write

    def dying(self: Any, rows: Any, plan: Any) -> Any:
        after = write(self, rows, plan)
        if plan.done == 1:
            raise InterruptError  # written, and not noted
        return after

    with monkeypatch.context() as patched, pytest.raises(InterruptError):
        patched.setattr(FileTarget, "write", dying)
        run(spark, cluster, tmp_path / "f", **common, file=str(path))
    run(spark, cluster, tmp_path / "f", **common, file=str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((line["partition"], line["offset"], line["timestamp"]) for line in lines) == [
        (row[0], row[1], row[4]) for row in expected
    ]
    with pytest.raises(replay.ReplayError, match="there already"):
        run(spark, cluster, tmp_path / "g", **common, file=str(path))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_into_other_tables_each_record_is_there_once_over_an_interruption(
    spark: Any, cluster: Cluster, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = {"topics": source, "table": str(tmp_path / "copy"), "table_format": kind, "offsets_per_step": 250}
    write = TableTarget.write

    def dying(self: Any, rows: Any, plan: Any) -> Any:
        after = write(self, rows, plan)
        if plan.done == 1:
            raise InterruptError  # in the table, and not noted
        return after

    with monkeypatch.context() as patched, pytest.raises(InterruptError):
        patched.setattr(TableTarget, "write", dying)
        run(spark, cluster, tmp_path / "state", **table)
    result, counters = run(spark, cluster, tmp_path / "state", **table)
    expected = sorted(
        ((source, number, offset, key, value, time, headers))
        for number, rows in contents(cluster, source).items()
        for key, value, headers, time, offset in rows
    )
    assert len(expected) == RECORDS and counters["steps done"] == counters["steps in all"] == 3
    assert result["records"] == RECORDS == counters["records"]
    assert [
        (
            row["topic"], row["partition"], row["offset"], row["key"], row["value"],
            round(row["timestamp"].timestamp() * 1000),
            tuple((each["key"], each["value"]) for each in row["headers"] or ()),
        )
        for row in table_rows(kind, tmp_path / "copy")
    ] == expected  # fmt: skip


def table_rows(kind: str, path: Path) -> list[dict[str, Any]]:
    """By a reader that knows nothing of the writer, in the order of the log."""
    if kind == "parquet":
        import pyarrow.dataset as ds

        table = ds.dataset(str(path), format="parquet", partitioning="hive").to_table()
    else:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("tidelog", type="sql", uri=f"sqlite:///{path.parent}/iceberg.db")
        table = catalog.load_table(f"default.{path.name}").scan().to_arrow()
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def test_what_is_gone_is_refused(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.create_topic("shrinking", 1)
    tp = TopicPartition(topic, 0)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, timestamp_ms=BASE_MS + number)
    with Admin(cluster.bootstrap_servers) as admin:
        admin.delete_records({tp: 30})
    table = {"topics": topic, "to_topic": "rest"}
    start = json.dumps({topic: {"0": 10}})
    with pytest.raises(
        replay.ReplayError, match="offsets 10 to 30 are gone, by retention or because they were deleted"
    ):
        run(spark, cluster, tmp_path / "a", **table, from_offsets=start)
    with pytest.raises(replay.ReplayError, match="may be gone"):
        run(spark, cluster, tmp_path / "b", **table, from_time=str(BASE_MS + 10))
    with pytest.raises(replay.ReplayError, match="has offsets 30 to 100, and 30 to 500 are asked for"):
        run(spark, cluster, tmp_path / "c", **table, to_offsets=json.dumps({topic: {"0": 500}}))
    with pytest.raises(replay.ReplayError, match="no topic nowhere"):
        run(spark, cluster, tmp_path / "d", **{**table, "topics": "nowhere"})

    def dying(self: Any, rows: Any, plan: Any) -> Any:
        raise InterruptError

    with monkeypatch.context() as patched, pytest.raises(InterruptError):
        patched.setattr(TopicTarget, "write", dying)
        run(spark, cluster, tmp_path / "e", **table, from_offsets=start, fail_on_data_loss=False)
    run(spark, cluster, tmp_path / "e", **table, from_offsets=start, fail_on_data_loss=False)
    assert [row[1] for row in contents(cluster, "rest")[0]] == [b"%d" % number for number in range(30, 100)]
    with monkeypatch.context() as patched, pytest.raises(InterruptError):
        patched.setattr(TopicTarget, "write", dying)
        run(spark, cluster, tmp_path / "f", **table)
    cluster.delete_topic(topic)
    cluster.create_topic(topic, 1)
    with pytest.raises(replay.ReplayError, match="deleted and made anew since the replay began"):
        run(spark, cluster, tmp_path / "f", **table)
