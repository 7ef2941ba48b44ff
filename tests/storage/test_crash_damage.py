"""One damaged or missing file at a time: nothing else changes, nothing is deleted, and what can be derived is (I2, I4, I6, F5).

Every file of a data directory is removed, emptied, cut, zeroed and hit by single bit flips, after a clean stop and after a kill. The start that
follows may refuse, may leave a partition alone, or must answer as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.storage.crash_effort import EFFORT
from tidelog.errors import CorruptDataError
from tidelog.storage import files
from tidelog.storage.disk import read_file
from tidelog.storage.log_dirs import LogDirError
from tidelog.storage.log_manager import LogManager
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.storage_checks import Violation
from tidelog.testing.sim.storage_restarts import DERIVED, answers
from tidelog.testing.sim.storage_world import StorageWorld

PARTITIONS = [("orders", 0), ("orders", 1)]


def cannot_be_seen(name: str, harm: str) -> bool:
    """Kafka's text files and indexes have no checksum: one digit for another, or an index that lacks its last entries, looks sound.
    A log start cannot be derived.
    """
    if name == files.LOG_START_OFFSET_CHECKPOINT:
        return True
    if name == files.LEADER_EPOCH_CHECKPOINT:
        return harm != "removed"
    entry_bytes = {files.TIME_INDEX: 12, files.TXN_INDEX: 34}.get("." + name.rpartition(".")[2], 0)
    return (
        entry_bytes > 0
        and harm.startswith("cut at ")
        and int(harm.split()[2]) % entry_bytes == 0
        and "at 0" not in harm
    )


def filled(*, clean: bool) -> StorageWorld:
    world = StorageWorld()
    world.create("orders", (0, 1))
    for key in PARTITIONS:
        for epoch in range(3):
            world.append(key, 4, epoch=epoch, producer=5)
            world.append(key, 2, epoch=epoch, producer=-1, records=2)
            world.roll(key)
        world.append(key, 3, epoch=3)
    world.flush()
    world.checkpoint()
    if clean:
        world.stop()
    return world


def harms(disk: SimDisk, path: str, flips: int) -> Iterator[tuple[str, SimDisk]]:
    size = disk.file_size(path)

    def copy() -> SimDisk:
        return disk.crash("keep_all")

    removed = copy()
    removed.remove(path)
    yield "removed", removed
    for end in {0, size // 2, max(0, size - 1)} - {size}:
        cut = copy()
        cut.open(path).truncate(end)
        yield f"cut at {end}", cut
    if size:
        zeroed = copy()
        zeroed.corrupt(path, 0, bytes(size))
        yield "zeroed", zeroed
    for position in range(0, size, max(1, size // flips)):
        flipped = copy()
        flipped.flip_bit(path, position, position % 8)
        yield f"bit {position % 8} of byte {position} flipped", flipped


def all_files(disk: SimDisk, path: str) -> list[str]:
    found: list[str] = []
    for name in disk.list_dir(path):
        child = files.join(path, name)
        found += all_files(disk, child) if disk.is_dir(child) else [child]
    return found


def check_damage(world: StorageWorld, *, suffix: str = "", flips: int = 3 * EFFORT) -> Counter[str]:
    """Harm every file beside the partitions and in the first one, in every way; raises Violation."""
    before = {key: answers(log) for key, log in opened(world, world.disk.crash("keep_all")).logs.items()}
    outcomes: Counter[str] = Counter()
    harmed = [
        path for path in all_files(world.disk, "/a") if path.endswith(suffix) and "/orders-1/" not in path
    ]
    for path in harmed:
        for harm, disk in harms(world.disk, path, flips):
            try:
                outcomes[check_one(world, disk, path, harm, before)] += 1
            except Violation as violation:
                violation.add_note(f"{path}: {harm}")
                raise
    return outcomes


def opened(world: StorageWorld, disk: SimDisk) -> LogManager:
    manager = world.manager_on(disk, world.now)
    manager.open()
    return manager


def check_one(
    world: StorageWorld, disk: SimDisk, path: str, harm: str, before: dict[tuple[str, int], dict[str, object]]
) -> str:
    logs = {name: read_file(disk, name) for name in all_files(disk, "/a") if name.endswith(files.LOG)}
    try:
        manager = opened(world, disk)
    except (LogDirError, CorruptDataError):
        outcome = "refused"
    else:
        outcome = check_answers(manager, path, harm, before)
    for name, content in logs.items():
        if not disk.exists(name) or read_file(disk, name) != content:
            raise Violation("I6", f"{name} was changed because another file is damaged")
    return outcome


def check_answers(
    manager: LogManager, path: str, harm: str, before: dict[tuple[str, int], dict[str, object]]
) -> str:
    name = files.base_name(path)
    for key, expected in before.items():
        mine = f"/{files.partition_dir_name(*key)}/" in path
        if mine and key in manager.failed_logs:
            return "left alone"
        log = manager.logs.get(key)
        if log is None:
            raise Violation("I6", f"{key} is gone")
        if mine and name.endswith(files.LOG):
            return "damage kept"
        if cannot_be_seen(name, harm):
            return "unprotected"
        found = answers(log)
        for question, answer in expected.items():
            if found[question] != answer:
                raise Violation(
                    "I4" if mine and name.endswith(DERIVED) else "I6",
                    f"{log!r}: {question} {found[question]}",
                )
    return "as before"


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "killed"])
def test_a_damaged_file_changes_nothing_else(clean: bool) -> None:
    outcomes = check_damage(filled(clean=clean))
    print(dict(outcomes))
    assert outcomes["as before"] > 80
    assert outcomes["damage kept"] > 20
