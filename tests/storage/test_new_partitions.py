"""Partitions are made without a sync: until its first flush a power cut may take one, and never anything that was promised.

Crash states as in `test_crash_states`, for histories in which the names of a log are not durable yet; and what a broker does about a
partition that is in the metadata and not on disk.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.storage.crash_effort import depth, report
from tidelog.storage import files
from tidelog.storage.disk import DiskError
from tidelog.testing.sim.crash_explorer import Explorer
from tidelog.testing.sim.storage_world import StorageWorld

ORDERS = ("orders", 0)
History = Callable[[StorageWorld], None]


def many_made_one_flushed(world: StorageWorld) -> None:
    world.create("orders", (0, 1, 2))
    world.append(ORDERS)
    world.flush(ORDERS)
    world.create("payments", (0, 1))
    world.append(("payments", 1))
    world.flush(("payments", 1))
    world.append(ORDERS)


def rolled_before_its_first_flush(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.roll()
    world.append(count=2)
    world.roll()
    world.append()
    world.flush()


def rolled_while_its_first_flush_runs(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.begin_flush()
    world.roll()
    world.append(count=2)
    world.finish_flush()
    world.append()


def truncated_before_its_first_flush(world: StorageWorld) -> None:
    world.create()
    world.append(count=3)
    world.truncate(1)
    world.append(count=2, epoch=1)
    world.flush()


def begun_anew_before_its_first_flush(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.restart_at(7)
    world.append(epoch=1)


def records_deleted_before_its_first_flush(world: StorageWorld) -> None:
    world.create("orders", (0, 1))
    world.append(count=3)
    world.commit()
    world.delete_records(2)
    world.append()


def stopped_cleanly_while_empty(world: StorageWorld) -> None:
    """The marker of a clean stop vouches for what was flushed, and an empty log never was."""
    world.create("orders", (0, 1))
    world.append(("orders", 1))
    world.stop()
    world.start()
    world.append(count=2)
    world.flush()
    world.checkpoint()
    world.append()


def killed_before_its_first_flush(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.start()
    world.append(epoch=1)
    world.flush()
    world.append(epoch=1)


def killed_with_a_new_segment(world: StorageWorld) -> None:
    """The checkpoint knows the log, and not the name of its last segment."""
    world.create()
    world.append(count=2)
    world.flush()
    world.checkpoint()
    world.roll()
    world.start()
    world.append()
    world.flush()
    world.roll()
    world.append()


def made_again_under_a_name_that_checkpoints_know(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.flush()
    world.checkpoint()
    world.delete_topic()
    world.create()
    world.append()
    world.commit()
    world.checkpoint()
    world.append()
    world.flush()


HISTORIES: tuple[History, ...] = (
    many_made_one_flushed, rolled_before_its_first_flush, rolled_while_its_first_flush_runs,
    truncated_before_its_first_flush, begun_anew_before_its_first_flush, records_deleted_before_its_first_flush,
    stopped_cleanly_while_empty, killed_before_its_first_flush, killed_with_a_new_segment,
    made_again_under_a_name_that_checkpoints_know,
)  # fmt: skip


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_every_crash_state_keeps_the_promises(history: History) -> None:
    world = StorageWorld()
    history(world)
    explored = Explorer(world, depth()).run()
    report(history.__name__, explored)
    assert explored.total > 100


def test_nothing_is_synced_when_partitions_are_made() -> None:
    world = StorageWorld()
    before = len(world.disk.attempts)
    world.create("orders", range(20))
    made = world.disk.attempts[before:]
    assert not [attempt for attempt in made if attempt.operation.startswith("sync")]
    assert len(made) <= 20 * 7  # a directory, an id and its content, four files of a segment


def test_one_sync_of_the_log_directory_serves_every_new_partition() -> None:
    world = StorageWorld()
    world.create("orders", range(20))
    for partition in range(20):
        world.append(("orders", partition))
    before = len(world.disk.attempts)
    world.flush()
    above = [
        attempt
        for attempt in world.disk.attempts[before:]
        if (attempt.operation, attempt.path) == ("sync directory", "/a")
    ]
    assert len(above) == 1


def test_a_failed_sync_of_the_log_directory_fails_every_flush_that_needed_it() -> None:
    """I7: the second partition's flush must not succeed because the directory is asked again."""
    world = StorageWorld()
    world.create("orders", (0, 1))
    world.append(ORDERS)
    world.append(("orders", 1))
    tickets = [world.log(("orders", number)).begin_flush() for number in (0, 1)]
    world.disk.fail("sync directory", matches=lambda path: path == "/a")
    for ticket in tickets:
        assert ticket is not None
        with pytest.raises(DiskError, match="sync directory failed on /a"):
            ticket.run()


def test_checkpoints_do_not_speak_of_logs_that_a_power_cut_may_take() -> None:
    world = StorageWorld()
    world.create("orders", (0, 1))
    world.append(ORDERS)
    world.commit()
    world.append(("orders", 1))
    world.flush(("orders", 1))
    world.checkpoint()
    for name in (files.RECOVERY_POINT_CHECKPOINT, files.HIGH_WATERMARK_CHECKPOINT):
        content = world.disk.open(f"/a/{name}").read_at(1000, 0)
        assert b"orders 1 1" in content
        assert b"orders 0" not in content
