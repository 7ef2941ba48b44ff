"""A crash at any operation of a cleaning leaves the old segments or the new ones, never a mix or a gap (I32, H16).

The real cleaner and the real swap, on the disk that loses, tears and reorders; recovery, which completes or undoes a swap, is crashed as well.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compaction.compaction_world import RETENTION_MS
from tests.compaction.crash_world import CompactingWorld
from tests.storage.crash_effort import depth, report
from tidelog.records.compaction import SLOT_BYTES
from tidelog.storage.cleaner_job import Limits
from tidelog.testing.sim.crash_explorer import Depth, Explored, Explorer
from tidelog.testing.sim.storage_world import ORDERS

History = Callable[[CompactingWorld], None]
SPLIT = Limits(output_bytes_max=150, buffer_bytes=0)
"""Several new segments for one group."""


def filled(world: CompactingWorld) -> None:
    """Sealed, durable segments with superseded keys, and a batch in the active one."""
    world.create()
    for keys, producer in (("ab", 5), ("c", -1), ("abd", -1)):
        world.put(keys, producer=producer)
    world.seal()
    for keys, producer in (("ae", -1), ("c", 6), ("b", -1)):
        world.put(keys, producer=producer)
    world.seal()
    world.put("a", producer=5)
    world.put("ce")
    world.seal()
    world.put("a")
    world.flush()
    world.checkpoint()


def small_segments_become_one(world: CompactingWorld) -> None:
    filled(world)
    world.compact()
    world.put("b")
    world.flush()
    world.dispose(later_ms=2000)


def one_becomes_several(world: CompactingWorld) -> None:
    """What grows beyond what an index can address is split (KAFKA-6264 was about such swaps)."""
    world.create()
    for number in range(5):
        world.put("abcdefghij"[2 * number : 2 * number + 2] + "z" * (number % 2), producer=5)
        world.put("klmnopqrst"[2 * number : 2 * number + 2])
    world.seal()
    world.put("a")
    world.flush()
    world.checkpoint()
    world.compact(limits=SPLIT)
    world.put("b")
    world.flush()


def group_after_group(world: CompactingWorld) -> None:
    filled(world)
    world.configure(segment_bytes=400)
    world.compact()
    world.put("b")
    world.checkpoint()


def everything_goes(world: CompactingWorld) -> None:
    world.create()
    world.put("ab")
    world.put("a")
    world.seal()
    world.put("ab")
    world.seal()
    world.put("c")
    world.flush()
    world.configure(segment_bytes=100)
    world.compact()
    world.put("a")


def the_map_is_full(world: CompactingWorld) -> None:
    filled(world)
    small = Limits(map_bytes=4 * SLOT_BYTES, load_factor=0.9)
    world.compact(limits=small)
    world.compact(limits=small)
    world.compact(limits=small)


def tombstones_come_and_go(world: CompactingWorld) -> None:
    world.create()
    world.put("ab", producer=5)
    world.put("a", deleted="a")
    world.seal()
    world.put("c")
    world.flush()
    world.checkpoint()
    world.compact()
    world.clock.advance(RETENTION_MS)
    world.compact()
    world.put("d", producer=5)
    world.flush()


def twice(world: CompactingWorld) -> None:
    filled(world)
    world.compact()
    world.dispose(later_ms=2000)
    world.put("bb")
    world.seal()
    world.compact()
    world.put("c")


def then_a_clean_stop(world: CompactingWorld) -> None:
    filled(world)
    world.compact()
    world.stop()
    world.start()
    world.put("a", epoch=1)


def then_killed(world: CompactingWorld) -> None:
    filled(world)
    world.compact()
    world.put("a")
    world.start()
    world.put("a", epoch=1)
    world.flush()


def killed_while_cleaning(world: CompactingWorld) -> None:
    """The next process finds `.cleaned` files, removes them, and cleans."""
    filled(world)
    next(world.swaps())
    world.ledger.undone(ORDERS, world.now)
    world.start()
    world.compact()


def while_records_come_in(world: CompactingWorld) -> None:
    filled(world)
    for swapping in world.swaps():
        while (job := swapping.swap.advance()) is not None:
            world.put("ab")
            job()
            world.roll()
            world.flush()
        world.ledger.settled(ORDERS, world.now)
    world.compact()


def truncated_before_its_swap(world: CompactingWorld) -> None:
    """Of segments that are cleaned one is cut, and written to again: what was written for it must not come back."""
    filled(world)
    swaps = world.swaps()
    swapping = next(swaps)
    job = swapping.swap.advance()
    assert job is not None
    job()
    world.ledger.undone(ORDERS, world.now)
    world.truncate(8)
    while (job := swapping.swap.advance()) is not None:
        job()
    assert next(swaps, None) is None
    world.put("xy", epoch=1)
    world.seal()
    world.put("z", epoch=1)
    world.flush()
    world.compact()


def deleted_half_way(world: CompactingWorld) -> None:
    filled(world)
    swapping = next(world.swaps())
    for _ in range(2):
        job = swapping.swap.advance()
        assert job is not None
        job()
    world.delete_topic()
    assert swapping.swap.advance() is None
    world.dispose(later_ms=2000)


def stopped_half_way(world: CompactingWorld) -> None:
    filled(world)
    swapping = next(world.swaps())
    for _ in range(2):
        job = swapping.swap.advance()
        assert job is not None
        job()
    world.stop()
    world.ledger.settled(ORDERS, world.now)


HISTORIES: tuple[History, ...] = (
    small_segments_become_one, one_becomes_several, group_after_group, everything_goes, the_map_is_full,
    tombstones_come_and_go, twice, then_a_clean_stop, then_killed, killed_while_cleaning, while_records_come_in,
    truncated_before_its_swap, deleted_half_way, stopped_half_way,
)  # fmt: skip


def explore(history: History, depth: Depth) -> Explored:
    world = CompactingWorld()
    history(world)
    assert world.cleaning_begun is not None
    return Explorer(world, depth).run(since=world.cleaning_begun)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_a_crash_leaves_the_old_or_the_new_segments(history: History) -> None:
    explored = explore(history, depth())
    report(history.__name__, explored)
    assert explored.total > 60


def test_how_far_the_log_is_clean_is_never_overstated() -> None:
    """The note of the cleaner's offset survives a truncation below it and whatever is appended in its place, at every crash: a tombstone that
    is taken for clean would go while its key's value is still there (I29).
    """
    world = CompactingWorld()
    filled(world)
    world.compact()
    clean_below = world.log().cleaned_to
    assert clean_below > 5
    checkpointing = world.now
    world.checkpoint()
    checkpointed = world.now
    world.truncate(5)
    truncated = world.now
    cut_at = world.log().log_end_offset
    for _ in range(5):
        world.put("abc", epoch=1)
        world.seal()
    assert world.log().log_end_offset > clean_below
    world.checkpoint()
    looked_at = noted = 0
    for state in world.disk.crash_states(subsets_up_to=3, limit=300, since=world.cleaning_begun or 0):
        manager = world.manager_on(state.disk, state.operations)
        manager.open()
        cleaned_to = manager.logs[ORDERS].cleaned_to
        looked_at += 1
        noted += cleaned_to > 0
        if state.operations < checkpointing:
            assert cleaned_to == 0
        elif checkpointed <= state.operations < truncated:
            assert cleaned_to in (clean_below, cut_at), "it may be on its way down"
        elif state.operations >= truncated:
            assert cleaned_to <= cut_at
        manager.close(clean=False)
    assert looked_at > 300 and noted > 50
