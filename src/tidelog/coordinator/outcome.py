"""What a coordinator decided: records to write, and answers that leave once the records are committed.

A handler is called with the request and a `Waiter`, which stands for whoever asked. It returns an `Outcome` and changes no state that the
log holds: that happens in `replay`, after the records were appended, in the order in which they stand here (D5, I36). What the log does
not hold (who waits for a rebalance, deadlines) a handler changes itself. An outcome without an answer for its own waiter means that the
answer comes with a later outcome, as for a JoinGroup that waits for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from tidelog.wire.error_codes import ErrorCode

Waiter: TypeAlias = Any
"""Stands for one request that wants one answer. The core only keeps it and hands it back; it is compared by identity."""


class CoordinatorRecord(NamedTuple):
    """A message of the coordinator's topic: the key says what it is about, None as value that it is gone."""

    key: Any
    value: Any | None


class Answer(NamedTuple):
    waiter: Waiter
    response: Any


class Now(NamedTuple):
    """One moment on two clocks: `ms` never goes back and is for deadlines, `wall_ms` is for what is stored."""

    ms: int
    wall_ms: int


@dataclass(slots=True)
class Outcome:
    records: list[CoordinatorRecord] = field(default_factory=list)
    """Written as one batch: all of them, or none."""
    answers: list[Answer] = field(default_factory=list)
    """Leave in this order, when the records, and everything written before them, are committed."""
    on_failed: Callable[[ErrorCode, Now], Outcome] | None = None
    """The records could not be written: what happens instead, without records of its own. None: each answer is the error alone."""

    def answer(self, waiter: Waiter, response: Any) -> Outcome:
        self.answers.append(Answer(waiter, response))
        return self

    def or_nothing(self) -> Outcome:
        """If it cannot be written, nothing happened: whoever decided it will decide it again."""
        if self.on_failed is None:
            self.on_failed = lambda _code, _now: Outcome()
        return self

    def add(self, other: Outcome) -> Outcome:
        """Both, as one: at most one of them may have a way to fail of its own."""
        assert self.on_failed is None or other.on_failed is None, "two ways to fail cannot be one"
        self.records += other.records
        self.answers += other.answers
        self.on_failed = self.on_failed or other.on_failed
        return self


def answered(waiter: Waiter, response: Any) -> Outcome:
    """An answer, and nothing to write."""
    return Outcome(answers=[Answer(waiter, response)])
