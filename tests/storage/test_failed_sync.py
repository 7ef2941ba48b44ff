"""What a failed sync leaves is not trusted by the next start, although the page cache shows it (I7, M25).

The process dies, the machine does not: `keep_all`. The simulated disk does as Linux does: what a failed sync lost stays readable, and the next
sync succeeds without writing it.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from tests.storage.log_world import DIRECTORY, SMALL, append, append_many, make_batch, open_orders, read_all
from tidelog.storage import files
from tidelog.storage.disk import DiskError
from tidelog.storage.log_manager import LogManager
from tidelog.storage.posix_disk import PosixDisk
from tidelog.testing.sim.clock import SimClock
from tidelog.testing.sim.disk import SimDisk

NOTE = f"{DIRECTORY}/{files.SYNC_FAILED}"


def after_failed_sync(*, code: int = errno.EIO, records: int = 3) -> SimDisk:
    """A log with two records on disk and some more that a sync has lost; then the process ends."""
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    append_many(log, 2)
    log.flush()
    append_many(log, records)
    disk.fail("sync", code, matches=lambda path: path.endswith(".log"))
    with pytest.raises(DiskError):
        log.flush()
    assert disk.exists(NOTE)
    return disk.crash("keep_all")


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_what_a_start_finds_is_durable_once_it_is_synced(code: int) -> None:
    """Otherwise a producer's retry would be told that its record is stored, and the record would be gone after a power cut."""
    disk = after_failed_sync(code=code)
    log = open_orders(disk, recovery_point=2)
    append(log, make_batch(value=b"after"))
    log.flush()
    stored = read_all(log)
    again = open_orders(disk.crash("lose_unsynced"), recovery_point=log.recovery_point)
    assert read_all(again) == stored
    assert not again.recovery.damages


def test_what_was_synced_before_stays() -> None:
    log = open_orders(after_failed_sync(), recovery_point=2)
    assert log.log_end_offset == 2
    assert [cut.offset for cut in log.recovery.cuts] == []


def test_also_after_the_marker_of_a_clean_stop() -> None:
    disk = after_failed_sync()
    assert open_orders(disk, recovery_point=2, clean=True).log_end_offset == 2


def test_the_note_is_used_up() -> None:
    disk = after_failed_sync()
    open_orders(disk, recovery_point=2)
    assert not disk.exists(NOTE)
    log = open_orders(disk.crash("keep_all"), recovery_point=2)
    assert log.log_end_offset == 2


def test_a_process_that_was_killed_trusts_the_cache() -> None:
    """No sync has failed: what is cached will be written, and a start need not read it from the disk."""
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    append_many(log, 5)
    assert not disk.exists(NOTE)
    assert open_orders(disk.crash("keep_all")).log_end_offset == 5


def test_a_rolled_log() -> None:
    """Sealed segments, indexes and snapshots are among what the sync lost."""
    disk = after_failed_sync(records=20)
    log = open_orders(disk, recovery_point=2)
    append_many(log, 20)
    log.flush()
    stored = read_all(log)
    again = open_orders(disk.crash("lose_unsynced"), recovery_point=log.recovery_point)
    assert read_all(again) == stored


def test_a_sync_that_fails_in_recovery() -> None:
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    append_many(log, 2)
    log.flush()
    append_many(log, 2)
    path = log.active.file.path
    disk.open(path).write_at([b"torn"], disk.file_size(path))
    killed = disk.crash("keep_all")
    killed.fail("sync", matches=lambda path: path.endswith(".log"))
    with pytest.raises(DiskError):
        open_orders(killed, recovery_point=2)
    log = open_orders(killed.crash("keep_all"), recovery_point=2)
    log.flush()
    end = log.log_end_offset
    assert open_orders(log.disk.crash("lose_unsynced"), recovery_point=end).log_end_offset == end  # type: ignore[attr-defined]


def test_a_sync_that_fails_in_a_truncation() -> None:
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    append_many(log, 8)
    disk.fail("sync", matches=lambda path: path.endswith(".log"))
    with pytest.raises(DiskError):
        log.truncate_to(5)
    assert disk.exists(NOTE)


def test_the_metadata_log_as_well() -> None:
    disk = SimDisk(random.Random(0))
    logs = LogManager(disk, SimClock(), random.Random(0), ["/a"], node_id=0)
    logs.open()
    log = logs.open_metadata_log()
    append(log)
    log.flush()
    append(log)
    disk.fail("sync")
    with pytest.raises(DiskError):
        log.flush()
    logs.close(clean=False)
    again = LogManager(disk.crash("keep_all"), SimClock(), random.Random(0), ["/a"], node_id=0)
    again.open()
    assert again.open_metadata_log().log_end_offset == 1


def test_a_disk_that_does_not_take_the_note() -> None:
    disk = SimDisk(random.Random(0))
    log = open_orders(disk)
    append(log)
    disk.fail("sync")
    disk.fail("create", matches=lambda path: path == NOTE)
    with pytest.raises(DiskError) as failure:
        log.flush()
    assert failure.value.operation == "sync"


def test_real_files(tmp_path: Path) -> None:
    """The note is a file like others; forgetting what is cached changes nothing where the disk has it all."""
    directory = str(tmp_path / "orders-0")
    log = open_orders(PosixDisk(), SMALL, directory=directory)
    append_many(log, 20)
    log.flush()
    stored = read_all(log)
    log.close()
    PosixDisk().make_file(f"{directory}/{files.SYNC_FAILED}")
    again = open_orders(PosixDisk(), SMALL, directory=directory)
    assert read_all(again) == stored
    assert not (tmp_path / "orders-0" / files.SYNC_FAILED).exists()
