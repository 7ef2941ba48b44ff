"""The producer among failing brokers: acknowledged means stored, once, in order (I39, I46), whatever is lost on the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.client.producer.world import Trouble, World
from tidelog.client.metadata import TopicPartition
from tidelog.client.producer.accumulator import Accumulator
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.sequences import Sequences

SEEDS = 60 * int(os.environ.get("TIDELOG_TEST_EFFORT", "1"))

TROUBLES = {
    "calm": Trouble(),
    "lost requests": Trouble(lost_request=0.1),
    "lost answers": Trouble(lost_answer=0.1),
    "failing brokers": Trouble(broker_error=0.2),
    "moving leaders": Trouble(leader_moves=0.1),
    "slow": Trouble(slow=0.2, lost_answer=0.02),
    "everything": Trouble(0.05, 0.05, 0.1, 0.05, 0.1),
}


def run(seed: int, trouble: Trouble, **options: Any) -> World:
    world = World(seed, trouble, **options)
    chance = Random(seed + 1)
    tps = list(world.partitions)
    for number in range(200):
        value = b"%d:" % number + b"x" * chance.choice([0, 10, 100, 300])
        world.send(chance.choice(tps), value)
        if chance.random() < 0.5:
            world.look()
            world.run(world.now + chance.choice([0, 0.001, 0.02, 0.3]))
    world.settle()
    return world


@pytest.mark.parametrize("name", TROUBLES)
def test_acknowledged_is_stored_once_and_in_order(name: str) -> None:
    for seed in range(SEEDS):
        run(seed, TROUBLES[name]).check()


def test_what_takes_too_long_is_given_up_and_what_follows_is_not_lost() -> None:
    """A batch whose fate nobody knows leaves a gap in the numbers, or none; the broker's answer to the next one tells."""
    given_up = 0
    for seed in range(SEEDS):
        world = run(seed, TROUBLES["everything"], delivery_timeout_ms=700)
        world.check()
        given_up += sum(fate.error is not None for fate in world.fates.values())
    assert given_up > SEEDS, "the case did occur"


def test_batches_too_large_for_the_broker_are_taken_apart() -> None:
    split = 0
    for seed in range(SEEDS):
        world = run(seed, TROUBLES["everything"], batch_size=2_000, broker_bytes_max=500)
        world.check()
        split += sum(len(fate.parts) > 1 for fate in world.fates.values())
    assert split > SEEDS


def test_without_sequence_numbers_nothing_acknowledged_is_lost() -> None:
    for seed in range(SEEDS):
        run(seed, TROUBLES["everything"], idempotent=False).check(once=False)


def test_one_request_at_a_time_keeps_the_order_without_sequence_numbers() -> None:
    """Repeats may be stored twice, but never behind what came later."""
    for seed in range(SEEDS):
        world = run(seed, Trouble(broker_error=0.2, leader_moves=0.1), idempotent=False, max_in_flight=1)
        world.check(once=False)
        for tp, replicated in world.partitions.items():
            first = list(dict.fromkeys(replicated.values))
            assert first == [value for value in world.appended[tp] if value in set(first)]


def test_memory_is_the_bound() -> None:
    """Nothing is sent: what was accepted fits, the rest is refused, and after the delivery all of it is free again."""
    world = World(1, Trouble(), buffer_memory=3_000)
    tp = TopicPartition("orders", 0)
    accepted = sum(world.send(tp, b"%d" % number * 20) for number in range(200))
    assert 0 < accepted < 200
    held = sum(batch.size for batch in world.accumulator.unfinished)
    assert held <= 3_000
    assert not world.send(tp, b"one more that does not fit" * 20)
    world.settle()
    world.check()


# ---- mutants: the checks must be able to fail


class ReusedSequences(Sequences):
    """Numbers a batch anew on each try."""

    def stamp(self, batch: ProducerBatch) -> None:
        if batch.is_stamped:
            self._drop(batch)
            batch.unstamp()
        super().stamp(batch)


class Overfull(Accumulator):
    """Takes what does not fit."""

    def append(self, *arguments: Any, **named: Any) -> Any:
        free, self.free = self.free, 1 << 30
        place = super().append(*arguments, **named)
        self.free = free - ((1 << 30) - self.free)
        return place


class SplitWithoutNumbers(Accumulator):
    """Parts all get the number of the whole."""

    def split(self, batch: ProducerBatch, bytes_max: int) -> list[ProducerBatch]:
        parts = super().split(batch, bytes_max)
        for part in parts:
            part.base_sequence = batch.base_sequence
        return parts


@pytest.mark.parametrize(
    ("options", "trouble"),
    [
        ({"make_sequences": ReusedSequences}, TROUBLES["lost answers"]),
        ({"make_accumulator": Overfull, "buffer_memory": 1_000}, TROUBLES["calm"]),
        (
            {"make_accumulator": SplitWithoutNumbers, "batch_size": 2_000, "broker_bytes_max": 500},
            TROUBLES["everything"],
        ),
    ],
    ids=["sequence reuse after a retry", "accumulator over its bound", "split without sequence fix"],
)
def test_mutants_are_caught(options: dict[str, Any], trouble: Trouble) -> None:
    def seeds_that_notice(check: Callable[[int], None]) -> int:
        noticed = 0
        for seed in range(30):
            try:
                check(seed)
            except AssertionError:
                noticed += 1
        return noticed

    assert seeds_that_notice(lambda seed: run(seed, trouble, **options).check()) > 0
