"""Killed, and then the power fails while the next process recovers: what recovery reads from the page cache is not durable yet.

A name or a cut that a killed process has made a moment ago looks like any other. Whoever acts on it, and removes what stood there before or the
note that tells of it, must make it durable first. Each test kills at every operation of one step and cuts the power at every operation of
the recovery that follows.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.testing.sim.crash_explorer import Depth, Explorer
from tidelog.testing.sim.storage_world import StorageWorld

EVERY_CUT = Depth(subsets_up_to=0, reordered=0, every=1 << 30, recover_every=0, cuts=None)
Step = Callable[[StorageWorld], None]


def durable_and_checkpointed(world: StorageWorld) -> None:
    world.create()
    world.append(count=2, producer=6)
    world.roll()
    world.append(count=2, producer=-1)
    world.roll()
    world.append()
    world.flush()
    world.checkpoint()


def truncated_behind_a_checkpoint(world: StorageWorld) -> None:
    durable_and_checkpointed(world)
    world.truncate(1)
    world.append(epoch=1)


def with_deleted_records(world: StorageWorld) -> None:
    durable_and_checkpointed(world)
    world.delete_records(4)
    world.configure(retention_bytes=0)


@pytest.mark.parametrize(
    ("before", "step"),
    [
        (durable_and_checkpointed, lambda world: world.truncate(1)),
        (durable_and_checkpointed, lambda world: world.restart_at(9)),
        (durable_and_checkpointed, lambda world: world.delete_records(4)),
        (durable_and_checkpointed, lambda world: world.swap(old=slice(0, 2), drop=lambda b: b.header.producer_id < 0)),
        (durable_and_checkpointed, lambda world: world.delete_topic()),
        (truncated_behind_a_checkpoint, lambda world: world.checkpoint()),
        (with_deleted_records, lambda world: world.retain() and world.checkpoint()),
    ],
    ids=["truncate", "start anew", "delete records", "swap", "delete topic", "checkpoint", "retention"],
)  # fmt: skip
def test_power_fails_while_a_killed_broker_recovers(before: Step, step: Step) -> None:
    world = StorageWorld()
    before(world)
    since = world.now
    step(world)
    explored = Explorer(world, EVERY_CUT).run(since=since)
    print(explored)
    assert explored.states["recovery cut off"] > 5
