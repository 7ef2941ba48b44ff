"""What clients did and what they were told: one value per operation.

An operation is invoked at one time and ends at another, as Jepsen has it: `ok` (it happened), `fail` (it did not, for certain) or `info` (nobody knows:
it may have happened, and may still happen). One that never ended is `info`. Times are of any clock that all processes share: a simulated one, or the
machine's monotonic one; `begun` and `ended` are the places among all events of the history and break ties.

A *process* is one producer, one consumer, or both in one hand, and does one thing after the other; only sends may overlap, because producers pipeline. A *value*
stands for one record and is unique in its history: one that is sent again is an application's own retry. Nothing here judges; that is `anomalies`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tidelog.client.metadata import TopicPartition

Value = str | int
Records = dict[TopicPartition, list[tuple[int, Value]]]
"""What a poll returned: offset and value, by partition, in the order of their coming."""

ACKS_ALL: Final = -1
UNKNOWN_OFFSET: Final = -1
NEVER: Final = math.inf


class Outcome(StrEnum):
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass(slots=True, eq=False)
class Operation:
    process: str
    invoked: float
    begun: int
    completed: float = NEVER
    ended: int = 0
    outcome: Outcome = Outcome.INFO
    why: str = ""
    """What a client said when it was not ok."""


@dataclass(slots=True, eq=False)
class Transaction:
    """From its begin to the last attempt to end it. What was sent in it is in `sends`."""

    process: str
    began: float
    begun: int
    sends: list[Send] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class Send(Operation):
    """One record. Only `acks=all` promises anything; only an idempotent producer stores it once and in the order of its sends."""

    topic: str
    partition: int | None
    """None as long as nobody knows which one the client chose."""
    value: Value
    offset: int = UNKNOWN_OFFSET
    """Where the acknowledgement said it is; a repeat that the broker recognised may be acknowledged without."""
    acks: int = ACKS_ALL
    idempotent: bool = True
    transaction: Transaction | None = None

    @property
    def is_promised(self) -> bool:
        """Acknowledged by all who count. In a transaction it is still up to the commit."""
        return self.outcome is Outcome.OK and self.acks == ACKS_ALL


@dataclass(slots=True, eq=False, kw_only=True)
class Poll(Operation):
    records: Records = field(default_factory=dict)
    final: bool = False
    """Part of the reading from the beginning to the end that closes a history, after everything has healed."""
    committed: bool = True
    """Read with `read_committed`; it makes no difference where there are no transactions."""


@dataclass(slots=True, eq=False, kw_only=True)
class Assign(Operation):
    """The consumer reads these partitions from now on and nothing else; from this offset on, where one is given."""

    positions: dict[TopicPartition, int | None]


@dataclass(slots=True, eq=False, kw_only=True)
class Subscribe(Operation):
    """The consumer shares these topics with its group; which partitions it gets is told by rebalances."""

    topics: list[str]


@dataclass(slots=True, eq=False, kw_only=True)
class Rebalance(Operation):
    """Partitions came and went. Where reading begins in those that came is up to committed offsets."""

    assigned: list[TopicPartition]
    revoked: list[TopicPartition]


@dataclass(slots=True, eq=False, kw_only=True)
class Seek(Operation):
    """None: to somewhere that nobody can tell beforehand (a time, the end)."""

    tp: TopicPartition
    offset: int | None


@dataclass(slots=True, eq=False, kw_only=True)
class Ending(Operation):
    """A commit or an abort was asked for."""

    transaction: Transaction
    is_commit: bool


@dataclass(slots=True, eq=False, kw_only=True)
class Trim(Operation):
    """Records below the offset may go from now on: somebody deletes them, or retention does."""

    tp: TopicPartition
    offset: int


Move = Assign | Subscribe | Rebalance | Seek
