"""A seek in a segment of 1 GiB, by offset and by timestamp, takes under a millisecond at the 99th percentile.

Real files, as a broker has them: the default index interval, 64 records of 1 KiB to a batch. The best of three rounds counts,
because a test machine may be busy with something else; a round is a thousand seeks.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.log_world import NOW_MS
from tidelog.records.batch import read_header
from tidelog.records.builder import BatchBuilder
from tidelog.storage.log import Log
from tidelog.storage.log_config import LogConfig
from tidelog.storage.posix_disk import PosixDisk
from tidelog.storage.recovery import open_log

SEGMENT_BYTES = 1 << 30
RECORDS_PER_BATCH = 64
SEEKS = 1000
ROUNDS = 3
LIMIT_SECONDS = 0.001


def fill(log: Log) -> None:
    """One record per millisecond until the first segment is full."""
    value = b"x" * 1024
    timestamp = NOW_MS
    while len(log.segments) == 1:
        builder = BatchBuilder()
        for _ in range(RECORDS_PER_BATCH):
            builder.append(timestamp, None, value)
            timestamp += 1
        batch = builder.build()
        log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=timestamp)
    log.set_high_watermark(log.log_end_offset)


def p99_seconds(seek: Callable[[int], None], places: list[int]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        times = []
        for place in places:
            began = time.perf_counter()
            seek(place)
            times.append(time.perf_counter() - began)
        best = min(best, sorted(times)[int(len(times) * 0.99)])
    return best


@pytest.mark.slow
@pytest.mark.alone
def test_seeks_in_a_full_segment_are_fast(tmp_path: Path) -> None:
    disk = PosixDisk()
    log = open_log(disk, str(tmp_path / "orders-0"), "orders", 0, config=LogConfig(), now_ms=NOW_MS)
    fill(log)
    last = log.active.base_offset
    assert log.segments[0].size > SEGMENT_BYTES - (1 << 17)
    chance = random.Random(1)
    offsets = [chance.randrange(last) for _ in range(SEEKS)]

    def by_offset(offset: int) -> None:
        log.positions.clear()
        found = log.read(offset, 1 << 20, end_offset=log.high_watermark)
        assert found.range is not None
        found.range.release()

    def by_timestamp(offset: int) -> None:
        found = log.offset_for_timestamp(NOW_MS + offset)
        assert found is not None and found[1] == offset

    slow_by_offset = p99_seconds(by_offset, offsets)
    slow_by_timestamp = p99_seconds(by_timestamp, offsets)
    print(
        f"\n1 GiB segment, p99: by offset {slow_by_offset * 1e6:.0f} µs, by timestamp {slow_by_timestamp * 1e6:.0f} µs"
    )
    assert slow_by_offset < LIMIT_SECONDS
    assert slow_by_timestamp < LIMIT_SECONDS
    log.close()
