"""The disk that fails on demand: each operation can, when it is told to and not before, and the rest is the real disk."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from tidelog.storage.disk import DiskError, read_file, write_file_atomically
from tidelog.testing.faulty_disk import OPERATIONS, FaultyDisk


def use(disk: FaultyDisk, home: Path) -> None:
    """Every operation once."""
    disk.make_dirs(f"{home}/d")
    disk.make_dir(f"{home}/e")
    file = disk.open(f"{home}/d/f", create=True)
    file.write_at([b"hello", b" there"], 0)
    file.truncate(5)
    file.sync()
    assert file.read_at(100, 0) == b"hello"
    file.close()
    disk.sync_dir(f"{home}/d")
    disk.rename(f"{home}/d/f", f"{home}/d/g")
    assert disk.list_dir(f"{home}/d") == ["g"]
    disk.open(f"{home}/d/g").close()
    disk.make_file(f"{home}/d/h")
    assert disk.file_size(f"{home}/d/h") == 0 and disk.mtime_ms(f"{home}/d/h") > 0
    disk.remove(f"{home}/d/h")
    lock = disk.lock(f"{home}/d/.lock")
    assert lock is not None and disk.lock(f"{home}/d/.lock") is None
    lock.release()
    assert disk.volume_bytes(f"{home}/d")[1] > 0
    disk.remove_tree(f"{home}/d")
    assert not disk.exists(f"{home}/d") and disk.is_dir(f"{home}/e")


def test_it_is_the_real_disk(tmp_path: Path) -> None:
    disk = FaultyDisk()
    use(disk, tmp_path)
    assert disk.failures == []
    assert disk.syncs == {f"{tmp_path}/d/f": 1, f"{tmp_path}/d": 1}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_can_fail(tmp_path: Path, operation: str) -> None:
    disk = FaultyDisk()
    disk.fail(operation, code=errno.ENOSPC)
    with pytest.raises(DiskError) as failure:
        use(disk, tmp_path)
    assert failure.value.errno == errno.ENOSPC
    assert [failed.operation for failed in disk.failures] == ["create" if operation == "open" else operation]


def test_faults_are_counted(tmp_path: Path) -> None:
    disk = FaultyDisk()
    file = disk.open(f"{tmp_path}/f", create=True)
    fault = disk.fail("write", skip=2, times=1, matches=lambda path: path.endswith("/f"))
    outcomes = []
    for _ in range(4):
        try:
            file.write_at([b"x"], 0)
            outcomes.append("written")
        except DiskError:
            outcomes.append("failed")
    assert outcomes == ["written", "written", "failed", "written"]
    assert fault.struck == 1
    disk.fail("write")
    disk.heal()
    file.write_at([b"x"], 0)


def test_a_part_of_a_failing_write_reaches_the_file(tmp_path: Path) -> None:
    disk = FaultyDisk()
    file = disk.open(f"{tmp_path}/f", create=True)
    disk.fail("write", code=errno.ENOSPC, partial_bytes=3)
    with pytest.raises(DiskError):
        file.write_at([b"he", b"llo"], 0)
    assert file.read_at(10, 0) == b"hel"


def test_what_a_failed_sync_did_not_keep_is_lost(tmp_path: Path) -> None:
    disk = FaultyDisk()
    path = f"{tmp_path}/f"
    file = disk.open(path, create=True)
    file.write_at([b"kept"], 0)
    file.sync()
    file.write_at([b" lost"], 4)
    disk.fail("sync", times=1)
    with pytest.raises(DiskError):
        file.sync()
    assert disk.lose() == [path]
    assert read_file(disk, path) == b"kept"
    assert disk.lose() == []


def test_what_was_there_before_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    disk = FaultyDisk()
    file = disk.open(f"{tmp_path}/f")
    disk.fail("sync")
    with pytest.raises(DiskError):
        file.sync()
    disk.lose()
    assert (tmp_path / "f").read_bytes() == b"old"


def test_an_atomic_write_that_does_not_fit_leaves_the_old_file(tmp_path: Path) -> None:
    disk = FaultyDisk()
    path = f"{tmp_path}/f"
    write_file_atomically(disk, path, b"old")
    disk.fail("write", code=errno.ENOSPC, partial_bytes=2)
    with pytest.raises(DiskError) as failure:
        write_file_atomically(disk, path, b"new")
    assert failure.value.out_of_space
    assert read_file(disk, path) == b"old"
    disk.heal()
    write_file_atomically(disk, path, b"new")
    assert read_file(disk, path) == b"new"


def test_a_sync_can_be_held(tmp_path: Path) -> None:
    disk = FaultyDisk()
    file = disk.open(f"{tmp_path}/f", create=True)
    disk.holds = lambda path: True
    done = threading.Event()
    thread = threading.Thread(target=lambda: (file.sync(), done.set()))
    thread.start()
    assert not done.wait(0.05)
    disk.release()
    assert done.wait(5)
    thread.join()


def test_misspelt_operations_are_refused() -> None:
    with pytest.raises(ValueError, match="operations are"):
        FaultyDisk().fail("fsync")
    with pytest.raises(ValueError, match="operations are"):
        FaultyDisk().fail()
