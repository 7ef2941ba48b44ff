"""A directory fails at each of its operations in turn while another goes on; then the machine crashes (I7, F4).

The failed directory goes offline and is left alone: a sync that failed is never tried again. After the crash and with a healthy disk, everything
that was acknowledged is there, in both.
"""

from __future__ import annotations

import errno
from collections import Counter

import pytest

from tests.storage.crash_effort import EFFORT
from tidelog.storage import files
from tidelog.storage.disk import DiskError
from tidelog.testing.sim.crash_explorer import Depth, Explorer
from tidelog.testing.sim.disk import ANY_CHANGE, SimDisk
from tidelog.testing.sim.storage_checks import Violation
from tidelog.testing.sim.storage_world import StorageWorld

GOOD, BAD = "/a", "/b"
KEYS = [("orders", 0), ("orders", 1), ("payments", 0), ("payments", 1)]
FAULTS = [("EIO", errno.EIO, 1), ("EIO for good", errno.EIO, 1 << 30), ("ENOSPC", errno.ENOSPC, 1)]


def busy(world: StorageWorld) -> None:
    """Something of everything, in both directories."""
    world.create("orders", (0, 1))
    world.create("payments", (0, 1))
    for key in KEYS:
        world.append(key, 2)
    world.flush()
    for key in KEYS:
        world.append(key, 3, size=100)
        world.roll(key)
    world.begin_flush()
    for key in KEYS:
        world.append(key, epoch=1)
    world.finish_flush()
    world.checkpoint()
    for key in KEYS[2:]:
        world.swap(key, old=slice(0, 1), split_at=(2,))
    for key in KEYS[:2]:
        world.delete_records(3, key)
        world.truncate(5, key)
        world.append(key, 2, epoch=2)
    world.flush()
    for key in KEYS[:2]:
        world.configure(key, retention_bytes=1)
    world.retain()
    world.checkpoint()
    world.dispose()
    world.delete_topic("payments")
    world.create("refunds", (0, 1))
    for key in (*KEYS, ("refunds", 0), ("refunds", 1)):
        world.append(key, epoch=2)
    world.flush()
    world.dispose()


def in_bad_directory(path: str) -> bool:
    return path == BAD or path.startswith(BAD + "/")


def operations_in_bad_directory() -> int:
    world = StorageWorld(dirs=(GOOD, BAD))
    busy(world)
    assert any(log.directory.startswith(BAD) for log in world.manager.logs.values())
    return sum(in_bad_directory(attempt.path) for attempt in world.disk.attempts)


def run_with_failure_at(number: int, code: int, times: int) -> StorageWorld:
    def prepare(disk: SimDisk) -> None:
        disk.fail(ANY_CHANGE, code, matches=in_bad_directory, times=times, skip=number)

    world = StorageWorld(dirs=(GOOD, BAD), prepare=prepare)
    busy(world)
    return world


def check_that_the_directory_is_left_alone(world: StorageWorld) -> None:
    """From the first failure on nothing is asked of the directory any more, and the other one serves."""
    attempts = [attempt for attempt in world.disk.attempts if in_bad_directory(attempt.path)]
    first = next(number for number, attempt in enumerate(attempts) if attempt.failed)
    assert list(world.offline) == [BAD]
    # The same round of syncs, of removals or of checkpoints may go on; nothing of it is believed. A failed sync leaves a note.
    in_one_round = ("sync", "sync directory", "remove" if attempts[first].operation == "remove" else "")
    behind = [
        attempt
        for attempt in attempts[first + 1 :]
        if attempt.operation not in in_one_round
        and "checkpoint" not in attempt.path
        and not attempt.path.endswith(files.SYNC_FAILED)
    ]
    assert behind == []
    assert world.is_online(("orders", 0)) or world.is_online(("orders", 1))
    assert all(log.directory.startswith(GOOD) for log in world.manager.logs.values())


@pytest.mark.parametrize(("name", "code", "times"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_directory_may_fail_at_any_operation(name: str, code: int, times: int) -> None:
    checked: Counter[str] = Counter()
    failures = range(0, operations_in_bad_directory(), 1 if EFFORT > 1 else 16)
    for number in failures:
        world = run_with_failure_at(number, code, times)
        error = world.offline.get(BAD)
        try:
            if isinstance(error, DiskError) and error.errno == errno.EIO:
                check_that_the_directory_is_left_alone(world)
            depth = Depth(subsets_up_to=3, reordered=4 * EFFORT, every=5, recover_every=0)
            since = world.now if EFFORT == 1 else max(0, world.now - 10)
            checked.update(Explorer(world, depth).run(since=since).states)
        except (Violation, AssertionError) as violation:
            violation.add_note(f"{name} at operation {number} of {BAD}: {error}")
            raise
    print(f"{name}: {len(failures)} failures, {checked.total()} crash states")
    assert checked.total() > 5 * len(failures)
