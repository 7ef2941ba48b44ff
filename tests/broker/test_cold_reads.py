"""Data that is not in the page cache any more is read by a thread: a reader far behind holds nobody up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, batch
from tidelog.broker.api import fetch
from tidelog.storage import cold_read
from tidelog.storage.posix_disk import PosixDisk, PosixFile
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

BATCH_BYTES = 60_000
BATCHES = 60


class SlowDisk(PosixDisk):
    """A disk on which cold bytes take their time, and which knows who waited for them."""

    def __init__(self) -> None:
        super().__init__()
        self.cold = threading.Event()
        self.looks = 0
        self.warmed_by: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def open(self, path: str, /, *, create: bool = False) -> PosixFile:
        file = super().open(path, create=create)
        file.__class__ = SlowFile
        return file


class SlowFile(PosixFile):
    __slots__ = ()

    @property
    def slow_disk(self) -> SlowDisk:
        assert isinstance(self._disk, SlowDisk)
        return self._disk

    def is_cached(self, count: int, position: int, /) -> bool:
        self.slow_disk.looks += 1
        return not self.slow_disk.cold.is_set()

    def warm(self, count: int, position: int, /) -> None:
        self.slow_disk.warmed_by.append(threading.current_thread().name)
        assert self.slow_disk.go_on.wait(30)
        self.slow_disk.cold.clear()
        super().warm(count, position)


@pytest.fixture
def slow_disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def broker(launch: Any, slow_disk: SlowDisk) -> OwnBroker:
    started: OwnBroker = launch(disk=slow_disk)
    return started


@pytest.fixture
def far_behind(broker: OwnBroker) -> tuple[Wire, Topic]:
    """A topic of many segments."""
    wire = broker.connect()
    topic = wire.create("cold", segment_bytes="1048576")
    for _ in range(BATCHES):
        assert wire.produce(topic, batch(b"x" * BATCH_BYTES)).error_code == 0
    log = broker.broker.partitions.leader_of("cold", 0).log
    assert len(log.segments) > 3
    return wire, topic


def test_a_cold_fetch_waits_in_a_thread_and_others_do_not(
    broker: OwnBroker, slow_disk: SlowDisk, far_behind: tuple[Wire, Topic]
) -> None:
    reader, topic = far_behind
    slow_disk.cold.set()
    slow_disk.go_on.clear()
    reader.send(reader.fetch_request(topic, 0, max_wait_ms=5000))
    deadline = time.monotonic() + 10
    while not slow_disk.warmed_by:
        assert time.monotonic() < deadline, "nobody asked the disk"
        time.sleep(0.01)
    other = broker.connect()
    assert other.produce(topic, batch(b"new")).error_code == 0, "served while the disk works"
    assert other.offset_at(topic, -1).offset == BATCHES + 1
    slow_disk.go_on.set()
    answer = reader.receive()
    records = answer.responses[0].partitions[0].records
    assert len(bytes(records)) > BATCH_BYTES
    assert all(name.startswith("tidelog-read") for name in slow_disk.warmed_by)


def test_what_was_just_seen_in_memory_is_not_looked_for_again(
    slow_disk: SlowDisk, far_behind: tuple[Wire, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, topic = far_behind
    monkeypatch.setattr(cold_read, "SEEN_WARM_SECONDS", 60.0)
    for offset in range(10):
        assert reader.fetch(topic, offset, partition_max_bytes=100).error_code == 0
    assert slow_disk.looks == 1, "the first one looked ahead for all of them"
    monkeypatch.setattr(fetch, "monotonic", lambda: 1e9)
    assert reader.fetch(topic, 0, partition_max_bytes=100).error_code == 0
    assert slow_disk.looks == 2, "it is not believed for ever"


def test_a_reader_that_leaves_meanwhile(
    broker: OwnBroker, slow_disk: SlowDisk, far_behind: tuple[Wire, Topic]
) -> None:
    reader, topic = far_behind
    slow_disk.cold.set()
    slow_disk.go_on.clear()
    reader.send(reader.fetch_request(topic, 0, max_wait_ms=5000))
    while not slow_disk.warmed_by:
        time.sleep(0.01)
    reader.close()
    slow_disk.go_on.set()
    other = broker.connect()
    assert other.fetch(topic, 0).error_code == 0


def test_a_topic_deleted_meanwhile(
    broker: OwnBroker, slow_disk: SlowDisk, far_behind: tuple[Wire, Topic]
) -> None:
    reader, topic = far_behind
    slow_disk.cold.set()
    slow_disk.go_on.clear()
    reader.send(reader.fetch_request(topic, 0, max_wait_ms=5000))
    while not slow_disk.warmed_by:
        time.sleep(0.01)
    broker.connect().ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="cold")], timeout_ms=10_000))
    slow_disk.go_on.set()
    assert reader.receive().responses[0].partitions[0].error_code != 0


def test_real_pages_are_told_apart(tmp_path: Path) -> None:
    """On this machine's file system: written is cached, dropped is not, and warmed is again."""
    disk = PosixDisk()
    file = disk.open(str(tmp_path / "f"), create=True)
    file.write_at((os.urandom(4 << 20),), 0)
    file.sync()
    assert file.is_cached(4 << 20, 0)
    os.posix_fadvise(file.pin(), 0, 0, os.POSIX_FADV_DONTNEED)
    if file.is_cached(4 << 20, 0):
        pytest.skip("this file system keeps its pages in memory whatever it is told")
    file.warm(4 << 20, 0)
    assert file.is_cached(4 << 20, 0)
    file.unpin()


@pytest.fixture(autouse=True)
def _release(slow_disk: SlowDisk) -> Iterator[None]:
    yield
    slow_disk.go_on.set()


def test_an_index_that_nobody_has_opened_is_warmed_once(
    broker: OwnBroker, slow_disk: SlowDisk, far_behind: tuple[Wire, Topic]
) -> None:
    _, topic = far_behind
    broker.restart()
    reader = broker.connect()
    segment_bytes = broker.broker.partitions.leader_of("cold", 0).log.segments[0].size
    assert reader.fetch(topic, 0, max_bytes=2 * segment_bytes).error_code == 0
    assert slow_disk.warmed_by == [], "to read a whole segment, no index is needed"
    assert reader.fetch(topic, 3, max_bytes=2 * BATCH_BYTES).error_code == 0
    assert len(slow_disk.warmed_by) == 1
    assert reader.fetch(topic, 5, max_bytes=2 * BATCH_BYTES).error_code == 0
    assert len(slow_disk.warmed_by) == 1, "it is open now"
