"""The guard of a volume's last bytes: how it counts, how often it asks, and what it says."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import RequestError
from tidelog.storage.disk import DiskError
from tidelog.storage.disk_space import (
    ALLOWANCE_BYTES_MAX,
    ASK_AGAIN_MS,
    AUTOMATIC,
    AUTOMATIC_BYTES_MAX,
    AUTOMATIC_BYTES_MIN,
    QUIET_MS,
    SpaceGuard,
)
from tidelog.storage.posix_disk import PosixDisk
from tidelog.wire.error_codes import ErrorCode

MIB = 1 << 20
NOW_MS = 1_700_000_000_000


class Volume(PosixDisk):
    """A disk of which only the volume matters: appends fill it, and so may others."""

    def __init__(self, free: int, total: int = 1 << 40) -> None:
        super().__init__()
        self.total, self.free = total, free
        self.asked = 0

    def volume_bytes(self, path: str, /) -> tuple[int, int]:
        self.asked += 1
        return self.total, self.free


def append(guard: SpaceGuard, volume: Volume, size: int, now_ms: int = NOW_MS) -> bool:
    """As a log does it."""
    try:
        if size > guard.allowance:
            guard.claim(size, now_ms)
    except RequestError as error:
        assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
        return False
    guard.allowance -= size
    volume.free -= size
    return True


@given(
    reserve=st.integers(1, 64 * MIB),
    free=st.integers(0, 100 * MIB),
    sizes=st.lists(st.integers(1, 2 * MIB), min_size=1, max_size=60),
)
def test_records_alone_never_touch_the_reserve(reserve: int, free: int, sizes: list[int]) -> None:
    volume = Volume(free)
    guard = SpaceGuard(volume, "/d", reserve)
    for number, size in enumerate(sizes):
        fits = volume.free - size >= reserve
        assert append(guard, volume, size, NOW_MS + number * ASK_AGAIN_MS) == fits


@given(
    reserve=st.integers(MIB, 64 * MIB),
    free=st.integers(0, 200 * MIB),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 64 * 1024)), max_size=200),
)
def test_others_are_seen_in_time(reserve: int, free: int, steps: list[tuple[bool, int]]) -> None:
    """Whoever takes space beside the records, and how much: the records take no more than a small part of the reserve."""
    volume = Volume(free)
    guard = SpaceGuard(volume, "/d", reserve)
    taken_by_others = 0
    for number, (is_record, size) in enumerate(steps):
        before = volume.free
        if not is_record:
            volume.free -= 1000 * size
            taken_by_others += 1000 * size
        elif append(guard, volume, size, NOW_MS + number * ASK_AGAIN_MS) and before < reserve:
            overdrawn = reserve - volume.free
            assert overdrawn <= taken_by_others + reserve // 8 + 64 * 1024


def test_two_directories_of_one_volume_do_not_spend_the_same_bytes() -> None:
    volume = Volume(10 * MIB)
    guards = [SpaceGuard(volume, path, 8 * MIB) for path in ("/a", "/b")]
    while sum(append(guard, volume, 10_000) for guard in guards):
        pass
    assert volume.free >= 8 * MIB - 20_000


def test_it_asks_seldom_while_there_is_room() -> None:
    volume = Volume(1 << 39)
    guard = SpaceGuard(volume, "/d", AUTOMATIC)
    for _ in range(10_000):
        assert append(guard, volume, 16_384)
    assert volume.asked <= 10_000 * 16_384 // ALLOWANCE_BYTES_MAX + 1


def test_it_asks_seldom_while_there_is_none() -> None:
    """A crowd of producers is refused; the volume is asked a few times a second, and found to have room soon after it has."""
    volume = Volume(MIB)
    guard = SpaceGuard(volume, "/d", 2 * MIB)
    for number in range(1000):
        assert not append(guard, volume, 100, NOW_MS + number)
    assert volume.asked <= 1000 // ASK_AGAIN_MS + 1
    assert guard.refusals == 1000
    volume.free = 3 * MIB
    assert append(guard, volume, 100, NOW_MS + 1000 + ASK_AGAIN_MS)


def test_a_small_batch_may_fit_where_a_large_one_did_not() -> None:
    volume = Volume(10_000)
    guard = SpaceGuard(volume, "/d", 5000)
    assert not append(guard, volume, 6000)
    assert append(guard, volume, 5000)
    assert not append(guard, volume, 1)


def test_a_clock_that_jumps_back_does_not_keep_it_shut() -> None:
    volume = Volume(0)
    guard = SpaceGuard(volume, "/d", 5000)
    assert not append(guard, volume, 1)
    volume.free = MIB
    assert append(guard, volume, 1, NOW_MS - 3_600_000)


@pytest.mark.parametrize(
    ("total", "reserve"),
    [
        (16 * MIB, AUTOMATIC_BYTES_MIN),
        (1000 * MIB, 50 * MIB),
        (1 << 40, AUTOMATIC_BYTES_MAX),
    ],
)
def test_the_automatic_reserve(total: int, reserve: int) -> None:
    volume = Volume(reserve + 10, total)
    guard = SpaceGuard(volume, "/d", AUTOMATIC)
    assert append(guard, volume, 10)
    assert not append(guard, volume, 1)
    assert str(reserve) in guard.reason


@pytest.mark.parametrize("guard", [SpaceGuard(), SpaceGuard(Volume(0), "/d", 0)], ids=["no-dir", "reserve-0"])
def test_without_a_reserve_nothing_is_refused(guard: SpaceGuard) -> None:
    volume = Volume(0)
    for _ in range(100):
        assert append(guard, volume, 1 << 40)
    guard.ran_out(DiskError("write", "/d/x", OSError(errno.ENOSPC, "No space left on device")), NOW_MS)
    assert append(guard, volume, 1), "the disk decides"


def test_a_file_system_that_does_not_tell_its_size() -> None:
    volume = Volume(0, 0)
    assert append(SpaceGuard(volume, "/d", AUTOMATIC), volume, MIB)


def test_the_reserve_can_be_changed() -> None:
    volume = Volume(10 * MIB)
    guard = SpaceGuard(volume, "/d", 20 * MIB)
    assert not append(guard, volume, 1)
    guard.keep_free(MIB)
    assert append(guard, volume, 1)
    guard.keep_free(0)
    volume.free = 0
    assert append(guard, volume, 1)
    guard.keep_free(MIB)
    assert not append(guard, volume, 1)


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    guard = SpaceGuard(PosixDisk(), str(tmp_path / "gone"), 1)
    with pytest.raises(DiskError):
        guard.claim(1, NOW_MS)


def test_real_volumes_answer(tmp_path: Path) -> None:
    stats = os.statvfs(tmp_path)
    guard = SpaceGuard(PosixDisk(), str(tmp_path), 1)
    guard.claim(1, NOW_MS)
    guard = SpaceGuard(PosixDisk(), str(tmp_path), stats.f_blocks * stats.f_frsize)
    with pytest.raises(RequestError):
        guard.claim(1, NOW_MS)


def test_news() -> None:
    """One line when appends begin to be refused, one when they go on, none in between."""
    volume = Volume(0)
    guard = SpaceGuard(volume, "/data", MIB)
    assert guard.has_room and guard.news(NOW_MS) is None
    for number in range(50):
        assert not append(guard, volume, 1, NOW_MS + 1000 * number)
        line = guard.news(NOW_MS + 1000 * number)
        assert (line is not None) == (number == 0)
        if line:
            assert "/data" in line and "refused" in line
    assert not guard.has_room
    late = NOW_MS + 49_000 + QUIET_MS
    assert guard.news(late) is None, "still full: that nobody asks means nothing"
    volume.free = 10 * MIB
    line = guard.news(late)
    assert line is not None and "50 appends" in line
    assert guard.has_room and guard.news(late) is None
    assert guard.refusals == 0


def test_news_of_a_disk_that_was_full_without_warning() -> None:
    guard = SpaceGuard(Volume(10 * MIB), "/data", MIB)
    guard.ran_out(DiskError("write", "/data/x", OSError(errno.ENOSPC, "No space left on device")), NOW_MS)
    line = guard.news(NOW_MS)
    assert line is not None and "No space left on device" in line and "/data is full" in line
