"""A history: the operations of all processes, in the order of their events.

Owns the recording interface, for a simulation that has everything in one hand; `recorder` puts real clients on top of it and `files` keeps it on disk. Each
operation is begun and ended by one call with its time; events must be told in the order in which they happen. Not safe for threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history.operations import (
    ACKS_ALL,
    UNKNOWN_OFFSET,
    Assign,
    Ending,
    Move,
    Operation,
    Outcome,
    Poll,
    Rebalance,
    Records,
    Seek,
    Send,
    Subscribe,
    Transaction,
    Trim,
    Value,
)

M = TypeVar("M", Assign, Subscribe, Rebalance, Seek)


class History:
    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.polls: list[Poll] = []
        self.moves: list[Move] = []
        self.transactions: list[Transaction] = []
        self.trims: list[Trim] = []
        self.streams: dict[str, list[Poll | Move]] = {}
        """What each consumer went through, in the order of its ends: polls that returned, and what moved it."""
        self._events = 0

    def __len__(self) -> int:
        """How many operations."""
        endings = sum(len(transaction.endings) for transaction in self.transactions)
        return (
            len(self.sends) + len(self.polls) + len(self.moves)
            + len(self.transactions) + endings + len(self.trims)
        )  # fmt: skip

    def _tick(self) -> int:
        self._events += 1
        return self._events

    # ---- producers

    def send(
        self,
        process: str,
        at: float,
        topic: str,
        partition: int | None,
        value: Value,
        *,
        acks: int = ACKS_ALL,
        idempotent: bool = True,
        transaction: Transaction | None = None,
    ) -> Send:
        send = Send(
            process, at, self._tick(), topic=topic, partition=partition, value=value,
            acks=acks, idempotent=idempotent, transaction=transaction,
        )  # fmt: skip
        self.sends.append(send)
        if transaction is not None:
            transaction.sends.append(send)
        return send

    def sent(
        self, send: Send, at: float, offset: int = UNKNOWN_OFFSET, *, partition: int | None = None
    ) -> None:
        """It was acknowledged."""
        self._end(send, at, Outcome.OK)
        send.offset = offset
        if partition is not None:
            send.partition = partition

    def begin(self, process: str, at: float) -> Transaction:
        transaction = Transaction(process, at, self._tick())
        self.transactions.append(transaction)
        return transaction

    def end(self, transaction: Transaction, at: float, *, commit: bool) -> Ending:
        ending = Ending(transaction.process, at, self._tick(), transaction=transaction, is_commit=commit)
        transaction.endings.append(ending)
        return ending

    # ---- consumers

    def poll(self, process: str, at: float, *, final: bool = False, committed: bool = True) -> Poll:
        poll = Poll(process, at, self._tick(), final=final, committed=committed)
        self.polls.append(poll)
        return poll

    def polled(self, poll: Poll, at: float, records: Iterable[tuple[TopicPartition, int, Value]]) -> None:
        grouped: Records = {}
        for tp, offset, value in records:
            pairs = grouped.get(tp)
            if pairs is None:
                grouped[tp] = [(offset, value)]
            else:
                pairs.append((offset, value))
        self.polled_by_partition(poll, at, grouped)

    def polled_by_partition(self, poll: Poll, at: float, records: Records) -> None:
        """The same for callers who have them sorted already."""
        self._end(poll, at, Outcome.OK)
        poll.records = {tp: pairs for tp, pairs in records.items() if pairs}
        self.streams.setdefault(poll.process, []).append(poll)

    def assign(self, process: str, at: float, positions: Mapping[TopicPartition, int | None]) -> Assign:
        return self._moved(Assign(process, at, self._tick(), positions=dict(positions)))

    def subscribe(self, process: str, at: float, topics: Iterable[str]) -> Subscribe:
        return self._moved(Subscribe(process, at, self._tick(), topics=list(topics)))

    def rebalance(
        self,
        process: str,
        at: float,
        *,
        assigned: Sequence[TopicPartition] = (),
        revoked: Sequence[TopicPartition] = (),
    ) -> Rebalance:
        return self._moved(
            Rebalance(process, at, self._tick(), assigned=list(assigned), revoked=list(revoked))
        )

    def seek(self, process: str, at: float, tp: TopicPartition, offset: int | None) -> Seek:
        return self._moved(Seek(process, at, self._tick(), tp=tp, offset=offset))

    def _moved(self, move: M) -> M:
        self.moves.append(move)
        self._end(move, move.invoked, Outcome.OK)
        self.streams.setdefault(move.process, []).append(move)
        return move

    # ---- anybody

    def trim(self, process: str, at: float, tp: TopicPartition, offset: int) -> Trim:
        trim = Trim(process, at, self._tick(), tp=tp, offset=offset)
        self.trims.append(trim)
        return trim

    def done(self, operation: Ending | Trim, at: float) -> None:
        self._end(operation, at, Outcome.OK)

    def failed(self, operation: Operation, at: float, why: str = "") -> None:
        """It did not happen, and never will. Whoever is not certain says `unknown`."""
        self._end(operation, at, Outcome.FAIL)
        operation.why = why

    def unknown(self, operation: Operation, at: float, why: str = "") -> None:
        self._end(operation, at, Outcome.INFO)
        operation.why = why

    def _end(self, operation: Operation, at: float, outcome: Outcome) -> None:
        if operation.ended:
            raise ValueError(f"an operation ends once: {operation}")
        operation.completed, operation.ended, operation.outcome = at, self._tick(), outcome
