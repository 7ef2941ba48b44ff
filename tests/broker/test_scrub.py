"""Bit rot in the files of a running broker: found, told with its place, and never served again (I2, I6).

Segments are small here; the scrub runs over and over. Files are harmed behind the broker's back, as a disk does it.
"""

from __future__ import annotations

import ctypes
import json
import logging
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pytest

from tests.broker.conftest import NOW_MS, OwnBroker, Wire, batch, code
from tidelog.broker import scrubber
from tidelog.broker.quiet_file import QuietFile
from tidelog.broker.scrubber import ScrubSummary
from tidelog.cli.log_verify import Verification
from tidelog.records.batch import BatchHeader, iter_headers
from tidelog.storage import page_cache
from tidelog.storage.posix_disk import PosixDisk
from tidelog.testing.faulty_disk import FaultyDisk

SETTINGS = {
    "log_scrub_interval_ms": 50,
    "log_scrub_bytes_per_second": 1 << 30,
    "log_initial_task_delay_ms": 0,
    "durability": "fsync",
}
PATIENCE_SECONDS = 20.0
FIRST = "00000000000000000000.log"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubber, "LOOK_SECONDS", 0.05)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def summary(broker: OwnBroker) -> ScrubSummary:
    found: ScrubSummary = broker.call(lambda: broker.broker.scrubber.summary())
    return found


def after_a_round(broker: OwnBroker) -> ScrubSummary:
    """What is known once every segment has been looked at again from now on."""
    rounds = summary(broker).rounds
    wait_until(lambda: summary(broker).rounds >= rounds + 2, "a round of the scrub has passed")
    return summary(broker)


class Place(NamedTuple):
    """A batch in the first segment of a partition."""

    path: Path
    position: int
    header: BatchHeader


class World:
    """A broker with a topic whose partitions each have several sealed segments of ten batches."""

    def __init__(self, broker: OwnBroker, partitions: int) -> None:
        self.broker = broker
        self.wire = broker.connect()
        self.topic = self.wire.create(
            "rotten", partitions, internal_segment_bytes="4500", index_interval_bytes="1000"
        )
        for partition in range(partitions):
            self.fill(partition)
        wait_until(
            lambda: all(p.log.recovery_point == 40 for p in broker.broker.partitions.all()),
            "all is on the disk",
        )

    def fill(self, partition: int) -> None:
        for number in range(40):
            value = b"%d-%d " % (partition, number)
            answer = self.wire.produce(
                self.topic, batch(value * 60, timestamp=NOW_MS + number), partition=partition
            )
            assert code(answer) == "NONE"

    def segment(self, partition: int) -> Path:
        return Path(self.broker.broker.partitions.leader_of("rotten", partition).log.directory) / FIRST

    def place(self, partition: int, offset: int) -> Place:
        path = self.segment(partition)
        for position, header in iter_headers(path.read_bytes()):
            if header.base_offset == offset:
                return Place(path, position, header)
        raise AssertionError(f"offset {offset} is not in the first segment")

    def read(self, wire: Wire, partition: int, offset: int) -> tuple[list[int], str]:
        """The offsets a consumer gets from here on, and the error that ended it, if any."""
        got: list[int] = []
        while offset < 40:
            answer = wire.fetch(self.topic, offset, partition=partition)
            if answer.error_code:
                return got, code(answer)
            for at, header in iter_headers(bytes(answer.records)):
                number = header.base_offset
                assert (b"%d-%d " % (partition, number)) * 60 in bytes(answer.records)[at : at + header.size]
                got.append(number)
                offset = header.next_offset
        return got, "NONE"


def flip(place: Place, at: int) -> None:
    """One bit, straight in the file."""
    with place.path.open("r+b") as file:
        file.seek(place.position + at)
        byte = file.read(1)[0]
        file.seek(place.position + at)
        file.write(bytes([byte ^ 0x04]))


def zero(place: Place, start: int, count: int) -> None:
    with place.path.open("r+b") as file:
        file.seek(place.position + start)
        file.write(bytes(count))


HARMS: dict[str, Callable[[Place], None]] = {
    "base offset": lambda place: flip(place, 7),
    "base offset, high": lambda place: flip(place, 2),
    "length": lambda place: flip(place, 11),
    "length, huge": lambda place: flip(place, 8),
    "leader epoch": lambda place: flip(place, 15),
    "magic": lambda place: flip(place, 16),
    "CRC": lambda place: flip(place, 19),
    "attributes": lambda place: flip(place, 22),
    "last offset delta": lambda place: flip(place, 26),
    "timestamp": lambda place: flip(place, 40),
    "producer id": lambda place: flip(place, 50),
    "record count": lambda place: flip(place, 60),
    "payload": lambda place: flip(place, 200),
    "last byte": lambda place: flip(place, place.header.size - 1),
    "zeroed header": lambda place: zero(place, 0, 61),
    "zeroed middle": lambda place: zero(place, 100, 150),
}


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.INFO, "tidelog.broker"):
        yield lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_every_kind_of_harm_is_found_named_and_kept_from_readers(launch: Any, errors: Any) -> None:
    world = World(launch(**SETTINGS), len(HARMS) + 1)
    bystander = len(HARMS)
    healthy = after_a_round(world.broker)
    assert (healthy.damages, errors()) == ([], [])
    assert healthy.segments >= 3 * (len(HARMS) + 1)
    places = {}
    for partition, (name, harm) in enumerate(HARMS.items()):
        places[name] = world.place(partition, 4)
        harm(places[name])
    wait_until(lambda: len(summary(world.broker).damages) >= len(HARMS), "all of it is found")
    after_a_round(world.broker)

    wire = world.broker.connect()
    told = errors()
    for partition, name in enumerate(HARMS):
        path, position, header = places[name]
        (line,) = [line for line in told if line.startswith(f"rotten-{partition}:")]
        assert f"{path} is damaged at position {position} ({header.size} bytes, offsets 4 to 5" in line, name
        assert "tidelog log verify" in line
        assert world.read(wire, partition, 0) == ([0, 1, 2, 3], "CORRUPT_MESSAGE"), name
        assert world.read(wire, partition, 4) == ([], "CORRUPT_MESSAGE"), name
        assert world.read(wire, partition, 5) == (list(range(5, 40)), "NONE"), name
        small = wire.fetch(world.topic, 2, partition=partition, partition_max_bytes=header.size + 10)
        assert [header.base_offset for _, header in iter_headers(bytes(small.records))] == [2], name
        assert wire.offset_at(world.topic, NOW_MS + 30, partition=partition).offset == 30, name
    assert world.read(wire, bystander, 0) == (list(range(40)), "NONE")
    assert code(wire.produce(world.topic, batch(b"more"), partition=0)) == "NONE"
    refusals = errors()[len(told) :]
    assert any(f"at offset 4: {places['payload'].path} is damaged" in line for line in refusals)
    assert all("cannot be read at offset 4" in line for line in refusals), (
        "one line per damage, and refused fetches"
    )

    # The same verdict by another way, over the files of the stopped broker.
    world.broker.stop()
    for partition, name in enumerate(HARMS):
        verification = Verification()
        verification.directory(str(places[name].path.parent))
        assert any(damage.file == str(places[name].path) for damage in verification.damage), (partition, name)


def test_a_reader_before_damage_is_not_asked_to_hurry(launch: Any) -> None:
    """aiokafka and kafka-python ask again at once when a fetch fails: thousands of times a second, if it fails at once."""
    world = World(launch(**SETTINGS), 1)
    flip(world.place(0, 4), 70)
    after_a_round(world.broker)
    began = time.monotonic()
    assert code(world.wire.fetch(world.topic, 4, max_wait_ms=300)) == "CORRUPT_MESSAGE"
    assert time.monotonic() - began >= 0.29
    began = time.monotonic()
    assert code(world.wire.fetch(world.topic, 41, max_wait_ms=5000)) == "OFFSET_OUT_OF_RANGE"
    assert time.monotonic() - began < 4, "other errors are told at once"


def test_a_file_cut_short_a_missing_one_and_a_wiped_one(launch: Any, errors: Any) -> None:
    world = World(launch(**SETTINGS), 4)
    after_a_round(world.broker)
    cut, missing, wiped = world.place(0, 6), world.segment(1), world.segment(2)
    os.truncate(cut.path, cut.position + 100)
    missing.unlink()
    wiped.write_bytes(bytes(wiped.stat().st_size))
    wait_until(lambda: len(summary(world.broker).damages) == 3, "all three are found")
    wire = world.broker.connect()
    end = list(iter_headers(world.segment(3).read_bytes()))[-1][1].next_offset
    told = errors()
    assert any(f"position {cut.position} " in line and "the file ends at" in line for line in told)
    assert any(str(missing) in line and "the file is missing" in line for line in told)
    assert world.read(wire, 0, 0) == (list(range(6)), "CORRUPT_MESSAGE")
    for _ in range(3):  # nothing is held open any more
        world.broker.call(lambda: world.broker.broker.disk._shrink(0))
    for partition in (1, 2):
        assert world.read(wire, partition, 0) == ([], "CORRUPT_MESSAGE")
    for partition in (0, 1, 2):
        assert world.read(wire, partition, end) == (list(range(end, 40)), "NONE"), "the next segment"
        assert world.read(wire, partition, end - 1) == ([], "CORRUPT_MESSAGE")
    assert world.read(wire, 3, 0) == (list(range(40)), "NONE")


def test_a_restart_knows_and_a_restored_file_is_served_again(
    launch: Any, errors: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    broker: OwnBroker = launch(**SETTINGS)
    world = World(broker, 2)
    place = world.place(0, 4)
    shutil.copy(place.path, tmp_path / "backup")
    flip(place, 5)  # a base offset: the CRC is right, so no client could tell
    wait_until(lambda: len(summary(broker).damages) == 1, "it is found")
    checkpoint = place.path.parent.parent / "scrub-checkpoint"
    wait_until(checkpoint.exists, "that would survive kill -9")
    assert json.loads(checkpoint.read_text())["damages"][0]["first_offset"] == 4

    broker.properties["log.scrub.bytes.per.second"] = "0"
    for clean in (True, False):
        broker.restart(clean=clean)
        assert world.read(broker.connect(), 0, 0) == ([0, 1, 2, 3], "CORRUPT_MESSAGE"), (
            "though nobody looked again"
        )
        assert [damage.first_offset for damage in summary(broker).damages] == [4]

    broker.stop()
    shutil.copy(tmp_path / "backup", place.path)
    broker.properties["log.scrub.bytes.per.second"] = str(1 << 30)
    broker.properties["log.initial.task.delay.ms"] = "3600000"  # what was damaged is looked at without delay
    broker.start()
    wait_until(lambda: not summary(broker).damages, "it is found to be sound")
    assert world.read(broker.connect(), 0, 0) == (list(range(40)), "NONE")
    assert any("is sound again" in record.getMessage() for record in caplog.records)
    broker.stop()
    assert json.loads(checkpoint.read_text())["damages"] == []


def test_what_recovery_found_survives_a_clean_restart(launch: Any) -> None:
    """Recovery sees damage once, after a crash. The start after that believes the marker of the clean stop."""
    broker: OwnBroker = launch(**SETTINGS | {"log_scrub_bytes_per_second": 0})
    wire = broker.connect()
    topic = wire.create("rotten")
    for number in range(10):
        wire.produce(topic, batch(b"0-%d " % number * 60))
    wait_until(
        lambda: broker.broker.partitions.leader_of("rotten", 0).log.recovery_point == 10, "all is on the disk"
    )
    broker.call(lambda: broker.broker.checkpoint())
    path = Path(broker.broker.partitions.leader_of("rotten", 0).log.directory) / FIRST
    position, _ = list(iter_headers(path.read_bytes()))[4]
    broker._clean = False
    broker.stop()
    flip(Place(path, position, None), 100)  # type: ignore[arg-type]
    broker.start()
    for _ in range(3):
        wire = broker.connect()
        assert code(wire.fetch(topic, 4)) == "CORRUPT_MESSAGE"
        assert code(wire.fetch(topic, 5)) == "NONE"
        broker.restart()
    broker.stop()
    flip(Place(path, position, None), 100)  # type: ignore[arg-type]
    broker.start()
    assert code(broker.connect().fetch(topic, 4)) == "NONE", "restored"
    assert summary(broker).damages == []


def test_indexes_that_do_not_fit_are_written_anew_and_nothing_else_is_said(launch: Any, errors: Any) -> None:
    world = World(launch(**SETTINGS), 4)
    after_a_round(world.broker)
    index = [world.segment(partition).with_suffix(".index") for partition in range(3)]
    times = [path.with_suffix(".timeindex") for path in index]
    before = [path.read_bytes() for path in (*index, *times)]
    assert all(before)
    flip(Place(index[0], 0, None), 7)  # type: ignore[arg-type]
    flip(Place(times[1], 0, None), 7)  # type: ignore[arg-type]
    index[2].unlink()
    wait_until(lambda: summary(world.broker).indexes_rebuilt >= 3, "all three are rebuilt")
    assert after_a_round(world.broker).indexes_rebuilt == 3
    assert [path.read_bytes() for path in (*index, *times)] == before
    assert errors() == []
    wire = world.broker.connect()
    for partition in range(4):
        assert world.read(wire, partition, 0) == (list(range(40)), "NONE")
        for offset in range(40):
            assert wire.offset_at(world.topic, NOW_MS + offset, partition=partition).offset == offset


def test_a_disk_that_cannot_be_read_takes_its_directory_offline(
    launch: Any, disk: FaultyDisk, errors: Any
) -> None:
    broker: OwnBroker = launch(disk=disk, dirs=2, **SETTINGS)
    world = World(broker, 2)
    homes = [world.segment(partition).parent.parent for partition in range(2)]
    ill = homes.index(Path(broker.properties["log.dirs"].split(",")[1]))
    bad = str(world.segment(ill))
    disk.fails = lambda operation, path: operation == "read" and path == bad
    wire = broker.connect()
    wait_until(
        lambda: code(wire.fetch(world.topic, 39, partition=ill)) == "KAFKA_STORAGE_ERROR", "it is offline"
    )
    assert any("goes offline" in line and bad in line for line in errors())
    assert world.read(wire, 1 - ill, 0) == (list(range(40)), "NONE")
    rounds = summary(broker).rounds
    wait_until(lambda: summary(broker).rounds >= rounds + 2, "the other directory's rounds go on")
    assert summary(broker).damages == [], "a disk that cannot be read says nothing about the data"


def test_topics_and_records_deleted_under_a_slow_check_are_no_finding(launch: Any, errors: Any) -> None:
    """Nor does it hold up the stop of the broker."""
    slow = SETTINGS | {"log_scrub_bytes_per_second": 100_000}
    broker: OwnBroker = launch(**slow)
    world = World(broker, 3)
    wait_until(lambda: summary(broker).segments > 0, "the scrub is at work")
    for partition in range(3):
        path = world.segment(partition)
        path.write_bytes(b"")  # harmed, and gone before it matters
    broker.call(lambda: broker.broker.topics.delete("rotten"))
    rounds = summary(broker).rounds
    wait_until(lambda: summary(broker).rounds >= rounds + 2, "the rounds go on")
    assert (summary(broker).damages, errors()) == ([], [])
    world = World(broker, 3)
    began = time.monotonic()
    broker.stop()
    assert time.monotonic() - began < 5


def test_a_damaged_segment_that_retention_lets_go_is_forgotten(launch: Any) -> None:
    broker: OwnBroker = launch(**SETTINGS)
    world = World(broker, 1)
    flip(world.place(0, 4), 100)
    wait_until(lambda: len(summary(broker).damages) == 1, "it is found")
    partition = broker.broker.partitions.leader_of("rotten", 0)
    broker.call(lambda: partition.delete_records(30))
    broker.call(lambda: partition.log.apply_retention(NOW_MS))
    assert summary(broker).damages == []
    broker.restart()
    assert summary(broker).damages == []
    assert world.read(broker.connect(), 0, 30) == (list(range(30, 40)), "NONE")


def test_the_rate_is_kept_and_can_be_changed_while_it_runs(launch: Any) -> None:
    rate = 400_000
    broker: OwnBroker = launch(**SETTINGS | {"log_scrub_bytes_per_second": 0})
    world = World(broker, 4)
    time.sleep(0.2)
    assert summary(broker).segments == 0, "0 is off"

    def set_rate(value: int) -> None:
        broker.broker.config = broker.broker.config.with_dynamic(
            node={}, default={"log.scrub.bytes.per.second": str(value)}
        )

    broker.call(lambda: set_rate(rate))
    wait_until(lambda: summary(broker).segments > 0, "it is on")
    first, began = summary(broker), time.monotonic()
    time.sleep(1.5)
    last, seconds = summary(broker), time.monotonic() - began
    cost = (last.segments - first.segments) * scrubber.SEGMENT_COST + last.bytes - first.bytes
    assert 0 < cost <= rate * (seconds + 0.25) + 2 * (scrubber.SEGMENT_COST + 8000)
    assert world.read(broker.connect(), 0, 0)[1] == "NONE"


# ---- the page cache


def resident_pages(file: BinaryIO) -> list[bool]:
    """Which pages of a file are in memory. Asking by a read would fetch them."""
    size = os.fstat(file.fileno()).st_size
    flags = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    with mmap.mmap(file.fileno(), size) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        result = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), flags
        )
        del start
    assert result == 0
    return [bool(flag & 1) for flag in flags]


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux can tell what is cached")
def test_a_quiet_read_leaves_cached_what_was_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = os.urandom(1 << 20)
    path.write_bytes(content)
    quarter = 256 << 10
    with path.open("rb") as file:
        if page_cache.cached_pages(file.fileno(), quarter, 0) is None:
            pytest.skip("this kernel does not say what is cached (Linux 6.5 does)")
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if any(resident_pages(file)):
            pytest.skip("this file system keeps its files in memory")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), quarter, 2 * quarter)  # a consumer reads here
        quiet = QuietFile(PosixDisk().open(str(path)))
        assert (
            b"".join(quiet.read_at(quarter, position) for position in range(0, 1 << 20, quarter)) == content
        )
        quiet.close()
        pages = resident_pages(file)
    count = len(pages) // 4
    assert pages == [False] * 2 * count + [True] * count + [False] * count


# ---- a busy broker


def test_a_loop_that_computes_most_of_the_time_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    now = used = 0.0
    monkeypatch.setattr(scrubber.time, "monotonic", lambda: now)
    monkeypatch.setattr(scrubber.time, "thread_time", lambda: used)
    load = scrubber._LoopLoad()
    for share, busy in ((0.1, False), (0.9, True), (0.7, True), (0.5, False)):
        now += 1.0
        used += share
        assert load.is_busy() is busy
        now += 0.1
        used += 0.1
        assert load.is_busy() is busy, "too short a time to tell"
