"""A correct log in a few lines, and clients that do everything they may do to it: what comes out is a history without an anomaly.

Producers pipeline, lose answers, give up on records that are stored later all the same, retry, fail, run transactions and, where they may, store twice or lose what only the leader had. Consumers
seek, are assigned, share partitions with a group, and read with both isolation levels. Records are deleted. At the end everything is read from the beginning.
One seed decides all of it.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from tidelog.client.metadata import TopicPartition
from tidelog.testing.history import History
from tidelog.testing.history.operations import Send, Transaction, Value

TOPIC = "t"
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclass(slots=True)
class Entry:
    """What is at an offset; a marker has no value."""

    value: Value | None
    transaction: Transaction | None = None


@dataclass(slots=True)
class Partition:
    tp: TopicPartition
    entries: list[Entry] = field(default_factory=list)
    start: int = 0


@dataclass(slots=True)
class Producer:
    name: str
    kind: str
    """idempotent, transactional or careless (not idempotent, acks=1)."""
    unsent: deque[Send] = field(default_factory=deque)
    stored: list[tuple[Send, int]] = field(default_factory=list)
    transaction: Transaction | None = None
    partitions: list[Partition] = field(default_factory=list)
    """Those that its transaction has written to."""
    again: list[Value] = field(default_factory=list)
    """What was in transactions that were not committed as far as it knows."""


@dataclass(slots=True)
class Consumer:
    name: str
    committed: bool
    positions: dict[TopicPartition, int] = field(default_factory=dict)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.history = History()
        self.now = 0.0
        self.values = 0
        self.partitions = [Partition(TopicPartition(TOPIC, index)) for index in range(self.rng.randint(1, 3))]
        self.states: dict[Transaction, str] = {}
        kinds = ["idempotent", *self.rng.choices(["idempotent", "transactional", "careless"], k=2)]
        self.producers = [Producer(f"p{number}", kind) for number, kind in enumerate(kinds)]
        self.zombies: list[Send] = []
        self.targets: dict[Send, Partition] = {}
        self.group_positions = {part.tp: 0 for part in self.partitions}
        self.consumers = [Consumer("c0", True), Consumer("c1", True), Consumer("c2", False)]
        for consumer in self.consumers:
            self._assign(consumer)

    def tick(self) -> float:
        self.now += self.rng.choice([0.0, 0.001, 0.5])  # events may well have the same time
        return self.now

    def run(self, steps: int) -> History:
        moves = [self._send] * 6 + [self._store] * 6 + [self._answer] * 6 + [self._poll] * 6
        moves += [self._end_transaction, self._end_transaction, self._move_consumer, self._zombie, self._trim]
        for _ in range(steps):
            self.rng.choice(moves)()
        self._settle()
        self._read_everything()
        return self.history

    # ---- producers

    def _send(self) -> None:
        producer = self.rng.choice(self.producers)
        if producer.kind == "transactional" and producer.transaction is None:
            producer.transaction = self.history.begin(producer.name, self.tick())
            self.states[producer.transaction] = OPEN
        part = self.rng.choice(self.partitions)
        careless = producer.kind == "careless"
        value: Value
        if producer.again and self.rng.random() < 0.5:
            value = producer.again.pop()
        else:
            self.values += 1
            value = self.values
        send = self.history.send(
            producer.name,
            self.tick(),
            TOPIC,
            self.rng.choice([part.tp.partition, None]),
            value,
            acks=1 if careless else -1,
            idempotent=not careless,
            transaction=producer.transaction,
        )
        self.targets[send] = part  # where the client will put it, which only the client may know
        producer.unsent.append(send)

    def _store(self) -> None:
        """The oldest record reaches the log, or the client refuses it, or gives up on it, or sends it again under its own steam."""
        producer = self.rng.choice(self.producers)
        if not producer.unsent:
            return
        send = producer.unsent.popleft()
        part = self.targets[send]
        fate = self.rng.random()
        if fate < 0.08:
            self.history.failed(send, self.tick(), "refused")
        elif fate < 0.16:
            self.history.unknown(send, self.tick(), "gave up")
            if send.transaction is None:
                self.zombies.append(send)
        elif producer.kind == "careless" and fate < 0.4:
            # The leader alone had it, and another one leads now.
            self.history.sent(send, self.tick(), len(part.entries), partition=part.tp.partition)
        else:
            self._append(part, send)
            if producer.kind == "careless" and fate < 0.6:
                self._append(part, send)
            producer.stored.append((send, len(part.entries) - 1))

    def _append(self, part: Partition, send: Send) -> None:
        part.entries.append(Entry(send.value, send.transaction))
        if send.transaction is not None:
            producer = next(each for each in self.producers if each.transaction is send.transaction)
            producer.partitions.append(part)

    def _answer(self) -> None:
        producer = self.rng.choice(self.producers)
        if not producer.stored:
            return
        send, offset = producer.stored.pop(self.rng.randrange(len(producer.stored)))
        fate = self.rng.random()
        if fate < 0.1:
            self.history.unknown(send, self.tick(), "no answer")
            if send.transaction is None and self.rng.random() < 0.5:
                self._send_again(producer, send)
        elif fate < 0.2:
            self.history.sent(send, self.tick(), partition=self.targets[send].tp.partition)
        elif fate < 0.95:
            self.history.sent(send, self.tick(), offset, partition=self.targets[send].tp.partition)

    def _send_again(self, producer: Producer, send: Send) -> None:
        again = self.history.send(
            producer.name, self.tick(), TOPIC, send.partition, send.value,
            acks=send.acks, idempotent=send.idempotent,
        )  # fmt: skip
        self.targets[again] = self.targets[send]
        producer.unsent.append(again)

    def _zombie(self) -> None:
        """A request that its client has given up on reaches the broker at last."""
        if self.zombies:
            send = self.zombies.pop()
            self.targets[send].entries.append(Entry(send.value))

    def _end_transaction(self, *, settling: bool = False) -> None:
        producer = self.rng.choice([each for each in self.producers if each.transaction] or self.producers)
        transaction = producer.transaction
        if transaction is None or producer.unsent or producer.stored:
            return
        commit = self.rng.random() < 0.7
        ending = self.history.end(transaction, self.tick(), commit=commit)
        fate = 1.0 if settling else self.rng.random()
        if fate < 0.1:
            self.history.failed(ending, self.tick(), "fenced")
            commit = False
        elif fate < 0.25:
            self.history.unknown(ending, self.tick(), "no answer")
            commit = commit and self.rng.random() < 0.5
        self.states[transaction] = COMMITTED if commit else ABORTED
        if fate < 0.25 or not commit:
            producer.again.extend(send.value for send in transaction.sends)
        for tp in {part.tp for part in producer.partitions}:
            self.partitions[tp.partition].entries.append(Entry(None))
        producer.transaction, producer.partitions = None, []
        if fate >= 0.25:
            self.history.done(ending, self.tick())

    # ---- consumers

    def _assign(self, consumer: Consumer) -> None:
        chosen = self.rng.sample(self.partitions, self.rng.randint(1, len(self.partitions)))
        consumer.positions = {part.tp: self.rng.randint(0, len(part.entries)) for part in chosen}
        told = {
            tp: position if self.rng.random() < 0.7 else None for tp, position in consumer.positions.items()
        }
        self.history.assign(consumer.name, self.tick(), told)

    def _move_consumer(self) -> None:
        consumer = self.rng.choice(self.consumers)
        what = self.rng.random()
        if what < 0.3 or not consumer.positions:
            self._assign(consumer)
        elif what < 0.6:
            tp = self.rng.choice(list(consumer.positions))
            consumer.positions[tp] = self.rng.randint(0, len(self.partitions[tp.partition].entries))
            known = self.rng.random() < 0.7
            self.history.seek(consumer.name, self.tick(), tp, consumer.positions[tp] if known else None)
        elif what < 0.9:
            self._rebalance(consumer)
        else:
            self.history.subscribe(consumer.name, self.tick(), [TOPIC])
            self._rebalance(consumer)

    def _rebalance(self, consumer: Consumer) -> None:
        revoked = [tp for tp in consumer.positions if self.rng.random() < 0.5]
        for tp in revoked:
            position = consumer.positions.pop(tp)
            if self.rng.random() < 0.5:
                self.group_positions[tp] = position
        self.history.rebalance(consumer.name, self.tick(), revoked=revoked)
        assigned = [part.tp for part in self.partitions if part.tp not in consumer.positions]
        assigned = [tp for tp in assigned if self.rng.random() < 0.6]
        for tp in assigned:
            consumer.positions[tp] = self.group_positions[tp]
        self.history.rebalance(consumer.name, self.tick(), assigned=assigned)

    def _poll(self) -> None:
        consumer = self.rng.choice(self.consumers)
        poll = self.history.poll(consumer.name, self.tick(), committed=consumer.committed)
        fate = self.rng.random()
        if fate < 0.05:
            self.history.unknown(poll, self.tick(), "interrupted")
            return
        records = self._take(consumer)
        if fate < 0.15:
            self._rebalance(consumer)
            records += self._take(consumer)
        if fate < 0.97:  # the process may also be killed while it waits
            self.history.polled(poll, self.tick(), records)
        else:
            self.consumers.remove(consumer)
            self.consumers.append(Consumer(f"c{len(self.history)}", consumer.committed))
            self._assign(self.consumers[-1])

    def _take(self, consumer: Consumer) -> list[tuple[TopicPartition, int, Value]]:
        found = []
        for tp in list(consumer.positions):
            part = self.partitions[tp.partition]
            end = self._stable(part) if consumer.committed else len(part.entries)
            position = max(consumer.positions[tp], part.start)
            for offset in range(position, min(end, position + self.rng.randint(0, 6))):
                entry = part.entries[offset]
                if entry.value is not None and not (consumer.committed and self._state(entry) == ABORTED):
                    found.append((tp, offset, entry.value))
                position = offset + 1
            consumer.positions[tp] = position
        return found

    def _state(self, entry: Entry) -> str:
        return COMMITTED if entry.transaction is None else self.states[entry.transaction]

    def _stable(self, part: Partition) -> int:
        for offset, entry in enumerate(part.entries):
            if self._state(entry) == OPEN:
                return offset
        return len(part.entries)

    def _trim(self) -> None:
        if self.rng.random() < 0.3:
            part = self.rng.choice(self.partitions)
            offset = self.rng.randint(part.start, max(part.start, self._stable(part) // 2))
            trim = self.history.trim("admin", self.tick(), part.tp, offset)
            if self.rng.random() < 0.8:
                part.start = offset
            if self.rng.random() < 0.8:
                self.history.done(trim, self.tick())

    # ---- the end

    def _settle(self) -> None:
        while any(producer.unsent for producer in self.producers):
            self._store()
        while any(producer.stored for producer in self.producers):
            self._answer()
        while any(producer.transaction for producer in self.producers):
            self._end_transaction(settling=True)

    def _read_everything(self) -> None:
        readers = [Consumer("f0", True), Consumer("f1", True)]
        for part in self.partitions:
            self.rng.choice(readers).positions[part.tp] = 0
        for reader in readers:
            self.history.assign(reader.name, self.tick(), reader.positions)
            while any(
                reader.positions[tp] < len(self.partitions[tp.partition].entries) for tp in reader.positions
            ):
                poll = self.history.poll(reader.name, self.tick(), final=True)
                self.history.polled(poll, self.tick(), self._take(reader))


def correct_history(seed: int, steps: int = 150) -> History:
    return World(seed).run(steps)
