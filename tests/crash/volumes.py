"""Small volumes of their own for tests that fill a disk or break one. Mounting takes root; without it the tests say so and skip.

`tmpfs` gives a volume that is full for real. `thin` gives a device that fails: writes succeed, for the file system has room; the device behind
it has none, so fdatasync fails with EIO, once; and the next fdatasync says that all is well, with the data gone.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

COMMAND_SECONDS_MAX = 30.0
SYS_BLOCK = Path("/sys/block")
ZRAM_CONTROL = Path("/sys/class/zram-control")


def _run(*command: str | Path) -> None:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX
    )
    if done.returncode:
        raise OSError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


@contextmanager
def _mounted(place: Path, *how: str | Path) -> Iterator[Path]:
    place.mkdir(parents=True)
    try:
        _run("mount", *how, place)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no volume of our own can be mounted here: {error}")
    try:
        yield place
    finally:
        _run("umount", place)


@contextmanager
def tmpfs(place: Path, size_bytes: int) -> Iterator[Path]:
    with _mounted(place, "-t", "tmpfs", "-o", f"size={size_bytes}", "tidelog-test") as volume:
        yield volume


class Thin:
    """A file system at `path` whose device runs out of storage although the file system has room left, until it may `grow`."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self._device = device

    def limit(self, real_bytes: int) -> None:
        (SYS_BLOCK / self._device / "mem_limit").write_text(str(real_bytes))

    def grow(self) -> None:
        self.limit(0)

    def mount_again(self) -> None:
        """Nothing of it is in the page cache afterwards: what is read comes from the device, as after a restart of the machine."""
        _run("umount", self.path)
        _run("mount", f"/dev/{self._device}", self.path)


@contextmanager
def thin(place: Path, *, real_bytes: int, apparent_bytes: int) -> Iterator[Thin]:
    """On a zram device: it keeps its blocks compressed in memory, up to a limit. What is written must not be compressible."""
    with _zram(apparent_bytes) as device:
        try:
            _run("mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", f"/dev/{device}")
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"no file system can be made here: {error}")
        with _mounted(place, f"/dev/{device}") as front:
            volume = Thin(front, device)
            volume.limit(real_bytes)
            yield volume


@contextmanager
def _zram(size_bytes: int) -> Iterator[str]:
    try:
        number = (ZRAM_CONTROL / "hot_add").read_text().strip()
    except OSError as error:
        pytest.skip(f"no zram device can be made here: {error}")
    try:
        (SYS_BLOCK / f"zram{number}" / "disksize").write_text(str(size_bytes))
        yield f"zram{number}"
    finally:
        (ZRAM_CONTROL / "hot_remove").write_text(number)


class Ballast:
    """A file that takes the room on a volume, as another program's would."""

    def __init__(self, volume: Path) -> None:
        self._file = volume / "ballast"

    def leave(self, free_bytes: int) -> None:
        """Grow until no more than `free_bytes` are free."""
        block = bytes(1 << 16)
        with self._file.open("ab", buffering=0) as file:
            while (excess := self.free_bytes - free_bytes) > 0:
                try:
                    file.write(block[: min(len(block), excess)])
                except OSError:
                    return

    @property
    def free_bytes(self) -> int:
        stats = os.statvfs(self._file.parent)
        return stats.f_bavail * stats.f_frsize

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)
