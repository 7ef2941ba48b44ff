"""Metadata snapshots: the image comes back whole or not at all, and a start uses the newest sound one."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from tests.controller.world import World, topic
from tidelog.controller import snapshot_files
from tidelog.controller.image import EMPTY_IMAGE, MetadataImage
from tidelog.controller.image_records import image_to_records
from tidelog.controller.snapshot import encode_snapshot, read_snapshot
from tidelog.controller.snapshot_files import SnapshotId
from tidelog.errors import CorruptDataError
from tidelog.records.batch import read_header
from tidelog.storage.files import metadata_snapshot_name, parse_metadata_snapshot
from tidelog.testing.sim.disk import SimDisk

DIRECTORY = "/d/__cluster_metadata-0"


def a_cluster() -> World:
    world = World()
    world.add_broker(1, rack="r")
    world.create(topic("orders", 30, configs={"retention.ms": "5"}), topic("payments"))
    return world


def encoded(image: MetadataImage) -> bytes:
    return b"".join(encode_snapshot(image, last_timestamp_ms=5, now_ms=7))


def read(data: bytes, image: MetadataImage) -> MetadataImage:
    return read_snapshot(data, end_offset=image.offset + 1, epoch=image.epoch, path="f")


def test_the_image_comes_back() -> None:
    image = a_cluster().controller.image
    assert read(encoded(image), image) == image


def test_more_records_than_fit_into_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.controller.snapshot.BATCH_RECORDS_MAX", 7)
    image = a_cluster().controller.image
    batches = list(encode_snapshot(image, last_timestamp_ms=5, now_ms=7))
    assert len(batches) == 2 + -(-len(image_to_records(image)) // 7)
    assert read(b"".join(batches), image) == image


def test_an_empty_cluster_has_a_snapshot_too() -> None:
    image = EMPTY_IMAGE.at(offset=3, epoch=1)
    assert read(encoded(image), image) == image


def test_anything_less_than_the_whole_is_refused() -> None:
    """M28: half a snapshot would be a cluster in which topics were deleted."""
    image = a_cluster().controller.image
    whole = encoded(image)
    batches = list(encode_snapshot(image, last_timestamp_ms=5, now_ms=7))
    for cut in (0, 1, 60, len(batches[0]), len(whole) // 2, len(whole) - len(batches[-1]), len(whole) - 1):
        with pytest.raises(CorruptDataError, match="metadata snapshot f"):
            read(whole[:cut], image)
    for left_out in range(len(batches)):
        with pytest.raises(CorruptDataError):
            read(b"".join(batch for number, batch in enumerate(batches) if number != left_out), image)
    with pytest.raises(CorruptDataError):
        read(whole + b"x", image)


def test_no_flipped_bit_gets_through() -> None:
    image = a_cluster().controller.image
    whole = bytearray(encoded(image))
    for position in range(0, len(whole), 11):
        whole[position] ^= 1 << position % 8
        try:
            found = read(bytes(whole), image)
        except CorruptDataError:
            pass
        else:
            assert found == image  # in a field of a batch's header that is not covered: the leader epoch
        whole[position] ^= 1 << position % 8


def test_names() -> None:
    name = metadata_snapshot_name(42, 3)
    assert name == "00000000000000000042-0000000003.checkpoint"
    assert parse_metadata_snapshot(name) == (42, 3)
    for other in ("bootstrap.checkpoint", name + ".tmp", "x" + name, "00000000000000000042.snapshot"):
        assert parse_metadata_snapshot(other) is None
    with pytest.raises(ValueError, match="no metadata snapshot"):
        metadata_snapshot_name(-1, 0)


# ---- files


class Files:
    """A metadata log of batches in memory and snapshots on a simulated disk."""

    def __init__(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.disk.make_dirs(DIRECTORY)
        self.world = World()
        self.images = [self.world.controller.image]
        self.log_start = 0
        self.world.add_broker(1)
        self.images.append(self.world.controller.image)

    def change(self, name: str) -> None:
        self.world.create(topic(name, 3))
        self.images.append(self.world.controller.image)

    def snapshot(self) -> SnapshotId:
        return snapshot_files.write(
            self.disk, DIRECTORY, self.world.controller.image, last_timestamp_ms=1, now_ms=1
        )

    def load(self) -> snapshot_files.LoadedMetadata:
        return snapshot_files.load(
            self.disk,
            DIRECTORY,
            log_start=self.log_start,
            log_end=self.world.next_offset,
            read_from=lambda offset: (
                data for data in self.world.log if read_header(data).base_offset >= offset
            ),
        )


@pytest.fixture
def stored() -> Files:
    return Files()


def test_a_start_reads_the_newest_snapshot_and_the_log_behind_it(stored: Files) -> None:
    stored.change("a")
    first = stored.snapshot()
    stored.change("b")
    second = stored.snapshot()
    stored.change("c")
    stored.log_start = first.end_offset
    loaded = stored.load()
    assert loaded.image == stored.world.controller.image
    assert loaded.snapshots == [first, second]
    assert loaded.warnings == []


def test_a_start_right_behind_a_snapshot_goes_on_in_its_epoch(stored: Files) -> None:
    """Nothing follows in the log: the next leadership must still have a higher epoch."""
    stored.change("a")
    stored.snapshot()
    loaded = stored.load()
    assert loaded.image.epoch == stored.world.controller.image.epoch
    assert loaded.image == stored.world.controller.image


@pytest.mark.parametrize("harm", ["cut", "flip", "empty"])
def test_a_damaged_snapshot_is_stepped_over_for_an_older_one(stored: Files, harm: str) -> None:
    stored.change("a")
    first = stored.snapshot()
    stored.change("b")
    second = stored.snapshot()
    stored.change("c")
    stored.log_start = first.end_offset
    path = snapshot_files.snapshot_path(DIRECTORY, second)
    file = stored.disk.open(path)
    if harm == "flip":
        stored.disk.flip_bit(path, file.size() - 20)
    else:
        file.truncate(0 if harm == "empty" else file.size() // 2)
    loaded = stored.load()
    assert loaded.image == stored.world.controller.image
    assert loaded.snapshots == [first]
    assert path in loaded.warnings[0]
    assert stored.disk.exists(path)


def test_without_a_sound_snapshot_the_whole_log_will_do(stored: Files) -> None:
    stored.change("a")
    only = stored.snapshot()
    stored.disk.open(snapshot_files.snapshot_path(DIRECTORY, only)).truncate(9)
    stored.change("b")
    loaded = stored.load()
    assert (loaded.image, loaded.snapshots) == (stored.world.controller.image, [])


def test_nothing_is_guessed_when_the_beginning_is_missing(stored: Files) -> None:
    stored.change("a")
    first = stored.snapshot()
    stored.change("b")
    stored.log_start = first.end_offset
    stored.disk.open(snapshot_files.snapshot_path(DIRECTORY, first)).truncate(50)
    with pytest.raises(CorruptDataError, match="no sound snapshot covers"):
        stored.load()
    stored.disk.remove(snapshot_files.snapshot_path(DIRECTORY, first))
    with pytest.raises(CorruptDataError, match="there is none"):
        stored.load()


def test_a_snapshot_of_another_log_is_not_used(stored: Files) -> None:
    stored.change("a")
    stored.change("b")
    snapshot_files.write(
        stored.disk, DIRECTORY, stored.images[-1].at(offset=10_000, epoch=1), last_timestamp_ms=1, now_ms=1
    )
    loaded = stored.load()
    assert loaded.image == stored.world.controller.image
    assert "does not fit" in loaded.warnings[0]


def test_a_crash_leaves_the_old_snapshot_or_the_new_one(stored: Files) -> None:
    stored.change("a")
    first = stored.snapshot()
    stored.change("b")
    stored.log_start = first.end_offset
    stored.disk.start_recording()
    stored.snapshot()
    seen = set()
    for state in stored.disk.crash_states():
        stored.disk = state.disk
        loaded = stored.load()
        assert loaded.image == stored.world.controller.image
        assert loaded.warnings == []
        seen.add(len(loaded.snapshots))
    assert seen == {1, 2}


@pytest.mark.interop
def test_kafka_reads_it(tmp_path: Path) -> None:
    from tools.peers.kafka import run_tool
    from tools.peers.maven import java, kafka_jars
    from tools.peers.process import PeerUnavailableError

    try:
        java()
        kafka_jars()
    except PeerUnavailableError as missing:
        pytest.skip(str(missing))
    image = a_cluster().controller.image
    path = tmp_path / metadata_snapshot_name(image.offset + 1, image.epoch)
    path.write_bytes(encoded(image))
    done = run_tool("kafka-dump-log", "--cluster-metadata-decoder", "--files", str(path))
    assert done.returncode == 0, done.stderr
    assert "isvalid: false" not in done.stdout
    assert f"Snapshot end offset: {image.offset + 1}, epoch: {image.epoch}" in done.stdout
    assert 'SnapshotHeader {"version":0,"lastContainedLogTimestamp":5}' in done.stdout
    assert 'SnapshotFooter {"version":0}' in done.stdout
    payloads = [json.loads(payload) for payload in re.findall(r"payload: (\{.*\})", done.stdout)]
    assert len(payloads) == len(image_to_records(image))
    assert sum(payload["type"] == "PARTITION_RECORD" for payload in payloads) == image.partition_count
