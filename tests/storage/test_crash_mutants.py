"""Would the crash tests notice? Each mutant is a plausible mistake in storage code; a search that is silent on the product must find it.

M24 to M28 are the bug zoo's (RELIABILITY §10), the S-numbers are ours. See `tidelog.testing.mutants`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.storage import crash_histories as histories
from tests.storage import test_crash_swap as swaps
from tests.storage.test_crash_damage import check_damage, filled
from tests.storage.test_crash_metadata import look_at_every_damage, topics_come_and_go
from tidelog.testing.mutants import MUTANTS, mutant
from tidelog.testing.sim.crash_explorer import Depth, Explorer
from tidelog.testing.sim.metadata_world import MetadataWorld
from tidelog.testing.sim.storage_checks import Violation
from tidelog.testing.sim.storage_world import StorageWorld

Search = Callable[[], None]
DEPTH = Depth(subsets_up_to=4, reordered=60, every=40, recover_every=0)


def crashes_of(history: Callable[[StorageWorld], None], depth: Depth = DEPTH) -> Search:
    def search() -> None:
        world = StorageWorld()
        history(world)
        Explorer(world, depth).run()

    return search


def swap_crashes_of(history: Callable[[StorageWorld], None]) -> Search:
    def search() -> None:
        swaps.explore(history, DEPTH)

    return search


def a_small_roll(world: StorageWorld) -> None:
    world.create()
    world.append()
    world.flush()
    world.append()
    world.roll()
    world.append()


def a_sync_that_fails_once() -> None:
    world = StorageWorld()
    world.create()
    world.append(count=2)
    world.flush()
    world.append(count=2)
    world.disk.fail("sync", errno.EIO, matches=lambda path: path.endswith(".log"))
    world.flush()
    Explorer(world, DEPTH).run()


def a_leader_that_sends_garbage() -> None:
    world = StorageWorld()
    world.create()
    world.replicate()
    world.replicate(corrupt=True)
    world.replicate()
    world.flush()
    Explorer(world, DEPTH).run()


def damaged_metadata() -> None:
    world = MetadataWorld()
    topics_come_and_go(world)
    look_at_every_damage(world)


def damaged_indexes() -> None:
    check_damage(filled(clean=True), suffix="00.index", flips=1000)


FINDS: dict[str, Search] = {
    "M24": swap_crashes_of(swaps.one_becomes_three),
    "M25": a_sync_that_fails_once,
    "M26": crashes_of(histories.delete_records),
    "M27": a_leader_that_sends_garbage,
    "M28": damaged_metadata,
    "S1": crashes_of(histories.a_checkpoint_while_a_flush_runs),
    "S2": damaged_indexes,
    "S3": crashes_of(histories.roll_then_flush),
    "S4": crashes_of(histories.stop_cleanly),
    "S5": crashes_of(histories.truncate_over_segments),
    "S6": crashes_of(histories.retention_while_a_checkpoint_is_written),
    "S7": crashes_of(histories.roll_then_flush),
    "S8": crashes_of(histories.append_and_flush),
    "S9": crashes_of(histories.delete_records_over_segments, replace(DEPTH, every=6)),
    "S10": crashes_of(histories.delete_records),
    "S11": crashes_of(histories.stop_cleanly_and_start),
    "S12": crashes_of(histories.delete_a_topic),
    "S13": crashes_of(histories.delete_and_create_again),
    "S14": crashes_of(a_small_roll, replace(DEPTH, reordered=400)),
    "S15": crashes_of(histories.delete_records),
    "S16": swap_crashes_of(swaps.two_become_one),
    "S17": swap_crashes_of(swaps.two_become_one),
    "S18": swap_crashes_of(swaps.three_become_two),
    "S19": crashes_of(histories.retention_takes_everything),
    "S20": crashes_of(histories.append_and_flush),
    "S21": crashes_of(histories.retention_after_a_checkpoint_was_taken),
}


def test_every_mutant_has_a_search() -> None:
    assert [known.name for known in MUTANTS] == list(FINDS)


@pytest.mark.parametrize("name", FINDS)
def test_the_checks_find_the_mutant(name: str) -> None:
    search = FINDS[name]
    search()  # the product is sound
    with mutant(name).applied(), pytest.raises(Violation) as found:
        search()
    print(f"{mutant(name)}: {str(found.value)[:160]}")
