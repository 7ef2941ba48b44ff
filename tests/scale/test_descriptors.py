"""A process that runs out of descriptors syncs and closes files rather than lose its directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.storage import posix_disk
from tidelog.storage.disk import DiskError
from tidelog.storage.posix_disk import PosixDisk

FILES = 300
OUT_OF_DESCRIPTORS = f"""
import resource, sys
from tidelog.storage.posix_disk import PosixDisk
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
disk = PosixDisk(max_open_files=1000)  # more than there are: only the system says stop
files = [disk.open(f"{{sys.argv[1]}}/{{number}}", create=True) for number in range(40)]
for number in range(40, {FILES}):
    disk.make_file(f"{{sys.argv[1]}}/{{number}}")
    files.append(disk.open(f"{{sys.argv[1]}}/{{number}}"))
for turn in range(3):
    for number, file in enumerate(files):
        file.write_at((b"%d-%d" % (turn, number),), 0)
for number, file in enumerate(files):
    assert file.read_at(100, 0) == b"2-%d" % number
    file.sync()
print(disk.open_files)
"""


def test_unsynced_files_beyond_the_systems_limit(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_DESCRIPTORS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 100


def test_unsynced_files_stay_within_one_and_a_half_times_the_limit(tmp_path: Path) -> None:
    disk = PosixDisk(max_open_files=40)
    files = []
    most = 0
    for number in range(FILES):
        disk.make_file(f"{tmp_path}/{number}")
        files.append(disk.open(f"{tmp_path}/{number}"))
        files[-1].write_at((b"x",), 0)
        most = max(most, disk.open_files)
    assert most <= 61
    for file in files:
        assert file.read_at(2, 0) == b"x"


def test_pinned_files_are_not_closed_for_others(tmp_path: Path) -> None:
    disk = PosixDisk(max_open_files=10)
    pinned = disk.open(f"{tmp_path}/pinned", create=True)
    pinned.write_at((b"x",), 0)
    descriptor = pinned.pin()
    for number in range(100):
        disk.open(f"{tmp_path}/{number}", create=True).write_at((b"x",), 0)
    assert pinned.pin() == descriptor


def test_a_sync_that_fails_on_the_way_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: the file's owner must hear of it, although it was not the one who asked."""
    disk = PosixDisk(max_open_files=4)
    victim = disk.open(f"{tmp_path}/victim", create=True)
    victim.write_at((b"x",), 0)
    real = posix_disk._sync_data

    def failing(fd: int) -> None:
        if fd == victim._fd:
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(posix_disk, "_sync_data", failing)
    for number in range(20):
        disk.open(f"{tmp_path}/{number}", create=True).write_at((b"x",), 0)
    monkeypatch.setattr(posix_disk, "_sync_data", real)
    with pytest.raises(DiskError, match="never retried"):
        victim.sync()
