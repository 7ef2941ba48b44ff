"""Checkpoints of Spark's own Kafka source, byte for byte as it writes them, are carried over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.spark.checkpoints import CheckpointError, import_jvm_checkpoint
from tidelog.spark.offsets import Offsets

METADATA = (
    '{"batchWatermarkMs":0,"batchTimestampMs":1760000000000,"conf":{"spark.sql.shuffle.partitions":"2"}}'
)


def write(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def jvm_checkpoint(directory: Path, *ends: str, commits: int, begin: str = '{"f1":{"0":0,"1":0}}') -> Path:
    """Offsets of batches 0, 1, …; the first `commits` of them are done."""
    write(directory / "metadata", '{"id":"0c1d6f0e-0f6b-4b5e-9d3c-5f3e8f0a1b2c"}')
    write(directory / "sources" / "0" / "0", b"\0v1\n" + begin.encode())
    write(directory / "sources" / "0" / ".0.crc", b"crc\0\0\0\2\0")
    for number, end in enumerate(ends):
        write(directory / "offsets" / str(number), f"v1\n{METADATA}\n{end}")
        write(directory / "offsets" / f".{number}.crc", b"crc\0\0\0\2\0")
    for number in range(commits):
        write(directory / "commits" / str(number), 'v1\n{"nextBatchWatermarkMs":0}')
    return directory


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.is_file()
    }


def test_one_that_is_done_is_copied_as_it_is(tmp_path: Path) -> None:
    old = jvm_checkpoint(tmp_path / "old", '{"f1":{"0":20,"1":5}}', '{"f1":{"0":33,"1":9}}', commits=2)
    before = files(old)
    found = import_jvm_checkpoint(str(old), str(tmp_path / "new"))
    assert files(tmp_path / "new") == before == files(old)
    assert found.batch == 1 and found.is_done
    assert found.positions == {0: Offsets.from_json({"f1": {"0": 33, "1": 9}})}
    assert str(found) == "batch 1 is done, then it goes on in 2 partitions of 1 source"


def test_a_first_batch_that_is_not_done_keeps_its_beginning(tmp_path: Path) -> None:
    old = jvm_checkpoint(tmp_path / "old", '{"f1":{"0":20,"1":5}}', commits=0, begin='{"f1":{"0":7,"1":5}}')
    found = import_jvm_checkpoint(f"file://{old}", str(tmp_path / "new"))
    assert found.batch == 0 and not found.is_done
    version, metadata, line = (tmp_path / "new" / "offsets" / "0").read_text().split("\n")
    assert (version, metadata) == ("v1", METADATA)
    assert list(Offsets.from_json(line).since(Offsets({})).values()) == [(7, 20), (5, 5)]
    assert not (tmp_path / "new" / "offsets" / ".0.crc").exists()
    assert "begins" not in (old / "offsets" / "0").read_text()


def test_a_query_that_had_no_batch_yet_begins_where_it_was_started(tmp_path: Path) -> None:
    old = jvm_checkpoint(tmp_path / "old", commits=0, begin='{"f1":{"0":7,"1":5}}')
    found = import_jvm_checkpoint(str(old), str(old))  # in place
    assert found.batch is None and "begins where the old query began" in str(found)
    line = (old / "offsets" / "0").read_text().split("\n")[2]
    assert set(Offsets.from_json(line).since(Offsets({})).values()) == {(7, 7), (5, 5)}


def test_sources_keep_their_places(tmp_path: Path) -> None:
    lines = '{"logOffset":4}\n{"f1":{"0":20}}\n-\n{"f2":{"0":3}}'
    old = jvm_checkpoint(tmp_path / "old", lines, commits=0)
    write(old / "sources" / "1" / "0", b'\0v1\n{"f1":{"0":11}}')
    found = import_jvm_checkpoint(str(old), str(tmp_path / "new"))
    assert sorted(found.positions) == [1, 3]
    changed = (tmp_path / "new" / "offsets" / "0").read_text().split("\n")[2:]
    assert [changed[0], changed[2], changed[3]] == ['{"logOffset":4}', "-", '{"f2":{"0":3}}']
    assert set(Offsets.from_json(changed[1]).since(Offsets({})).values()) == {(11, 20)}


def test_what_cannot_be_carried_over(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="is no checkpoint of a query"):
        import_jvm_checkpoint(str(tmp_path / "empty"), str(tmp_path / "new"))
    ours = jvm_checkpoint(tmp_path / "ours", '{"f1":{"0":20},"#":{"ids":{"f1":"00"}}}', commits=1)
    with pytest.raises(CheckpointError, match="holds no offsets of Kafka's topics"):
        import_jvm_checkpoint(str(ours), str(tmp_path / "new"))
    newer = jvm_checkpoint(tmp_path / "newer", '{"f1":{"0":20}}', commits=1)
    write(newer / "offsets" / "0", "v2\n{}\n{}")
    with pytest.raises(CheckpointError, match="has version 'v2'"):
        import_jvm_checkpoint(str(newer), str(tmp_path / "new"))
    good = jvm_checkpoint(tmp_path / "good", '{"f1":{"0":20}}', commits=1)
    with pytest.raises(CheckpointError, match="exists already"):
        import_jvm_checkpoint(str(good), str(tmp_path / "empty"))
    with pytest.raises(CheckpointError, match="copy this one here first"):
        import_jvm_checkpoint("hdfs://nn/checkpoint", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
