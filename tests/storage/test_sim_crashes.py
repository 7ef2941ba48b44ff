"""The enumeration of crashes itself: which survivors are tried, in which order, how many, and which faults can be planned."""

from __future__ import annotations

import errno
import random

import pytest

from tidelog.storage.disk import DiskError, read_file
from tidelog.testing.sim.crashes import plain_choices, reordered_choices, survival_choices
from tidelog.testing.sim.disk import ANY_CHANGE, SimDisk
from tidelog.testing.sim.inodes import DataOp, Fate


def recording() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    for name in "ab":
        disk.open(f"/d/{name}", create=True)
    disk.sync_dir("/d")
    disk.start_recording()
    return disk


def write(disk: SimDisk, name: str, data: bytes, position: int = 0) -> None:
    disk.open(f"/d/{name}").write_at([data], position)


def contents(disk: SimDisk) -> tuple[bytes, bytes]:
    return read_file(disk, "/d/a"), read_file(disk, "/d/b")


def labels(choices: list[list[Fate]]) -> list[str]:
    return [" ".join(str(fate) for fate in fates) for fates in choices]


def test_all_subsets_of_few_operations_are_tried_each_with_its_newest_write_torn() -> None:
    ops = [DataOp(0, b"1234", order=2), DataOp(0, None, order=1)]
    assert labels(list(plain_choices(ops))) == [
        "lost lost", "kept kept", "torn@2 kept", "zeroed@0 kept", "zeroed@2 kept",
    ]  # fmt: skip
    assert labels(list(reordered_choices(ops, 2))) == [
        "lost kept", "kept lost", "torn@2 lost", "zeroed@0 lost", "zeroed@2 lost",
    ]  # fmt: skip
    assert len(list(survival_choices(ops, 2))) == 10


def test_of_many_operations_the_first_in_time_survive_and_each_is_alone_once() -> None:
    ops = [DataOp(0, None, order=order) for order in (3, 1, 2)]
    found = labels(list(reordered_choices(ops, 0)))
    assert found[:2] == ["lost kept lost", "lost kept kept"]  # by time, not by place
    assert set(found[2:]) == {
        "lost kept kept", "kept lost lost", "kept lost kept", "lost kept lost", "kept kept lost", "lost lost kept",
    }  # fmt: skip


def test_time_runs_across_files() -> None:
    disk = recording()
    for number, name in enumerate("abab"):
        write(disk, name, b"%d" % number, number)
    ended = [
        contents(state.disk)
        for state in disk.crash_states(subsets_up_to=0)
        if state.operations == disk.operations
    ]
    assert (b"0\0" + b"2", b"\0" + b"1") in ended  # the first three, of two files
    assert disk.operations == 4


def test_zeroes_may_follow_what_was_written_first() -> None:
    disk = recording()
    write(disk, "a", b"12345678")
    found = {contents(state.disk)[0] for state in disk.crash_states()}
    assert found == {b"", b"12345678", b"1234", bytes(8), b"1234" + bytes(4)}


def test_a_limit_takes_a_share_of_the_reordered_states_and_all_plain_ones() -> None:
    disk = recording()
    for number in range(6):
        write(disk, "ab"[number % 2], b"%d" % number * 3, number)
    everything = list(disk.crash_states(subsets_up_to=6))
    some = list(disk.crash_states(subsets_up_to=6, limit=20))
    assert len(everything) > 150
    assert 20 < len(some) < 100
    assert sum(state.killed for state in some) == disk.operations + 1
    late = list(disk.crash_states(subsets_up_to=6, since=5))
    assert {state.operations for state in late} == {5, 6}


def test_disks_that_are_judged_alike_are_seen_once() -> None:
    disk = recording()
    write(disk, "a", b"1")
    write(disk, "b", b"2")
    lost = [s for s in disk.crash_states() if not s.killed and contents(s.disk) == (b"", b"")]
    assert len(lost) == 3  # before, between, after
    once = [
        s for s in disk.crash_states(judged_by=lambda n: 0) if not s.killed and contents(s.disk) == (b"", b"")
    ]
    assert len(once) == 1


def test_any_change_may_fail_after_some() -> None:
    disk = recording()
    disk.fail(ANY_CHANGE, errno.EIO, matches=lambda path: path.startswith("/d"), skip=2)
    write(disk, "a", b"1")
    assert read_file(disk, "/d/a") == b"1"  # reading is no change
    disk.open("/d/a").sync()
    with pytest.raises(DiskError):
        disk.rename("/d/a", "/d/c")
    disk.rename("/d/a", "/d/c")
    assert [(attempt.operation, attempt.failed) for attempt in disk.attempts] == [
        ("write", False), ("sync", False), ("rename", True), ("rename", False),
    ]  # fmt: skip


def test_the_loop_may_do_something_before_each_operation_of_a_thread() -> None:
    disk = recording()
    written = []

    def meanwhile() -> None:
        written.append(len(written))
        write(disk, "b", b"x", len(written))

    disk.before_change = meanwhile
    write(disk, "a", b"1")
    disk.open("/d/a").sync()
    disk.before_change = None
    assert (written, contents(disk)) == ([0, 1], (b"1", b"\0xx"))
