"""The audit on Spark: two replicas, harmed in several ways, and results compared with what plain Python finds in the same files."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from tests.spark.segments_world import NOW_MS, LogMaker, flipped, segment_paths
from tidelog.pipeline.context import JobContext
from tidelog.pipeline.jobs import audit
from tidelog.records.batch import iter_headers, patched_prefix, write_crc
from tidelog.records.record import iter_records

pytestmark = pytest.mark.slow


def build(data_dir: Path) -> None:
    """Three partitions; partition 1 has most of the records, and most of those have one key."""
    for partition, batches in ((0, 30), (1, 90), (2, 10)):
        maker = LogMaker(data_dir, "orders", partition)
        for number in range(batches):
            key = b"whale" if partition == 1 and number % 3 else b"k%d" % (number % 7)
            maker.epoch = number // 50
            maker.data(
                [NOW_MS + partition * 1000 + number * 60_000] * (1 + number % 4),
                producer_id=5,
                key=key,
                value_bytes=60,
            )
        maker.stop()


def context(spark: Any, state: Path) -> JobContext:
    return JobContext(spark=spark, name="audit", brokers="", state=str(state))


def rows(output: Path, name: str) -> list[dict[str, Any]]:
    return parquet.read_table(output / "tables" / name).to_pylist()


def batches(directory: Path) -> list[tuple[Path, int, Any, bytes]]:
    return [
        (path, at, header, content[at : at + header.size])
        for path in segment_paths(directory)
        for content in (path.read_bytes(),)
        for at, header in iter_headers(content)
    ]


@pytest.mark.long
def test_sound_replicas(spark: Any, tmp_path: Path) -> None:
    build(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    options = audit.Options(paths=(str(tmp_path / "a"), str(tmp_path / "b")), hot_keys=3)
    told = audit.run(context(spark, tmp_path / "state"), options)
    output = tmp_path / "state" / "audit"
    assert {kind: told[f"{kind}_errors"] for kind in audit.KINDS} == dict.fromkeys(audit.KINDS, 0)
    assert (told["partitions"], told["replicas"]) == (3, 6)

    # The same, by plain Python.
    keys: Counter[bytes | None] = Counter()
    for partition in range(3):
        stored = batches(tmp_path / "a" / f"orders-{partition}")
        (found, _) = [row for row in rows(output, "partitions") if row["partition"] == partition]
        assert found["records"] == sum(header.record_count for _, _, header, _ in stored)
        assert found["bytes"] == sum(header.size for _, _, header, _ in stored)
        assert found["batches"] == len(stored)
        assert found["segments"] == len(segment_paths(tmp_path / "a" / f"orders-{partition}"))
        assert found["first_ms"] == min(header.base_timestamp for _, _, header, _ in stored)
        assert found["last_ms"] == max(header.max_timestamp for _, _, header, _ in stored)
        for _, _, header, data in stored:
            keys.update(record.key for record in iter_records(data, 0, header))
    total = sum(keys.values())
    assert told["records"] == 2 * total
    hot = rows(output, "hot_keys")
    assert [row["records"] for row in hot] == [count for _, count in keys.most_common(3)]
    assert (hot[0]["key"], hot[0]["partition"], hot[0]["partitions"]) == (b"whale", 1, 1)
    assert hot[0]["share"] == pytest.approx(keys[b"whale"] / total)
    assert sum(row["records"] for row in rows(output, "timeline")) == total
    assert rows(output, "damage") == rows(output, "replicas") == []
    report = (output / "report.md").read_text()
    assert "Nothing is wrong" in report and "`whale`" in report
    for plot in ("partitions", "hot_keys", "timeline"):
        assert (output / "plots" / f"{plot}.png").read_bytes().startswith(b"\x89PNG")
        assert f"plots/{plot}.png" in report


def test_harmed_replicas(spark: Any, tmp_path: Path) -> None:
    build(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    flipped(segment_paths(tmp_path / "a" / "orders-0")[0], 80)  # a broken batch in one replica
    damaged = batches(tmp_path / "b" / "orders-0")[0][2]

    missing, following = segment_paths(tmp_path / "b" / "orders-1")[2:4]  # a middle segment lost in the other
    missing.unlink()

    path, at, odd, data = batches(tmp_path / "b" / "orders-2")[4]  # and one batch that is another, and sound
    changed = bytearray(data)
    changed[-5] ^= 1
    write_crc(changed)
    content = bytearray(path.read_bytes())
    content[at : at + len(changed)] = changed
    path.write_bytes(content)

    last_path, _, last, data = batches(tmp_path / "a" / "orders-2")[-1]  # and a retry that was stored twice
    with last_path.open("ab") as file:
        file.write(
            patched_prefix(last.next_offset, last.batch_length, last.partition_leader_epoch) + data[16:]
        )

    output = tmp_path / "out"
    options = audit.Options(
        paths=(str(tmp_path / "a"), str(tmp_path / "b")), output=str(output), fail_on_findings=True
    )
    with pytest.raises(audit.AuditError, match="1 in damage, 1 in gaps, 1 in duplicates, 3 in replicas"):
        audit.run(context(spark, tmp_path / "state"), options)

    (damage,) = rows(output, "damage")
    assert (damage["partition"], damage["position"], damage["first_offset"], damage["end_offset"]) == (
        0, 0, damaged.base_offset, damaged.next_offset,
    )  # fmt: skip
    assert damage["replica"] == str(tmp_path / "a")
    (gap,) = rows(output, "gaps")
    assert (gap["replica"], gap["partition"], gap["severity"]) == (str(tmp_path / "b"), 1, "error")
    assert (gap["first_offset"], gap["end_offset"]) == (int(missing.stem), int(following.stem))
    (twice,) = rows(output, "duplicates")
    assert (twice["replica"], twice["partition"]) == (str(tmp_path / "a"), 2)
    assert (twice["first_offset"], twice["end_offset"]) == (
        last.next_offset,
        last.next_offset + last.record_count,
    )
    first_of = {row["partition"]: row["first_offset"] for row in rows(output, "replicas")}
    assert first_of == {0: damaged.base_offset, 1: int(missing.stem), 2: odd.base_offset}
    assert "6 findings" in (output / "report.md").read_text()
