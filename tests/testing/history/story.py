"""Histories in a few words, for tests: each call is an operation that takes one second, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history import History
from tidelog.testing.history.operations import Poll, Send, Transaction, Value

TOPIC = "t"
P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


class Story:
    def __init__(self) -> None:
        self.history = History()
        self.now = 0.0

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def begin_send(self, value: Value, *, process: str = "p", tp: TopicPartition = P0, **more: Any) -> Send:
        return self.history.send(process, self.tick(), tp.topic, tp.partition, value, **more)

    def ack(self, value: Value, offset: int = -1, **more: Any) -> Send:
        send = self.begin_send(value, **more)
        self.history.sent(send, self.tick(), offset)
        return send

    def lose_answer(self, value: Value, **more: Any) -> Send:
        send = self.begin_send(value, **more)
        self.history.unknown(send, self.tick(), "timed out")
        return send

    def refuse(self, value: Value, **more: Any) -> Send:
        send = self.begin_send(value, **more)
        self.history.failed(send, self.tick(), "too large")
        return send

    def poll(
        self, *records: tuple[int, Value], process: str = "c", tp: TopicPartition = P0, **more: Any
    ) -> Poll:
        poll = self.history.poll(process, self.tick(), **more)
        self.history.polled(poll, self.tick(), [(tp, offset, value) for offset, value in records])
        return poll

    def assign(self, position: int | None = None, *, process: str = "c", tp: TopicPartition = P0) -> None:
        self.history.assign(process, self.tick(), {tp: position})

    def seek(self, offset: int | None, *, process: str = "c", tp: TopicPartition = P0) -> None:
        self.history.seek(process, self.tick(), tp, offset)

    def rebalance(
        self,
        *,
        assigned: Sequence[TopicPartition] = (),
        revoked: Sequence[TopicPartition] = (),
        process: str = "c",
    ) -> None:
        self.history.rebalance(process, self.tick(), assigned=assigned, revoked=revoked)

    def begin(self, *, process: str = "p") -> Transaction:
        return self.history.begin(process, self.tick())

    def commit(self, transaction: Transaction) -> None:
        self.history.done(self.history.end(transaction, self.tick(), commit=True), self.tick())

    def abort(self, transaction: Transaction) -> None:
        self.history.done(self.history.end(transaction, self.tick(), commit=False), self.tick())

    def trim(self, offset: int, *, tp: TopicPartition = P0) -> None:
        self.history.done(self.history.trim("admin", self.tick(), tp, offset), self.tick())
