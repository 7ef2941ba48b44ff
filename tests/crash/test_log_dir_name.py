"""A log directory whose name a power cut could take: everything acknowledged in it would go with it.

Found by a kill between the broker's first mkdir and its sync: the next start took the directory for granted, and so did every later one.
"""

from __future__ import annotations

import errno
from random import Random

import pytest

from tidelog.storage.disk import DiskError
from tidelog.storage.log_dirs import LogDir
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.inodes import Directory


@pytest.fixture
def disk() -> SimDisk:
    """Somebody made the directory a moment ago, and nobody has synced the one above it."""
    disk = SimDisk(Random(1))
    disk.make_dirs("/srv")
    disk.machine.link(("/srv/data", Directory()))
    assert not disk.crash("lose_unsynced").is_dir("/srv/data")
    return disk


def test_it_is_durable_before_anything_is_stored_in_it(disk: SimDisk) -> None:
    LogDir(disk, "/srv/data").acquire()
    assert disk.crash("lose_unsynced").is_dir("/srv/data")


def test_a_directory_above_that_belongs_to_somebody_else_is_left_alone(disk: SimDisk) -> None:
    disk.fail("sync directory", errno.EACCES)
    LogDir(disk, "/srv/data").acquire()


def test_a_directory_above_that_fails_is_told(disk: SimDisk) -> None:
    disk.fail("sync directory", errno.EIO)
    with pytest.raises(DiskError, match="/srv"):
        LogDir(disk, "/srv/data").acquire()


def test_at_the_root_of_the_tree() -> None:
    disk = SimDisk(Random(1))
    disk.machine.link(("/data", Directory()))
    LogDir(disk, "/data").acquire()
    assert disk.crash("lose_unsynced").is_dir("/data")
