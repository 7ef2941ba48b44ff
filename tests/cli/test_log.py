"""`log dump` and `log verify` on files: what is sound passes, and every kind of damage is found where it is."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tidelog.records.batch import read_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record
from tidelog.storage import checkpoints, files
from tidelog.storage.epoch_cache import EpochEntry
from tidelog.storage.producer_snapshot import encode_snapshot
from tidelog.storage.producer_state import BatchMetadata, ProducerEntry

TIME = 1_700_000_000_000


def batch(first: int, count: int, *, epoch: int = 0, codec: Codec = Codec.NONE) -> bytes:
    records = [
        Record(o, TIME + o, b"k%d" % o, b"v" * 20, (("h", b"x"),)) for o in range(first, first + count)
    ]
    return build_batch(
        records,
        codec=codec,
        partition_leader_epoch=epoch,
        producer_id=7,
        producer_epoch=0,
        base_sequence=first,
    )


class Partition:
    """Two segments, 0 to 29 and 30 to 49, with everything a broker writes beside them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "orders-0"
        self.path.mkdir(parents=True)
        self.first = [batch(0, 10), batch(10, 10, codec=Codec.ZSTD), batch(20, 10, epoch=1)]
        self.second = [batch(30, 20, epoch=1)]
        self.log(0, b"".join(self.first))
        self.log(30, b"".join(self.second))
        positions = [0, len(self.first[0]), len(self.first[0]) + len(self.first[1])]
        self.positions = positions
        self.index([(19, positions[1]), (29, positions[2])])
        self.time_index([(TIME + 9, 9), (TIME + 29, 29)])
        self.write(files.segment_name(30, files.INDEX), b"")
        self.write(files.segment_name(0, files.TXN_INDEX), struct.pack(">hqqqq", 0, 7, 3, 9, 9))
        producer = ProducerEntry(7, 0)
        producer.remember(BatchMetadata(29, 29, 9, TIME))
        self.write(files.segment_name(30, files.SNAPSHOT), encode_snapshot([producer]))
        self.write(
            files.LEADER_EPOCH_CHECKPOINT, checkpoints.encode_epochs([EpochEntry(0, 0), EpochEntry(1, 20)])
        )
        self.write(files.PARTITION_METADATA, checkpoints.encode_partition_metadata(bytes(range(16))))
        offsets = checkpoints.encode_offsets({("orders", 0): 50})
        (root / files.RECOVERY_POINT_CHECKPOINT).write_bytes(offsets)
        (root / files.HIGH_WATERMARK_CHECKPOINT).write_bytes(offsets)
        meta = checkpoints.MetaProperties("c" * 22, 0, bytes(range(16)))
        (root / files.META_PROPERTIES).write_bytes(checkpoints.encode_meta_properties(meta))

    def write(self, name: str, data: bytes) -> None:
        (self.path / name).write_bytes(data)

    def log(self, base: int, data: bytes) -> None:
        self.write(files.segment_name(base, files.LOG), data)

    def index(self, entries: list[tuple[int, int]]) -> None:
        self.write(files.segment_name(0, files.INDEX), b"".join(struct.pack(">ii", *e) for e in entries))

    def time_index(self, entries: list[tuple[int, int]]) -> None:
        self.write(files.segment_name(0, files.TIME_INDEX), b"".join(struct.pack(">qi", *e) for e in entries))


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "data")


def snapshot_of(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def findings(tidelog: Any, *arguments: object) -> list[dict[str, Any]]:
    result = tidelog("log", "verify", "--json", *arguments)
    report = json.loads(result.out)
    assert result.code == (1 if report["damage"] else 0), result.err
    found: list[dict[str, Any]] = report["damage"]
    return found


def test_sound_files_pass_and_are_not_touched(tidelog: Any, partition: Partition) -> None:
    before = snapshot_of(partition.root)
    result = tidelog("log", "verify", partition.root, "--records", "--json")
    report = json.loads(result.out)
    assert (result.code, report["damage"]) == (0, [])
    assert (report["partitions"], report["segments"], report["batches"], report["records"]) == (1, 2, 4, 50)
    assert tidelog("log", "verify", partition.path).out.startswith(
        "checked 1 partitions, 2 segments, 4 batches, 50 records"
    )
    tidelog("log", "dump", partition.path)
    assert snapshot_of(partition.root) == before


def test_a_flipped_bit_is_found_where_it_is(tidelog: Any, partition: Partition) -> None:
    data = bytearray(b"".join(partition.first))
    data[partition.positions[1] + 70] ^= 1
    partition.log(0, bytes(data))
    (damage,) = findings(tidelog, partition.root)
    assert damage["file"].endswith("orders-0/00000000000000000000.log")
    assert (damage["position"], damage["offset"]) == (partition.positions[1], 10)
    assert "CRC" in damage["problem"]
    human = tidelog("log", "verify", partition.root)
    assert human.code == 1
    assert (
        f"00000000000000000000.log, position {partition.positions[1]}, offset 10: the batch fails its CRC"
        in human.out
    )
    assert human.out.endswith("1 damaged places\n")


def test_a_torn_tail_says_where_the_log_will_be_cut(tidelog: Any, partition: Partition) -> None:
    partition.log(30, partition.second[0] + batch(50, 5)[:100])
    (damage,) = findings(tidelog, partition.root)
    assert (damage["position"], damage["offset"]) == (len(partition.second[0]), 50)
    assert "cuts the log at this position" in damage["problem"]


def test_lost_records_show_against_the_recovery_point(tidelog: Any, partition: Partition) -> None:
    partition.log(30, b"")
    (damage,) = findings(tidelog, partition.root)
    assert "stored up to offset 50, its log ends at 30" in damage["problem"]


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ([batch(0, 10), batch(5, 10)], "before the end of the one before it (10)"),
        ([batch(0, 10, epoch=3), batch(10, 10, epoch=2)], "leader epoch 2 follows 3"),
        ([batch(0, 31)], "the next segment begins at 30"),
    ],
)
def test_batches_that_contradict_each_other(
    tidelog: Any, partition: Partition, batches: list[bytes], says: str
) -> None:
    partition.log(0, b"".join(batches))
    partition.index([])
    partition.time_index([])
    problems = [d["problem"] for d in findings(tidelog, partition.root) if d["file"].endswith("000.log")]
    assert any(says in problem for problem in problems)


def test_a_batch_before_its_segment(tidelog: Any, partition: Partition) -> None:
    partition.log(30, batch(25, 3) + partition.second[0])
    problems = [d["problem"] for d in findings(tidelog, partition.root)]
    assert problems == ["the batch begins before its segment (30)"]


@pytest.mark.parametrize(
    ("entries", "says", "position", "offset"),
    [
        ([(5, 30)], "middle of a batch", 30, 5),
        ([(5, 10_000)], "behind the last batch", 10_000, 5),
        ([(19, "second"), (15, "third")], "rebuilt from the log", None, None),
        ([(12, "third")], "begins later, at 20", "third", 12),
    ],
)
def test_offset_index_entries_must_point_at_batches(
    tidelog: Any, partition: Partition, entries: list[Any], says: str, position: Any, offset: int | None
) -> None:
    named = {"second": partition.positions[1], "third": partition.positions[2]}
    partition.index([(o, named.get(p, p)) for o, p in entries])
    (damage,) = findings(tidelog, partition.root)
    assert damage["file"].endswith("000.index")
    assert says in damage["problem"]
    assert (damage["position"], damage["offset"]) == (named.get(position, position), offset)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([(TIME + 8, 9)], f"has {TIME + 9} as its latest"),
        ([(TIME + 99, 99)], "behind the log"),
        ([(TIME + 9, 9), (TIME + 5, 29)], "rebuilt from the log"),
    ],
)
def test_time_index_entries_must_agree_with_batches(
    tidelog: Any, partition: Partition, entries: Any, says: str
) -> None:
    partition.time_index(entries)
    (damage,) = findings(tidelog, partition.root)
    assert damage["file"].endswith(".timeindex")
    assert says in damage["problem"]


def test_preallocated_indexes_are_no_damage(tidelog: Any, partition: Partition) -> None:
    path = partition.path / files.segment_name(0, files.INDEX)
    path.write_bytes(path.read_bytes() + bytes(800))
    assert findings(tidelog, partition.root) == []


@pytest.mark.parametrize(
    "name",
    [
        files.segment_name(30, files.SNAPSHOT),
        files.segment_name(0, files.TXN_INDEX),
        files.LEADER_EPOCH_CHECKPOINT,
        files.PARTITION_METADATA,
        "../" + files.META_PROPERTIES,
        "../" + files.RECOVERY_POINT_CHECKPOINT,
        "../" + files.HIGH_WATERMARK_CHECKPOINT,
    ],
)
def test_damaged_small_files_are_found(tidelog: Any, partition: Partition, name: str) -> None:
    path = (partition.path / name).resolve()
    path.write_bytes(path.read_bytes()[:-3] + b"\xff")
    assert [d["file"] for d in findings(tidelog, partition.root)] == [str(path)]


def test_records_are_looked_at_only_when_asked(tidelog: Any, partition: Partition) -> None:
    from crc32c import crc32c

    broken = bytearray(partition.second[0])
    broken[61] = 0x7E  # the first record now claims another length; the CRC is made to agree
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    partition.log(30, bytes(broken))
    assert findings(tidelog, partition.root) == []
    (damage,) = findings(tidelog, partition.root, "--records")
    assert damage["offset"] == 30


def test_dump_shows_batches_and_records(tidelog: Any, partition: Partition) -> None:
    path = partition.path / files.segment_name(0, files.LOG)
    rows = [json.loads(line) for line in tidelog("log", "dump", path, "--json").out.splitlines()]
    assert [(r["position"], r["base_offset"], r["last_offset"]) for r in rows] == [
        (partition.positions[0], 0, 9),
        (partition.positions[1], 10, 19),
        (partition.positions[2], 20, 29),
    ]
    assert [r["codec"] for r in rows] == ["none", "zstd", "none"]
    assert {r["crc"] for r in rows} == {"ok"}
    assert rows[0]["producer_id"] == 7
    deep = [json.loads(line) for line in tidelog("log", "dump", path, "--json", "--records").out.splitlines()]
    records = [row for row in deep if row["type"] == "record"]
    assert [r["offset"] for r in records] == list(range(30))
    assert records[12]["key"] == "k12"
    assert records[12]["headers"] == [{"name": "h", "value": "x"}]
    text = tidelog("log", "dump", path, "-r").out.splitlines()
    assert text[0] == str(path)
    assert text[1].startswith("  position=0  base_offset=0  last_offset=9  records=10")
    assert text[2].startswith(f"    offset=0  timestamp={TIME}  key=k0")


def test_dump_of_everything_else(tidelog: Any, partition: Partition) -> None:
    def rows(path: Path) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in tidelog("log", "dump", path, "--json").out.splitlines()]
        return [{k: v for k, v in row.items() if k != "file"} for row in found]

    at = partition.path
    assert rows(at / files.segment_name(0, files.INDEX))[0] == {
        "offset": 19,
        "position": partition.positions[1],
    }
    assert rows(at / files.segment_name(0, files.TIME_INDEX))[1] == {"timestamp": TIME + 29, "offset": 29}
    (aborted,) = rows(at / files.segment_name(0, files.TXN_INDEX))
    assert aborted == {"producer_id": 7, "first_offset": 3, "last_offset": 9, "last_stable_offset": 9}
    (producer,) = rows(at / files.segment_name(30, files.SNAPSHOT))
    assert (producer["producer_id"], producer["last_sequence"], producer["last_offset"]) == (7, 29, 29)
    assert rows(at / files.LEADER_EPOCH_CHECKPOINT) == [
        {"epoch": 0, "start_offset": 0},
        {"epoch": 1, "start_offset": 20},
    ]
    assert rows(at / files.PARTITION_METADATA) == [{"topic_id": "AAECAwQFBgcICQoLDA0ODw"}]
    assert rows(partition.root / files.RECOVERY_POINT_CHECKPOINT) == [
        {"topic": "orders", "partition": 0, "offset": 50}
    ]
    assert rows(partition.root / files.META_PROPERTIES)[0]["node_id"] == 0


def test_dump_of_damage_shows_what_comes_before_it(tidelog: Any, partition: Partition) -> None:
    path = partition.path / files.segment_name(0, files.LOG)
    path.write_bytes(partition.first[0] + partition.first[1][:50])
    result = tidelog("log", "dump", path, "--json")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert result.code == 1
    assert rows[0]["last_offset"] == 9
    assert "position" in rows[1]["damage"]
    assert read_header(path.read_bytes()).record_count == 10


def test_other_files_are_refused(tidelog: Any, tmp_path: Path) -> None:
    stranger = tmp_path / "notes.txt"
    stranger.write_text("x")
    assert (
        tidelog("log", "dump", stranger).err
        == f"error: {stranger}: its name says neither segment, index, snapshot nor checkpoint\n"
    )
    missing = tmp_path / files.segment_name(0, files.LOG)
    assert tidelog("log", "dump", missing).err == f"error: {missing}: No such file or directory\n"
    assert "no partitions" in tidelog("log", "verify", tmp_path).err
    assert "is no directory" in tidelog("log", "verify", stranger).err


def test_a_directory_in_use_is_warned_about(tidelog: Any, partition: Partition) -> None:
    from tidelog.storage.posix_disk import PosixDisk

    lock = PosixDisk().lock(str(partition.root / files.LOCK))
    assert lock is not None
    try:
        for path in (partition.root, partition.path):
            assert tidelog("log", "verify", path).err.startswith(f"warning: a broker is using {path}")
    finally:
        lock.release()
    assert tidelog("log", "verify", partition.root).err == ""


def test_what_is_looked_at_cannot_be_written(partition: Partition) -> None:
    from tidelog.storage.disk import DiskError
    from tidelog.storage.posix_disk import PosixDisk

    file = PosixDisk(read_only=True).open(str(partition.path / files.segment_name(0, files.LOG)))
    with pytest.raises(DiskError):
        file.write_at([b"x"], 0)
    with pytest.raises(DiskError):
        file.truncate(0)
    file.close()
