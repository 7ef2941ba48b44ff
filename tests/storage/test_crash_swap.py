"""Segments change places: a crash at any operation leaves the old or the new ones, never a mix or a gap (I32, H16).

The histories do what a cleaner does, on the disk that loses, tears and reorders; recovery, which completes or undoes a swap, is crashed as
well. The rest is about what else may happen to a log meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.storage.crash_effort import depth, report
from tidelog.storage.segment_swap import SegmentSwap
from tidelog.testing.sim.crash_explorer import Depth, Explored, Explorer
from tidelog.testing.sim.storage_ledger import Sent
from tidelog.testing.sim.storage_world import ORDERS, StorageWorld

History = Callable[[StorageWorld], None]


def without_producer(batch: Sent) -> bool:
    """Batches of idempotent producers stay, as a cleaner keeps the last one of each: producers are known from them."""
    return batch.header.producer_id < 0


def filled(world: StorageWorld) -> None:
    """Sealed segments at 0, 3, 6 and 8, a durable log, and a batch in the active one at 9."""
    world.create()
    for producers in ((5, -1, -1), (-1, 5, -1), (-1, 6), (-1,)):
        for producer in producers:
            world.append(producer=producer)
        world.roll()
    world.append()
    world.flush()
    world.checkpoint()


def two_become_one(world: StorageWorld) -> None:
    filled(world)
    world.swap(old=slice(0, 2))
    world.append()
    world.flush()
    world.dispose(later_ms=2000)


def records_go(world: StorageWorld) -> None:
    """The last records of the run go too: its offsets must not become a gap, which recovery would take for a loss."""
    filled(world)
    world.swap(old=slice(0, 4), drop=without_producer)
    world.append()
    world.checkpoint()
    world.dispose(later_ms=2000)


def everything_goes(world: StorageWorld) -> None:
    filled(world)
    world.swap(old=slice(3, 4), drop=without_producer)
    world.append()


def three_become_two(world: StorageWorld) -> None:
    filled(world)
    world.swap(old=slice(0, 3), split_at=(5,), drop=without_producer)
    world.append()
    world.flush()


def one_becomes_three(world: StorageWorld) -> None:
    """What Kafka does with a segment whose offsets overflow (KAFKA-6264)."""
    filled(world)
    world.swap(old=slice(0, 1), split_at=(1, 2))
    world.append()


def in_the_middle(world: StorageWorld) -> None:
    filled(world)
    world.swap(old=slice(1, 3), drop=without_producer)
    world.flush()


def one_after_another(world: StorageWorld) -> None:
    filled(world)
    world.swap(old=slice(0, 2), drop=without_producer)
    world.append()
    world.flush()
    world.swap(old=slice(0, 2))
    world.dispose(later_ms=2000)
    world.append()


def then_a_clean_stop(world: StorageWorld) -> None:
    filled(world)
    world.swap(old=slice(0, 3), drop=without_producer)
    world.stop()
    world.start()
    world.append(epoch=1)


def then_killed(world: StorageWorld) -> None:
    filled(world)
    world.swap(old=slice(0, 3), drop=without_producer)
    world.append()
    world.start()
    world.append(epoch=1)
    world.flush()


def after_delete_records(world: StorageWorld) -> None:
    filled(world)
    world.delete_records(4)
    world.swap(old=slice(0, 3), drop=without_producer)
    world.retain()
    world.checkpoint()
    world.append()


def while_records_come_in(world: StorageWorld) -> None:
    filled(world)
    swap = world.begin_swap(old=slice(0, 3), drop=without_producer)
    while (job := swap.advance()) is not None:
        world.append()
        job()
        world.roll()
        world.flush()
    world.ledger.settled(ORDERS, world.now)


def stopped_half_way(world: StorageWorld) -> None:
    """A clean stop completes what is committed."""
    filled(world)
    swap = world.begin_swap(old=slice(0, 3), split_at=(4,))
    for _ in range(2):
        job = swap.advance()
        assert job is not None
        job()
    world.stop()
    world.ledger.settled(ORDERS, world.now)
    assert swap.advance() is None


def truncated_half_way(world: StorageWorld) -> None:
    filled(world)
    swap = world.begin_swap(old=slice(0, 2))
    for _ in range(2):
        job = swap.advance()
        assert job is not None
        job()
    swap.advance()
    world.log().swap.end()  # type: ignore[union-attr]
    world.ledger.settled(ORDERS, world.now)
    world.truncate(7)
    assert swap.advance() is None
    world.append(epoch=1)
    world.flush()


def undone_by_a_truncation(world: StorageWorld) -> None:
    filled(world)
    swap = world.begin_swap(old=slice(0, 2), split_at=(1,))
    job = swap.advance()
    assert job is not None
    job()
    world.ledger.undone(ORDERS, world.now)
    world.truncate(7)
    world.finish_swap(swap)
    world.append(epoch=1)
    world.flush()
    world.swap(old=slice(0, 2))


def deleted_half_way(world: StorageWorld) -> None:
    filled(world)
    swap = world.begin_swap(old=slice(0, 2))
    for _ in range(2):
        job = swap.advance()
        assert job is not None
        job()
    world.delete_topic()
    assert swap.advance() is None
    world.dispose(later_ms=2000)


HISTORIES: tuple[History, ...] = (
    two_become_one, records_go, everything_goes, three_become_two, one_becomes_three, in_the_middle, one_after_another,
    then_a_clean_stop, then_killed, after_delete_records, while_records_come_in, stopped_half_way, truncated_half_way,
    undone_by_a_truncation, deleted_half_way,
)  # fmt: skip


class Watched(StorageWorld):
    """Knows when the first swap began: only crashes since then are of interest here."""

    swap_begun: int | None = None

    def begin_swap(self, *args: Any, **how: Any) -> SegmentSwap:
        if self.swap_begun is None:
            self.swap_begun = self.now
        return super().begin_swap(*args, **how)


def explore(history: History, depth: Depth) -> Explored:
    world = Watched()
    history(world)
    assert world.swap_begun is not None
    return Explorer(world, depth).run(since=world.swap_begun)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_a_crash_leaves_the_old_or_the_new_segments(history: History) -> None:
    explored = explore(history, depth())
    report(history.__name__, explored)
    assert explored.total > 80


def test_a_swap_is_not_completed_before_its_names_are_durable() -> None:
    """Killed in the moment of commitment: the next start sees the new names, and the disk may not have them yet."""
    world = StorageWorld()
    filled(world)
    swap = world.begin_swap(old=slice(0, 2))
    prepare = swap.advance()
    assert prepare is not None
    prepare()
    swap.advance()
    once = 1 << 30  # the recovery of the killed process is crashed, in every way, and no other
    depth = Depth(subsets_up_to=4, reordered=0, every=once, recover_every=once, nested=400)
    explored = Explorer(world, depth).run(since=world.now)
    assert explored.states["recovery crashed"] > 40
