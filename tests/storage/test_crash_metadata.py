"""Losing metadata never loses data (I6, M28): crashes around topics that come and go, and every kind of damage to the metadata log.

Whatever the start makes of it, refuses to start or sets partitions aside that it does not know: what was synced is still on the disk a year later.
"""

from __future__ import annotations

from tests.storage.crash_effort import EFFORT
from tidelog.errors import CorruptDataError
from tidelog.testing.sim.disk import SimDisk
from tidelog.testing.sim.metadata_world import MetadataWorld, i6_no_synced_batch_has_left_the_disk, serve

METADATA = "/a/__cluster_metadata-0"


def topics_come_and_go(world: MetadataWorld) -> None:
    world.create("orders", (0, 1))
    world.append(("orders", 0), 4)
    world.append(("orders", 1), 2)
    world.flush()
    world.create("payments")
    world.append(("payments", 0), 3)
    world.roll(("payments", 0))
    world.append(("payments", 0))
    world.flush()
    world.checkpoint()
    world.delete_topic("orders")
    world.create("orders")
    world.append(("orders", 0), 2)
    world.flush()
    world.dispose()


def start_and_look(world: MetadataWorld, disk: SimDisk, operations: int) -> bool:
    """True if the broker has started."""
    try:
        serve(world, disk, operations)
        started = True
    except CorruptDataError:
        started = False
    i6_no_synced_batch_has_left_the_disk(world, disk, operations)
    return started


def look_at_every_crash(world: MetadataWorld) -> int:
    states = world.disk.crash_states(subsets_up_to=3, limit=100 * EFFORT, judged_by=world.ledger.judged_by)
    count = 0
    for state in states:
        count += 1
        try:
            assert start_and_look(world, state.disk, state.operations)
        except Exception as error:
            error.add_note(f"after {state.operations} operations, {state.label}")
            raise
    return count


def look_at_every_damage(world: MetadataWorld) -> tuple[int, int]:
    """How often the broker has started, and how often it has refused to."""
    started = refused = 0
    for disk in damaged_metadata(world.disk):
        if start_and_look(world, disk, world.now):
            started += 1
        else:
            refused += 1
    return started, refused


def damaged_metadata(disk: SimDisk) -> list[SimDisk]:
    found = []
    gone = disk.crash("keep_all")
    gone.remove_tree(METADATA)
    found.append(gone)
    for name in disk.list_dir(METADATA):
        path = f"{METADATA}/{name}"
        size = disk.file_size(path)
        removed = disk.crash("keep_all")
        removed.remove(path)
        found.append(removed)
        step = max(1, size // (40 * EFFORT))
        for position in range(0, size, step):
            for harm in ("cut", "flip", "zeroes"):
                damaged = disk.crash("keep_all")
                if harm == "cut":
                    damaged.open(path).truncate(position)
                elif harm == "flip":
                    damaged.flip_bit(path, position, position % 8)
                else:
                    damaged.corrupt(path, position, bytes(64))
                found.append(damaged)
    return found


def test_crashes_around_topics_that_come_and_go_delete_nothing_else() -> None:
    world = MetadataWorld()
    topics_come_and_go(world)
    states = look_at_every_crash(world)
    print(f"{states} crash states")
    assert states > 200


def test_a_damaged_or_missing_metadata_log_deletes_nothing() -> None:
    world = MetadataWorld()
    topics_come_and_go(world)
    started, refused = look_at_every_damage(world)
    print(f"{started} starts and {refused} refusals after damage")
    assert started > 20 and refused > 20
