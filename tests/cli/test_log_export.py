"""`tidelog log export`: every record of a stopped broker's segments, once, in a Parquet or Arrow file."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from tidelog.cli.app import app
from tidelog.spark.segments import pieces
from tidelog.testing import Cluster

RECORDS = 500


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped broker's directory with a topic of two partitions in several small segments."""
    from confluent_kafka import Producer

    path = tmp_path_factory.mktemp("data")
    with Cluster(
        data_dir=path, config={"log.segment.bytes": 1024 * 1024, "durability": "replicated"}
    ) as cluster:
        cluster.create_topic("orders", 2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": "lz4"})
        for number in range(RECORDS):
            key = None if number % 5 == 0 else b"k%d" % number
            producer.produce(
                "orders", b"v%d" % number, key=key, partition=number % 2, headers={"n": str(number)}
            )
        assert producer.flush(30) == 0
    return path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["log", "export", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def read(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return parquet.read_table(path)
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_every_record_is_exported_once(data_dir: Path, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"orders{suffix}"
    said = json.loads(run(str(data_dir), "--to", str(target), "--json"))
    assert said["records"] == RECORDS
    rows = read(target).sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
        ("orders", partition, offset) for partition in range(2) for offset in range(RECORDS // 2)
    ]
    for row in rows:
        number = row["offset"] * 2 + row["partition"]
        assert row["value"] == b"v%d" % number
        assert row["key"] == (None if number % 5 == 0 else b"k%d" % number)
        assert row["headers"] == [{"key": "n", "value": str(number).encode()}]


def test_one_partition_alone(data_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "one.arrow"
    run(str(data_dir / "orders-1"), "--to", str(target))
    assert set(read(target)["partition"].to_pylist()) == {1}


def test_batches_larger_than_a_piece(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 100)
    target = tmp_path / "small-pieces.arrow"
    assert f"{RECORDS} records" in run(str(data_dir), "--to", str(target))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{data}", "--to", "orders.csv"], ".parquet or .arrow"),
        (["{data}/nowhere", "--to", "x.arrow"], "is not there"),
        (["{data}/orders-0/leader-epoch-checkpoint-dir", "--to", "x.arrow"], "is not there"),
    ],
)
def test_what_cannot_be_exported_is_said(
    data_dir: Path, tmp_path: Path, arguments: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["log", "export", *(text.format(data=data_dir) for text in arguments)])
    assert result.exit_code == 1
    assert problem in result.output
    assert list(tmp_path.iterdir()) == []
