"""A check costs milliseconds after a simulated seed, and a few seconds after a long run of real clients."""

from __future__ import annotations

import time

import pytest

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history import History, check

PARTITIONS = [TopicPartition("t", index) for index in range(6)]
READERS = ("c0", "c1")


def busy_history(operations: int) -> History:
    """Four producers, two consumers that keep up with them, and a final reading."""
    history = History()
    logs: dict[TopicPartition, list[int]] = {tp: [] for tp in PARTITIONS}
    for reader in READERS:
        history.assign(reader, 0.0, dict.fromkeys(PARTITIONS, 0))
    fresh: list[tuple[TopicPartition, int, int]] = []
    number = 0
    while len(history.sends) + len(history.polls) < operations:
        number += 1
        tp = PARTITIONS[number * number % 6]
        send = history.send(f"p{number % 4}", float(number), *tp, number)
        fresh.append((tp, len(logs[tp]), number))
        history.sent(send, number + 0.5, len(logs[tp]))
        logs[tp].append(number)
        if number % 5 == 0:
            for reader in READERS:
                history.polled(history.poll(reader, number + 0.6), number + 0.7, fresh)
            fresh = []
    for tp in PARTITIONS:
        poll = history.poll("f", number + 1.0, final=True)
        history.polled(poll, number + 2.0, [(tp, offset, value) for offset, value in enumerate(logs[tp])])
    return history


def seconds(history: History) -> float:
    """Of the processor: others may use it, too."""
    start = time.process_time()
    check(history).raise_if_dirty()
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("operations, limit", [(3_000, 0.05), (200_000, 5.0)])
def test_a_check_is_fast(operations: int, limit: float) -> None:
    history = busy_history(operations)
    assert len(history) >= operations
    assert any(seconds(history) < limit for _ in range(3))
