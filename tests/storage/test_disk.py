"""The real disk: bytes arrive whole, descriptors stay bounded, and nothing dirty or pinned loses its descriptor."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidelog.storage import posix_disk
from tidelog.storage.disk import DiskError, FileRange, read_file, write_file_atomically
from tidelog.storage.posix_disk import PosixDisk


@pytest.fixture
def disk() -> PosixDisk:
    return PosixDisk(max_open_files=4)


def test_gathered_writes_land_one_after_another(disk: PosixDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    assert file.write_at([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b""], 3) == 6
    assert file.read_at(100, 0) == b"\0\0\0abcdef"
    assert file.read_at(2, 4) == b"bc"
    assert file.read_at(5, 9) == b""
    assert file.size() == 9
    file.truncate(5)
    assert file.read_at(9, 0) == b"\0\0\0ab"


def test_more_buffers_than_one_call_takes(disk: PosixDisk, tmp_path: Path) -> None:
    pieces = [b"%04d" % number for number in range(3000)]
    file = disk.open(f"{tmp_path}/a", create=True)
    assert file.write_at(pieces, 0) == 12000
    assert file.read_at(12000, 0) == b"".join(pieces)


def test_short_writes_and_reads_are_continued(
    disk: PosixDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, real_read = os.pwritev, os.pread

    def short_write(fd: int, buffers: list[bytes], position: int) -> int:
        joined = b"".join(buffers)[:3]
        return real_write(fd, [joined], position)

    monkeypatch.setattr(posix_disk.os, "pwritev", short_write)
    monkeypatch.setattr(
        posix_disk.os, "pread", lambda fd, count, position: real_read(fd, min(count, 2), position)
    )
    file = disk.open(f"{tmp_path}/a", create=True)
    assert file.write_at([b"hello ", b"", b"world"], 0) == 11
    assert file.read_at(11, 0) == b"hello world"
    assert file.read_at(100, 6) == b"world"


def test_a_missing_file_is_filenotfound_and_only_that(disk: PosixDisk, tmp_path: Path) -> None:
    missing = f"{tmp_path}/none"
    for operation in (
        disk.open,
        disk.file_size,
        disk.mtime_ms,
        disk.list_dir,
        disk.volume_bytes,
        disk.sync_dir,
    ):
        with pytest.raises(FileNotFoundError):
            operation(missing)
    with pytest.raises(FileNotFoundError):
        disk.rename(missing, missing + "2")
    disk.remove(missing)
    disk.remove_tree(missing)
    assert not disk.exists(missing)
    assert not disk.is_dir(missing)


def test_errors_name_operation_and_path(disk: PosixDisk, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(DiskError, match=r"mkdir failed on .*file") as failure:
        disk.make_dirs(f"{tmp_path}/file/below")
    assert failure.value.operation == "mkdir"
    with pytest.raises(DiskError) as failure:
        disk.list_dir(f"{tmp_path}/file")
    assert failure.value.errno == errno.ENOTDIR
    with pytest.raises(DiskError):
        disk.remove(str(tmp_path))
    with pytest.raises(DiskError):
        disk.open(f"{tmp_path}/file").read_at(1, -1)


def test_directories(disk: PosixDisk, tmp_path: Path) -> None:
    disk.make_dirs(f"{tmp_path}/a/b/c")
    disk.make_dirs(f"{tmp_path}/a/b/c")
    write_file_atomically(disk, f"{tmp_path}/a/b/z", b"1")
    write_file_atomically(disk, f"{tmp_path}/a/b/z", b"22")
    assert disk.list_dir(f"{tmp_path}/a/b") == ["c", "z"]
    assert disk.file_size(f"{tmp_path}/a/b/z") == 2
    assert disk.mtime_ms(f"{tmp_path}/a/b/z") > 1_600_000_000_000
    assert disk.volume_bytes(str(tmp_path))[1] > 0
    disk.rename(f"{tmp_path}/a/b", f"{tmp_path}/a/d")
    assert read_file(disk, f"{tmp_path}/a/d/z") == b"22"
    disk.remove_tree(f"{tmp_path}/a")
    assert disk.list_dir(str(tmp_path)) == []


def test_descriptors_stay_within_the_limit(disk: PosixDisk, tmp_path: Path) -> None:
    opened = []
    for number in range(40):
        file = disk.open(f"{tmp_path}/{number}", create=True)
        file.write_at([b"%d" % number], 0)
        file.sync()
        opened.append(file)
    assert disk.open_files <= 5
    for number, file in enumerate(opened):
        assert file.read_at(10, 0) == b"%d" % number
        assert disk.open_files <= 5
    for file in opened:
        file.close()
        file.close()
    assert disk.open_files == 0
    with pytest.raises(ValueError, match="closed"):
        opened[0].read_at(1, 0)


def test_files_in_use_are_closed_last(disk: PosixDisk, tmp_path: Path) -> None:
    paths = [f"{tmp_path}/{number}" for number in range(30)]
    for path in paths:
        write_file_atomically(disk, path, b"x")
    hot = disk.open(paths[0])
    descriptor = hot.pin()
    hot.unpin()
    for path in paths[1:]:
        hot.read_at(1, 0)
        disk.open(path).read_at(1, 0)
    assert hot.pin() == descriptor
    hot.unpin()


def test_dirty_and_pinned_files_keep_their_descriptor(disk: PosixDisk, tmp_path: Path) -> None:
    dirty = disk.open(f"{tmp_path}/dirty", create=True)
    dirty.write_at([b"x"], 0)
    pinned = disk.open(f"{tmp_path}/pinned", create=True)
    descriptors = (dirty._fd, pinned.pin())
    for number in range(50):
        disk.open(f"{tmp_path}/{number}", create=True).read_at(1, 0)
    assert (dirty._fd, pinned._fd) == descriptors
    dirty.sync()
    pinned.unpin()
    for number in range(50, 100):
        disk.open(f"{tmp_path}/{number}", create=True).read_at(1, 0)
    assert (dirty._fd, pinned._fd) == (-1, -1)


def test_a_pinned_file_outlives_close_and_removal(disk: PosixDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/a"
    file = disk.open(path, create=True)
    file.write_at([b"0123456789"], 0)
    records = FileRange(file, 2, 5)
    assert len(records) == 5
    file.close()
    disk.remove(path)
    assert os.pread(records.descriptor, 5, 2) == b"23456"
    assert records.read() == b"23456"
    records.release()
    assert disk.open_files == 0
    with pytest.raises(RuntimeError, match="unpin without pin"):
        file.unpin()


def test_a_renamed_file_is_reopened_under_its_new_name(disk: PosixDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    file.write_at([b"x"], 0)
    file.sync()
    disk.rename(f"{tmp_path}/a", f"{tmp_path}/b")
    file.moved_to(f"{tmp_path}/b")
    for number in range(20):
        disk.open(f"{tmp_path}/{number}", create=True)
    assert file._fd == -1
    assert file.read_at(1, 0) == b"x"
    assert file.path == f"{tmp_path}/b"


def test_a_write_during_a_sync_leaves_the_file_dirty(
    disk: PosixDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    file.write_at([b"1"], 0)
    inside, go_on = threading.Event(), threading.Event()

    def slow_sync(fd: int) -> None:
        inside.set()
        assert go_on.wait(10)

    monkeypatch.setattr(posix_disk, "_sync_data", slow_sync)
    thread = threading.Thread(target=file.sync)
    thread.start()
    assert inside.wait(10)
    file.write_at([b"2"], 1)  # the loop is not held up by the sync
    assert file.read_at(2, 0) == b"12"
    file_closing_waits = file._fd
    file.close()
    os.fstat(file_closing_waits)  # still open: the sync needs it
    go_on.set()
    thread.join(10)
    assert file.dirty
    assert disk.open_files == 0


def test_a_failed_sync_is_never_retried(
    disk: PosixDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    file.write_at([b"1"], 0)
    calls = []

    def failing_sync(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(posix_disk, "_sync_data", failing_sync)
    with pytest.raises(DiskError, match="sync failed"):
        file.sync()
    monkeypatch.setattr(posix_disk, "_sync_data", lambda fd: calls.append(fd))
    with pytest.raises(DiskError, match="never retried"):
        file.sync()
    assert len(calls) == 1
    assert file.dirty


def test_running_out_of_descriptors_closes_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = PosixDisk(max_open_files=100)
    for number in range(10):
        disk.open(f"{tmp_path}/{number}", create=True)
    real_open, refusals = os.open, [1]

    def refusing_open(path: str, flags: int, mode: int = 0o777) -> int:
        if refusals:
            refusals.pop()
            raise OSError(errno.EMFILE, "Too many open files")
        return real_open(path, flags, mode)

    monkeypatch.setattr(posix_disk.os, "open", refusing_open)
    disk.open(f"{tmp_path}/one-more", create=True).read_at(1, 0)
    assert disk.open_files <= 6


def test_a_lock_has_one_holder(disk: PosixDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/.lock"
    lock = disk.lock(path)
    assert lock is not None
    assert disk.lock(path) is None
    assert PosixDisk().lock(path) is None
    lock.release()
    again = disk.lock(path)
    assert again is not None
    again.release()
    again.release()


def test_a_lock_excludes_posix_lockers_such_as_kafka(disk: PosixDisk, tmp_path: Path) -> None:
    import subprocess
    import sys

    path = f"{tmp_path}/.lock"
    lock = disk.lock(path)
    assert lock is not None
    attempt = (
        "import fcntl,sys; f=open(sys.argv[1],'r+');\n"
        "try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print('free')\n"
        "except OSError: print('held')"
    )

    def outcome() -> str:
        return subprocess.run(
            [sys.executable, "-c", attempt, path], capture_output=True, text=True
        ).stdout.strip()

    if sys.platform == "linux":
        assert outcome() == "held"
    lock.release()
    assert outcome() == "free"


def test_threads_that_sync_never_take_a_descriptor_from_the_loop(tmp_path: Path) -> None:
    disk = PosixDisk(max_open_files=2)
    opened = [disk.open(f"{tmp_path}/{number}", create=True) for number in range(12)]
    stop = threading.Event()

    def sync_and_checkpoint(seed: int) -> None:
        turn = seed
        while not stop.is_set():
            turn += 1
            opened[turn * 7 % 12].sync()
            write_file_atomically(disk, f"{tmp_path}/checkpoint-{seed}", b"%d" % turn)

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(sync_and_checkpoint, seed) for seed in range(3)]
        try:
            for turn in range(1500):
                file = opened[turn * 5 % 12]
                text = b"%05d from %s" % (turn, file.path.encode())
                file.write_at([text], 0)
                assert file.read_at(len(text), 0) == text
        finally:
            stop.set()
        for future in running:
            future.result(20)
    for file in opened:
        assert file.read_at(999, 0).endswith(file.path.encode())
        file.close()
    assert disk.open_files == 0


class ManyFiles(RuleBasedStateMachine):
    """Any mix of operations over more files than descriptors, against plain byte arrays."""

    names = st.integers(0, 7)

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        self.disk = PosixDisk(max_open_files=2)
        self.files: dict[int, posix_disk.PosixFile] = {}
        self.model: dict[int, bytearray] = {}

    def path(self, name: int) -> str:
        return f"{self.directory.name}/{name}"

    @rule(name=names, data=st.binary(max_size=40), position=st.integers(0, 60))
    def write(self, name: int, data: bytes, position: int) -> None:
        if name not in self.files:
            self.files[name] = self.disk.open(self.path(name), create=True)
            self.model.setdefault(name, bytearray())
        self.files[name].write_at([data[:7], data[7:]], position)
        image = self.model[name]
        if data:
            image.extend(bytes(max(0, position - len(image))))
            image[position : position + len(data)] = data

    @rule(name=names, size=st.integers(0, 60))
    def truncate(self, name: int, size: int) -> None:
        if name in self.files:
            self.files[name].truncate(size)
            image = self.model[name]
            image.extend(bytes(max(0, size - len(image))))
            del image[size:]

    @rule(name=names)
    def sync(self, name: int) -> None:
        if name in self.files:
            self.files[name].sync()
            assert not self.files[name].dirty

    @rule(name=names)
    def close(self, name: int) -> None:
        if name in self.files:
            self.files.pop(name).close()

    @rule(name=names, position=st.integers(0, 60), count=st.integers(0, 60))
    def read(self, name: int, position: int, count: int) -> None:
        if name in self.model:
            if name not in self.files:
                self.files[name] = self.disk.open(self.path(name))
            expected = bytes(self.model[name][position : position + count])
            assert self.files[name].read_at(count, position) == expected
            assert self.files[name].size() == len(self.model[name])

    @invariant()
    def descriptors_are_counted(self) -> None:
        held = sum(file._fd >= 0 for file in self.files.values())
        assert self.disk.open_files == held
        assert held <= 3 + sum(file.dirty for file in self.files.values())

    def teardown(self) -> None:
        for file in self.files.values():
            file.close()
        self.directory.cleanup()


TestManyFiles = ManyFiles.TestCase
TestManyFiles.settings = settings(max_examples=60, stateful_step_count=30)
