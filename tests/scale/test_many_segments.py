"""One partition with hundreds of segments: searches after a start, retention of all of them at once, and descriptors, in slices.

`TIDELOG_TEST_EFFORT=20` makes it ten thousand.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from bench.scale_load import Watch
from bench.scale_segments import TOPIC, look_up, produce
from tests.scale.kit import LimitedPeer
from tests.storage.log_world import NOW_MS, append, make_batch
from tidelog.storage import segment_times
from tidelog.storage.log_config import LogConfig
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.recovery import open_log
from tools.peers.raw import RawConnection

EFFORT = int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))
SEGMENTS = 500 * EFFORT
DESCRIPTORS = 400
WAIT_SECONDS_MAX = 0.5
SETTINGS = {"log.retention.check.interval.ms": "500", "log.flush.offset.checkpoint.interval.ms": "500"}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_a_partition_with_many_segments() -> None:
    peer = LimitedPeer(descriptors=DESCRIPTORS, settings=SETTINGS)
    try:
        peer.start()
        admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})
        config = {
            "internal.segment.bytes": "1000",
            "file.delete.delay.ms": "100",
            "index.interval.bytes": "0",
        }
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(30)
        first_ms = int(time.time() * 1000) - 3_600_000
        with Watch(peer.pid, peer.bootstrap) as writing:
            produce(peer.bootstrap, SEGMENTS, first_ms)
        assert len(list((peer.log_dir / f"{TOPIC}-0").glob("*.log"))) >= SEGMENTS
        assert writing.descriptors_max < DESCRIPTORS
        for stop in (peer.terminate, peer.kill):
            stop()
            peer.start()
            assert len(os.listdir(f"/proc/{peer.pid}/fd")) < 60
            with Watch(peer.pid, peer.bootstrap) as searching, RawConnection(peer.bootstrap) as raw:
                look_up(raw, first_ms + SEGMENTS - 1, SEGMENTS - 1)
                for number in range(0, SEGMENTS, max(1, SEGMENTS // 50)):
                    look_up(raw, first_ms + number, number)
                    assert raw.fetch(TOPIC, number, max_bytes=1000)
            assert searching.wait_max < WAIT_SECONDS_MAX
            assert searching.descriptors_max < DESCRIPTORS
        with Watch(peer.pid, peer.bootstrap) as retaining, RawConnection(peer.bootstrap) as raw:
            set_retention(admin, "1")
            wait_until(lambda: raw.list_offset(TOPIC, -2) == SEGMENTS - 1)
            wait_until(lambda: len(list((peer.log_dir / f"{TOPIC}-0").glob("*.log*"))) <= 2)
        assert retaining.wait_max < WAIT_SECONDS_MAX
        with RawConnection(peer.bootstrap) as raw:
            assert raw.fetch(TOPIC, SEGMENTS - 1)
    finally:
        peer.stop()


def set_retention(admin: AdminClient, value: str) -> None:
    entry = ConfigEntry("retention.bytes", value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 60 * EFFORT
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.05)


def test_times_are_found_in_slices_and_nothing_stays_open(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200, index_interval_bytes=0)
    disk = PosixDisk()
    directory = str(tmp_path / "orders-0")
    log = open_log(disk, directory, "orders", 0, config=config, now_ms=NOW_MS)
    for number in range(200):
        append(log, make_batch((NOW_MS + number,), value=b"x" * 60))
    log.close_cleanly()
    disk = PosixDisk()
    log = open_log(disk, directory, "orders", 0, config=config, now_ms=NOW_MS, clean=True, recovery_point=200)
    assert len(log.segments) == 200
    opened = disk.open_files
    slices = segment_times.unknown_times(log)
    assert len(slices) == 7
    for part in slices:
        part.warm()
        part.load()
    assert disk.open_files <= opened + len(log.segments)  # a .log each, which the cache may close
    assert not any(segment.indexes_are_open for segment in log.segments[:-1])
    assert segment_times.unknown_times(log) == []
    assert log.offset_for_timestamp(NOW_MS + 137) == (NOW_MS + 137, 137, 0)
    assert log.max_timestamp_offset() == (NOW_MS + 199, 199, 0)


def test_segments_that_retention_took_meanwhile_are_passed_over(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200, index_interval_bytes=0, retention_ms=-1)
    directory = str(tmp_path / "orders-0")
    log = open_log(PosixDisk(), directory, "orders", 0, config=config, now_ms=NOW_MS)
    for number in range(100):
        append(log, make_batch((NOW_MS + number,), value=b"x" * 60))
    log.close_cleanly()
    log = open_log(
        PosixDisk(), directory, "orders", 0, config=config, now_ms=NOW_MS, clean=True, recovery_point=100
    )
    slices = segment_times.unknown_times(log)
    log.set_high_watermark(100)
    log.advance_log_start_offset(60)
    assert log.apply_retention(NOW_MS).segments == 60
    log.log_start_is_durable(60, NOW_MS)
    for part in slices:
        part.warm()
        part.load()
    assert log.offset_for_timestamp(NOW_MS) == (NOW_MS + 60, 60, 0)


def test_retention_takes_no_more_at_once_than_it_may(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200, retention_bytes=0, retention_ms=-1)
    log = open_log(PosixDisk(), str(tmp_path / "orders-0"), "orders", 0, config=config, now_ms=NOW_MS)
    for _ in range(30):
        append(log, make_batch(value=b"x" * 60))
    log.flush()
    log.set_high_watermark(30)
    taken = []
    while True:
        retained = log.apply_retention(NOW_MS, segments_max=7)
        taken.append(retained.segments)
        if not retained.more:
            break
    assert taken == [7, 7, 7, 7, 2]
    assert log.log_start_offset == 30
    assert len(log.doomed) == 30
