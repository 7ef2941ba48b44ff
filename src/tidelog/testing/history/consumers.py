"""Consumers, followed poll by poll: where one did not go on where it had to.

Where a consumer has to go on is known within a poll, from one poll to the next of the same assignment, and after a seek or an assignment to a given offset. After a
rebalance nobody knows: committed offsets decide, and those are I35's business. Whether a jump is wrong is for `anomalies_order`: what lies between may be
nothing that can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.operations import Assign, Move, Poll, Rebalance, Seek


class Jump(NamedTuple):
    """A poll returned another offset than the next one."""

    poll: Poll
    tp: TopicPartition
    due: int
    came: int
    is_internal: bool
    """Both ends are in the same poll."""


def follow(stream: Iterable[Poll | Move]) -> Iterator[Jump]:
    """One consumer, from its beginning to its end."""
    due: dict[TopicPartition, int] = {}
    unsettled: dict[TopicPartition, int] = {}  # partitions of a rebalance, and its place among the events
    for operation in stream:
        if not isinstance(operation, Poll):
            _move(operation, due, unsettled)
            continue
        for tp, pairs in operation.records.items():
            if unsettled and unsettled.pop(tp, 0) > operation.begun:
                # The rebalance came while the poll was under way: its records may be of both sides, or of before.
                due.pop(tp, None)
                continue
            expected = due.get(tp)
            came = pairs[0][0]
            if expected is not None and came != expected:
                yield Jump(operation, tp, expected, came, False)
            expected = came
            for came, _ in pairs:
                if came != expected:
                    yield Jump(operation, tp, expected, came, True)
                expected = came + 1
            due[tp] = expected


def _move(move: Move, due: dict[TopicPartition, int], unsettled: dict[TopicPartition, int]) -> None:
    if isinstance(move, Seek):
        _set(due, move.tp, move.offset)
    elif isinstance(move, Rebalance):
        for tp in (*move.assigned, *move.revoked):
            due.pop(tp, None)
            unsettled[tp] = move.begun
    else:
        due.clear()
        unsettled.clear()
        if isinstance(move, Assign):
            for tp, offset in move.positions.items():
                _set(due, tp, offset)


def _set(due: dict[TopicPartition, int], tp: TopicPartition, offset: int | None) -> None:
    if offset is None:
        due.pop(tp, None)
    else:
        due[tp] = offset
