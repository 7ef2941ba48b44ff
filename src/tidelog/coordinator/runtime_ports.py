"""What the coordinator runtime stands between: the log of a partition below, the state machine above; and what a refused write means.

Owns the two protocols and the table of errors. The broker implements `Journal` over its partition, the group coordinator (and one day
the transaction coordinator) implements `Shard`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from tidelog.coordinator.outcome import CoordinatorRecord, Now, Outcome, Waiter
from tidelog.coordinator.timers import Timers
from tidelog.records.batch import NO_PRODUCER_ID, Buffer
from tidelog.wire.error_codes import ErrorCode

Decode: TypeAlias = Callable[[Buffer, Buffer | None], CoordinatorRecord | None]
"""Key and value of a record in the log; None: of a kind that is nobody's here. CorruptDataError where they make no sense."""

Deliver: TypeAlias = Callable[[Waiter, Any], None]
"""Gives a waiter its answer. Must not raise: a connection that is gone is no reason to keep others waiting."""

Refuse: TypeAlias = Callable[[ErrorCode], Any]
"""The answer of one API that says nothing but an error."""


class Journal(Protocol):
    """The log of one coordinator partition, for as long as this broker leads it without a break. Only the runtime appends to it."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int:
        """Where the next record will stand, committed or not."""
        ...

    def append(self, records: Sequence[CoordinatorRecord], now: Now) -> int:
        """Write all of them as one batch; returns the offset of the last.

        RequestError: refused, and nothing was written. MESSAGE_TOO_LARGE also for a record that its format has no room for.
        """
        ...

    def when_committed(self, offset: int, done: Callable[[ErrorCode], None]) -> None:
        """Call `done` once, with NONE when the record at `offset` is committed, with an error when nobody can say any more whether it
        will be. Perhaps before this returns. Earlier offsets come first.
        """
        ...

    def read(self, offset: int, max_bytes: int) -> Buffer:
        """Whole batches from the one that holds `offset` on, or else the next one; at least one, however large it is.

        Empty only if no batch is left up to the end. CorruptDataError or RequestError if what stands there cannot be read: then nobody
        may act as if it were not there (I2).
        """
        ...


class Shard(Protocol):
    """The state of one coordinator partition. `replay` alone changes what the log holds (D5, I36)."""

    @property
    def timers(self) -> Timers: ...

    def replay(self, record: CoordinatorRecord, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply a record of the log; `producer_id` is that of its transaction, if it is part of one."""
        ...

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """A marker in the log: what the transaction has staged counts now, or never will."""
        ...

    def loaded(self, now: Now) -> Outcome:
        """All of the log is replayed: begin to serve."""
        ...


S = TypeVar("S", bound=Shard)
Handler: TypeAlias = Callable[[S, Waiter, Now], Outcome]

_TOLD: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What the log says to the coordinator, and what the coordinator says to its client: clients of a group know nothing of the log."""

HARMLESS: Final = frozenset(
    (
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    )
)
"""Refusals that say nothing about the shard: the log is as it was, and takes what comes next. The first three are the request's own
making; while replicas are missing, or the disk has no room, heartbeats need no log and go on.
"""


def told(code: ErrorCode) -> ErrorCode:
    """What a client is told when the log answered `code` to a write, as Kafka translates it."""
    return _TOLD.get(code, code)
